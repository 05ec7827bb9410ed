from __future__ import annotations

import numpy as np
import pytest
from support.small_studies import computed, small_study

from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.study import Subject

(ITEM,) = chosen(["full"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_the_tables_hold_what_is_computed_from_embeddings(evidence, finding):
    accuracy, error, _, single_accuracy, single_error, _ = finding.parts
    first, second = evidence.settings
    scores = computed(evidence, first)
    for place, table in enumerate((accuracy, error)):
        cells = {(row["domain"], row["method"]): row["mean"] for row in table.data}
        for method in ("none", "neo"):
            for domain in first.domains:
                expected = np.mean([scores[method, domain, seed][place] for seed in first.study.seeds])
                assert cells[domain, method] == pytest.approx(expected, abs=2e-4)
            expected = np.mean([score[place] for (name, _, _), score in scores.items() if name == method])
            assert cells["average", method] == pytest.approx(expected, abs=2e-4)
    assert {row["domain"] for row in single_accuracy.data} == set(second.domains)
    assert {row["method"] for row in single_error.data} == {"none", "t3a", "lame", "neo"}


def test_the_answer_gives_the_changes(evidence, finding):
    (accuracy, error, *_) = finding.parts
    averages = [
        {row["method"]: row["mean"] for row in table.data if row["domain"] == "average"} for table in (accuracy, error)
    ]
    change, of_error = (average["neo"] - average["none"] for average in averages)
    assert f"NEO changes accuracy by {change:+.1f} [" in finding.answer
    assert f"calibration error by {of_error:+.3f}" in finding.answer
    assert not any("left out" in note for note in finding.notes)


def test_slow_methods_are_left_out_where_they_get_less_and_this_is_said(tmp_path):
    study = small_study(subjects=[Subject(corruptions=["fog"])], methods=["none", "neo", "tent"], seeds=[1])
    whole = Evidence(study, tmp_path / "records.jsonl")
    (plan,) = ITEM.plans(whole.settings[0])
    assert [each.method for each in plan.methods] == ["none", "neo", "tent"]
    reduced = Evidence(study.model_copy(update={"slow_samples": 16}), tmp_path / "records.jsonl")
    (plan,) = ITEM.plans(reduced.settings[0])
    assert [each.method for each in plan.methods] == ["none", "neo"]
    assert plan.samples == [-1]
    reduced.gather([ITEM])
    finding = ITEM.find(reduced)
    (note,) = [note for note in finding.notes if "left out" in note]
    assert "only 16 samples of each domain: tent." in note
    assert finding.holds == "yes"  # one seed is enough for a verdict over images
