"""What tests of the paper's items share: a small study of the digits whose models are opened once."""

from __future__ import annotations

import dataclasses

import pytest

from neotta.evaluate.costs import Conditions, Cost
from neotta.evaluate.records import Records
from neotta.paper.evidence import Evidence, cost_record
from neotta.paper.study import Study, Subject

METHODS = ["none", "t3a", "lame", "neo"]


@pytest.fixture(scope="session")
def evidence(tmp_path_factory):
    """The digits in fog and at low contrast, and a second subject with a single domain.

    Items add the runs that they need, so a test may find more records than its own.
    """
    folder = tmp_path_factory.mktemp("paper")
    mild = Subject(corruptions=["brightness"], severity=3, name="mild")
    study = small_study(subjects=[Subject(corruptions=["fog", "contrast"]), mild])
    return Evidence(study, folder / "records.jsonl", cache=folder / "cache")


def small_study(**changes):
    """The first of these subjects alone."""
    given = {"methods": METHODS, "samples": 48, "seeds": [2020, 1234], "batch_size": 16, "cost_batches": 1}
    return Study(**{"subjects": [Subject(corruptions=["fog", "contrast"])], **given, **changes})


@pytest.fixture
def costed(tmp_path):
    """Make evidence of a small study whose costs are given: milliseconds per image and MiB by method."""

    def make(costs, **changes):
        found = Evidence(small_study(**changes), tmp_path / "records.jsonl", cache=tmp_path / "cache")
        for method, (milliseconds, mebibytes) in costs.items():
            for setting in found.settings:
                cost = made_up_cost(method, milliseconds, mebibytes)
                Records(tmp_path / "records.jsonl").append(cost_record(setting, cost))
        return found

    return make


def made_up_cost(method, milliseconds, mebibytes, **conditions):
    """The fields of a `Cost`, as a record has them."""
    cost = Cost(
        method,
        "paper",
        {},
        Conditions("digits", batch_size=16, **conditions),
        threads=1,
        image_size=(28, 28),
        seconds_per_image=milliseconds / 1e3,
        plain_seconds_per_image=1e-3,
        forward_passes=1.0,
        backward_passes=0.0,
        peak_memory=None if mebibytes is None else int(mebibytes * 2**20),
        memory_above_plain=None if mebibytes is None else 0,
        flops_per_image=None,
    )
    return dataclasses.asdict(cost)
