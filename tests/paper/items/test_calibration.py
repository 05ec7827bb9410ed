from __future__ import annotations

import numpy as np
import pytest
from support.small_studies import computed, small_study

from neotta.paper.catalog import chosen
from neotta.paper.evidence import Evidence
from neotta.report.figures import Figure

(ITEM,) = chosen(["calibration"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_the_errors_are_those_computed_from_embeddings(evidence, finding):
    figures = [part for part in finding.parts if isinstance(part, Figure)]
    for setting, figure in zip(evidence.settings, figures, strict=True):
        scores = computed(evidence, setting, samples=48)
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
        assert f"On {setting.title}, the calibration error with NEO is {errors['neo']:.3f}" in finding.answer
        assert f"{rank}" in finding.answer
    assert finding.holds in ("unclear", "partly")  # two seeds of 48 samples prove nothing on the second subject


@pytest.mark.parametrize(("methods", "said"), [(["none", "lame"], "lowest"), (["neo"], "neo has the lowest")])
def test_without_neo_or_others_nothing_can_be_claimed(tmp_path, methods, said):
    evidence = Evidence(small_study(methods=methods, seeds=[1]), tmp_path / "records.jsonl")
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.holds == "unclear"
    assert said in finding.answer
