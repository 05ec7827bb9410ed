"""Where a method does harm, recomputed by hand."""

import pytest

from neotta.errors import DataError, OptionError
from neotta.evaluate.records import Record
from neotta.evaluate.stream_harm import Cell, Summary, harm_of


def record(method, kind, domain, top1, model="m", seed=1):
    about = {"method": method, "preset": "paper", "options": {}, "domain": domain, "seed": seed, "model": model}
    how = {"data": "d", "order": kind, "status": "ok", "metrics": {"top1": top1}}
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
    assert {harm.title: harm.every() for harm in found} == {
        "m, d, clean": {Cell("iid", "clean", 1): 0.5},
        "m, d, severity 3": {Cell("iid", "fog/3", 1): 4.0},
        "m, d, severity 5": {
            Cell("iid", "fog/5", 1): 8.0,
            Cell("1-class", "fog/5", 1): -1.5,
            Cell("1-class", "snow/5", 1): 0.0,
        },
    }
    assert list(found[-1].kinds) == ["iid", "1-class"]
    total = Summary.of(found[-1].every().values())
    assert total[:3] == (pytest.approx(6.5 / 3), pytest.approx(-1.35), -1.5)
    assert (total.cells, total.hurt) == (3, pytest.approx(100 / 3))


def test_models_apart_and_some_kinds_only():
    others = [each.model_copy(update={"model": "other"}) for each in RECORDS]
    found = harm_of([*RECORDS, *others], "neo", ["1-class"])
    assert [harm.title for harm in found] == ["m, d, severity 5", "other, d, severity 5"]
    assert {str(cell): gain for cell, gain in found[0].every().items()} == {
        "1-class on fog/5, seed 1": -45.0,
        "1-class on snow/5, seed 1": -35.0,
    }


def test_each_draw_counts_for_itself():
    again = [each.model_copy(update={"seed": 2}) for each in RECORDS]
    (found,) = harm_of([*RECORDS, *again], "neo", ["1-class"])
    assert Summary.of(found.every().values()).cells == 4


def test_what_is_not_recorded_is_said():
    with pytest.raises(OptionError, match="no method 'tent', only neo, neo-stream"):
        harm_of(RECORDS, "tent")
    with pytest.raises(OptionError, match="no kind of stream '2-classes', only 1-class, iid"):
        harm_of(RECORDS, "neo", ["2-classes"])
    with pytest.raises(DataError, match="no record is of a run"):
        harm_of([Record(key="1", left_out="too slow")], "neo")
