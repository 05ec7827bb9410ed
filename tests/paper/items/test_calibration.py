from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.answered import records_of
from support.small_studies import computed, small_study

from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items.all_images import _changes, _lowest, _with_every_seed
from neotta.paper.measured import Measured
from neotta.report.figures import Figure

(ITEM,) = chosen(["calibration"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_the_errors_are_those_computed_from_embeddings(evidence, finding):
    figures = [part for part in finding.parts if isinstance(part, Figure)]
    for setting, figure in zip(evidence.settings, figures, strict=True):
        scores = computed(evidence, setting)  # on all images
        for method in ("none", "neo"):
            errors = [error for (name, _, _), (_, error) in scores.items() if name == method]
            (row,) = [row for row in figure.data if row["method"] == method]
            assert row["mean"] == pytest.approx(np.mean(errors), abs=2e-4)
        assert figure.png().startswith(b"\x89PNG")


def test_all_methods_are_ranked(evidence, finding):
    figure = finding.parts[0]
    assert {row["method"] for row in figure.data} == set(evidence.settings[0].methods)
    assert [row["mean"] for row in figure.data] == sorted(row["mean"] for row in figure.data)


def test_the_answer_says_where_neo_stands(evidence, finding):
    figures = [part for part in finding.parts if isinstance(part, Figure)]
    for setting, figure in zip(evidence.settings, figures, strict=True):
        errors = {row["method"]: row["mean"] for row in figure.data}
        place = sorted(errors, key=errors.__getitem__).index("neo")
        rank = "the lowest" if place == 0 else f"number {place + 1}, after"
        assert (
            f"On {setting.title}, the calibration error with NEO on all images is {errors['neo']:.3f}" in finding.answer
        )
        assert f"{rank}" in finding.answer


def test_all_images_are_seen_by_every_method(evidence, finding):
    for setting in evidence.settings:
        records = evidence.records(*ITEM.plans(setting))
        assert {record.count for record in records} == {setting.images}
        assert {record.method for record in records} == set(setting.names)


@pytest.mark.parametrize(
    ("mine", "theirs", "holds"),
    [
        ([0.1, 0.2], [0.2, 0.3], "yes"),
        ([0.2, 0.3], [0.1, 0.2], "no"),
        ([0.1, 0.3], [0.2, 0.2], "unclear"),
        ([0.1], [0.2], "unclear"),
    ],
)
def test_an_error_is_below_another_if_it_is_with_every_seed(mine, theirs, holds):
    seeds = [{seed: [SimpleNamespace(ece=error)] for seed, error in enumerate(errors)} for errors in (mine, theirs)]
    assert _with_every_seed([change < 0 for change in _changes(*seeds)]) == holds


@pytest.mark.parametrize(("methods", "said"), [(["none", "lame"], "lowest"), (["neo"], "NEO has the lowest")])
def test_without_neo_or_others_nothing_can_be_claimed(tmp_path, methods, said):
    evidence = Evidence(small_study(methods=methods, seeds=[1]), tmp_path / "records.jsonl")
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.holds == "not judged"
    assert said in finding.answer


def test_equal_errors_are_a_tie():
    records = [
        record.model_copy(update={"metrics": {"ece": {"neo": 0.2, "t3a": 0.2}.get(record.method, 0.3)}})
        for record in records_of({"none": (1, 1), "t3a": (1, 1), "neo": (1, 1)}, ("fog/5", "snow/5"), seeds=(1, 2))
    ]
    answer, holds = _lowest(Measured.of(records, "ece"))
    assert "is 0.200 ± 0.004, the lowest, level with T3A, of 3 methods" in answer
    assert holds == "no"
