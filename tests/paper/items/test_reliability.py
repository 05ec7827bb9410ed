from __future__ import annotations

import numpy as np
import pytest
from support.small_studies import answers, small_study

from neotta.paper.claims import called
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items.reliability import error

(ITEM,) = chosen(["reliability"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_bins_are_sums_over_domains_and_seeds(evidence, finding):
    for setting, figure in zip(evidence.settings, finding.parts, strict=True):
        for method in ("none", "neo"):
            found = [entry[3:] for entry in answers(evidence, setting, 48) if entry[0] == method]
            confidence = np.concatenate([confidence for confidence, _ in found])
            right = np.concatenate([right for _, right in found])
            rows = [row for row in figure.data if row["method"] == method]
            assert sum(row["samples"] for row in rows) == len(confidence) == 96 * len(setting.domains)
            for number, row in enumerate(rows):
                inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
                assert row["samples"] == inside.sum()
                assert (row["confidence"] is None) == (not inside.any())
                if inside.any():
                    assert row["confidence"] == pytest.approx(confidence[inside].mean(), abs=1e-4)
                    assert row["accuracy"] == pytest.approx(right[inside].mean(), abs=1e-4)
            said = f"{100 * confidence.mean():.1f} and {100 * right.mean():.1f} % with {called(method)}"
            assert said in finding.answer


def test_the_third_is_the_best_calibrated_other_method(evidence, finding):
    for setting, figure in zip(evidence.settings, finding.parts, strict=True):
        records = [record for record in evidence.records(*ITEM.plans(setting)) if record.domain != "clean"]
        errors = {
            method: np.mean([record.metrics["ece"] for record in records if record.method == method])
            for method in ("t3a", "lame")
        }
        assert list(dict.fromkeys(row["method"] for row in figure.data)) == ["none", "neo", min(errors, key=errors.get)]
        assert figure.png().startswith(b"\x89PNG")


def test_the_error_of_a_curve():
    curve = np.array([[10.0, 30.0], [4.0, 27.0], [6.0, 24.0]])
    assert error(curve) == pytest.approx((10 * abs(0.4 - 0.6) + 30 * abs(0.9 - 0.8)) / 40)


def test_one_method_and_one_seed_are_enough(tmp_path):
    evidence = Evidence(small_study(methods=["none"], seeds=[3]), tmp_path / "records.jsonl")
    assert ITEM.find(evidence).answer == "Nothing could be measured."
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert {row["method"] for row in finding.parts[0].data} == {"none"}
    assert "<svg" in finding.parts[0].svg()


def test_methods_are_shown_on_the_samples_that_all_have(tmp_path):
    study = small_study(methods=["none", "neo", "tent"], seeds=[1, 2], slow_seeds=[2])
    evidence = Evidence(study, tmp_path / "records.jsonl", cache=tmp_path / "cache")
    evidence.gather([ITEM])
    (figure,) = ITEM.find(evidence).parts
    counts = {}
    for row in figure.data:
        counts[row["method"]] = counts.get(row["method"], 0) + row["samples"]
    assert counts == {"none": 96, "neo": 96, "tent": 96}
