"""What tests of the paper's items share: a small study of the digits whose models are opened once."""

from __future__ import annotations

import pytest

from neotta.paper.evidence import Evidence
from neotta.paper.study import Study, Subject

METHODS = ["none", "t3a", "lame", "neo"]


@pytest.fixture(scope="session")
def evidence(tmp_path_factory):
    """The digits in fog and at low contrast, and a second subject with a single domain.

    Items add the runs that they need, so a test may find more records than its own.
    """
    folder = tmp_path_factory.mktemp("paper")
    study = Study(
        subjects=[
            Subject(corruptions=["fog", "contrast"]),
            Subject(corruptions=["brightness"], severity=3, name="mild"),
        ],
        methods=METHODS,
        samples=48,
        seeds=[2020, 1234],
        batch_size=16,
        cost_batches=1,
    )
    return Evidence(study, folder / "records.jsonl", cache=folder / "cache")
