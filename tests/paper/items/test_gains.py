from __future__ import annotations

import math

import numpy as np
import pytest
from support.small_studies import computed, small_study

from neotta.evaluate.metrics import Interval
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items.all_images import Gain, _gains_hold

(ITEM,) = chosen(["gains"])


@pytest.fixture(scope="module")
def finding(evidence):
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def test_the_changes_are_those_computed_from_embeddings(evidence, finding):
    figure, table = finding.parts
    for setting in evidence.settings:
        scores = computed(evidence, setting)
        for place, metric in enumerate(("top1", "ece")):
            changes = {
                (domain, seed): scores["neo", domain, seed][place] - scores["none", domain, seed][place]
                for _, domain, seed in scores
            }
            seeds = setting.study.seeds
            per_seed = [np.mean([changes[domain, seed] for domain in setting.domains]) for seed in seeds]
            (row,) = [row for row in figure.data if (row["subject"], row["metric"]) == (setting.title, metric)]
            assert row["mean"] == pytest.approx(np.mean(per_seed), abs=2e-4)
            assert row["low"] < row["mean"] < row["high"]
        (row,) = [row for row in table.data if row["subject"] == setting.title]
        accuracies = [scores["neo", domain, seed][0] for domain in setting.domains for seed in setting.study.seeds]
        assert row["accuracy, neo"] == pytest.approx(np.mean(accuracies), abs=2e-4)


def test_all_images_are_seen(evidence, finding):
    for setting in evidence.settings:
        records = evidence.records(*ITEM.plans(setting))
        assert {record.count for record in records} == {setting.images}


def test_the_answer_names_every_subject_with_its_numbers(evidence, finding):
    rows = {(row["subject"], row["metric"]): row["mean"] for row in finding.parts[0].data}
    for setting in evidence.settings:
        gain, error = rows[setting.title, "top1"], rows[setting.title, "ece"]
        assert f"On all images of {setting.title}, NEO changes accuracy by {gain:+.1f} [" in finding.answer
        assert f"calibration error by {error:+.3f}" in finding.answer
    assert finding.parts[0].png().startswith(b"\x89PNG")


def gain(accuracy, half, kept):
    return Gain((None, None, Interval(accuracy, half, 3)), (None, None, None), kept)


@pytest.mark.parametrize(
    ("gains", "holds"),
    [
        ([gain(3, 1, "yes"), gain(2, 1, "yes")], "yes"),
        ([gain(3, 1, "no"), gain(2, 1, "yes")], "partly"),  # kept in 1 of 2, less than 9 of 12
        ([gain(3, 1, "unclear"), gain(2, 1, "yes")], "unclear"),
        ([gain(3, 1, "yes")] * 3 + [gain(3, 1, "no")], "yes"),
        ([gain(3, 1, "yes"), gain(-3, 1, "yes")], "partly"),
        ([gain(-3, 1, "yes")], "no"),
        ([gain(3, 4, "yes")], "unclear"),
        ([gain(3, math.nan, "yes")], "unclear"),
    ],
)
def test_whether_the_claim_holds(gains, holds):
    assert _gains_hold(gains) == holds


def test_one_seed_gives_intervals_over_images(tmp_path):
    evidence = Evidence(small_study(seeds=[7]), tmp_path / "records.jsonl")
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert all(row["half_width"] > 0 for row in finding.parts[0].data)
    assert "points" in finding.answer
    assert finding.holds == "yes", "images tell, also with one seed"
    assert "<svg" in finding.parts[0].svg()


def test_nothing_measured_is_said(tmp_path):
    finding = ITEM.find(Evidence(small_study(), tmp_path / "records.jsonl"))
    assert (finding.answer, finding.holds, finding.parts) == ("Nothing could be measured.", "unclear", [])
