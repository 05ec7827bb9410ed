"""Where a method does harm, recomputed by hand."""

import pytest

from neotta.errors import DataError, OptionError
from neotta.evaluate.records import Record
from neotta.evaluate.stream_harm import Summary, harm_of


def record(method, kind, domain, top1, model="m", seed=1):
    about = {"method": method, "preset": "paper", "options": {}, "domain": domain, "seed": seed, "model": model}
    how = {"data": "d", "stream_options": {"kind": kind}, "status": "ok", "metrics": {"top1": top1}}
    return Record.make({"key": "", **about, **how})


RECORDS = [
    record(method, kind, domain, top1)
    for kind, domain, values in (
        ("iid", "clean", {"none": 90.0, "neo": 91.0, "neo-stream": 90.5}),
        ("iid", "fog/5", {"none": 50.0, "neo": 60.0, "neo-stream": 58.0}),
        ("iid", "fog/3", {"none": 70.0, "neo": 75.0, "neo-stream": 74.0}),
        ("1-class", "fog/5", {"none": 50.0, "neo": 5.0, "neo-stream": 48.5}),
        ("1-class", "snow/5", {"none": 40.0, "neo": 5.0, "neo-stream": 40.0}),
    )
    for method, top1 in values.items()
]


def test_each_severity_and_clean_images_apart():
    found = harm_of(RECORDS, "neo-stream")
    assert {harm.title: harm.kinds for harm in found} == {
        "m, d, clean": {"iid": {"clean": 0.5}},
        "m, d, severity 3": {"iid": {"fog/3": 4.0}},
        "m, d, severity 5": {"iid": {"fog/5": 8.0}, "1-class": {"fog/5": -1.5, "snow/5": 0.0}},
    }
    total = Summary.of(found[-1].every().values())
    assert total[:2] == (pytest.approx(6.5 / 3), -1.5)
    assert (total.cells, total.hurt_cells) == (3, 1)


def test_models_apart_and_some_kinds_only():
    others = [each.model_copy(update={"model": "other"}) for each in RECORDS]
    found = harm_of([*RECORDS, *others], "neo", ["1-class"])
    assert [harm.title for harm in found] == ["m, d, severity 5", "other, d, severity 5"]
    assert found[0].every() == {"1-class on fog/5": -45.0, "1-class on snow/5": -35.0}


def test_what_is_not_recorded_is_said():
    with pytest.raises(OptionError, match="no method 'tent', only neo, neo-stream"):
        harm_of(RECORDS, "tent")
    with pytest.raises(OptionError, match="no kind of stream '2-classes', only 1-class, iid"):
        harm_of(RECORDS, "neo", ["2-classes"])
    with pytest.raises(DataError, match="no record has a kind of stream"):
        harm_of([RECORDS[0].model_copy(update={"stream_options": {}})], "neo")
