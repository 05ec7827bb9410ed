"""What tests of the paper's items share: a small study of the digits whose models are opened once."""

from __future__ import annotations

import pytest
from small_studies import made_up_cost, small_study

from neotta.evaluate.records import Records
from neotta.paper.evidence import Evidence, cost_record
from neotta.paper.study import Subject


@pytest.fixture(scope="session")
def evidence(tmp_path_factory):
    """The digits in fog and at low contrast, and a second subject with a single domain.

    Items add the runs that they need, so a test may find more records than its own.
    """
    folder = tmp_path_factory.mktemp("paper")
    mild = Subject(corruptions=["brightness"], severity=3, name="mild")
    study = small_study(subjects=[Subject(corruptions=["fog", "contrast"]), mild])
    return Evidence(study, folder / "records.jsonl", cache=folder / "cache")


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
