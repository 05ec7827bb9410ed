"""Where a method does harm, recomputed by hand."""

import pytest

from neotta.errors import DataError, OptionError
from neotta.evaluate.records import Record
from neotta.evaluate.stream_harm import STREAM, harm_of, summed


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


def by_subject(found):
    return {title: [*mine[["kind", "domain", "gain"]].itertuples(index=False, name=None)]
            for title, mine in found.groupby("subject", sort=False)}  # fmt: skip


def test_each_severity_and_clean_images_apart():
    found = harm_of(RECORDS, "neo-stream")
    assert by_subject(found) == {
        "m, d, clean": [("iid", "clean", 0.5)],
        "m, d, severity 3": [("iid", "fog/3", 4.0)],
        "m, d, severity 5": [("iid", "fog/5", 8.0), ("1-class", "fog/5", -1.5), ("1-class", "snow/5", 0.0)],
    }
    assert list(by_subject(found)) == ["m, d, clean", "m, d, severity 3", "m, d, severity 5"]
    total = summed(found["gain"][found["subject"] == "m, d, severity 5"])
    assert [*total.values()][:3] == [pytest.approx(6.5 / 3), pytest.approx(-1.35), -1.5]
    assert (total["streams"], total["hurt"]) == (3, pytest.approx(100 / 3))


def test_models_apart_and_some_kinds_only():
    others = [each.model_copy(update={"model": "other"}) for each in RECORDS]
    found = harm_of([*RECORDS, *others], "neo", ["1-class"])
    assert list(by_subject(found)) == ["m, d, severity 5", "other, d, severity 5"]
    assert [(STREAM.format_map(row), row["gain"]) for _, row in found[found["model"] == "m"].iterrows()] == [
        ("1-class on fog/5, seed 1", -45.0),
        ("1-class on snow/5, seed 1", -35.0),
    ]


def test_each_draw_counts_for_itself():
    again = [each.model_copy(update={"seed": 2}) for each in RECORDS]
    assert len(harm_of([*RECORDS, *again], "neo", ["1-class"])) == 4


def test_what_is_not_recorded_is_said():
    with pytest.raises(OptionError, match="no method 'tent', only neo, neo-stream"):
        harm_of(RECORDS, "tent")
    with pytest.raises(OptionError, match="no kind of stream '2-classes', only 1-class, iid"):
        harm_of(RECORDS, "neo", ["2-classes"])
    with pytest.raises(DataError, match="no record is of a run"):
        harm_of([Record(key="1", left_out="too slow")], "neo")
