from __future__ import annotations

import numpy as np
import pytest
from support.small_studies import costed

from neotta.evaluate.comparison import Difference
from neotta.evaluate.metrics import Interval, verdict
from neotta.paper.catalog import chosen
from neotta.paper.items import tradeoff
from neotta.report.figures import Figure

(ITEM,) = chosen(["tradeoff"])
COSTS = {"none": (1.0, 300), "t3a": (1.05, 303), "lame": (2.0, 400), "neo": (1.01, 301)}


def test_each_method_is_a_point_with_its_accuracy_and_costs(tmp_path):
    evidence = costed(tmp_path, COSTS)
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    (figure,) = finding.parts
    assert isinstance(figure, Figure)
    assert {row["method"] for row in figure.data} == set(COSTS)
    records = evidence.records(*ITEM.plans(evidence.settings[0]))
    for row in figure.data:
        milliseconds, mebibytes = COSTS[row["method"]]
        assert row["seconds_per_image"] == pytest.approx(milliseconds / 1e3)
        assert row["peak_memory"] == mebibytes * 2**20
        mine = [record for record in records if record["method"] == row["method"] and record["domain"] != "clean"]
        assert len(mine) == 4
        assert row["accuracy"] == pytest.approx(np.mean([record["metrics"]["top1"] for record in mine]))


def test_it_is_honest_about_what_is_faster_leaner_or_more_accurate(tmp_path):
    evidence = costed(tmp_path, {**COSTS, "t3a": (0.5, 303), "lame": (2.0, 200)})
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    accuracy = {row["method"]: row["accuracy"] for row in finding.parts[0].data}
    better = [name for name in ("lame", "t3a") if accuracy[name] > accuracy["neo"]]
    assert better == []
    assert "more accurate: none; faster: t3a; leaner: lame." in finding.answer
    assert f"NEO reaches {accuracy['neo']:.1f} % in 1.01 ms per image with 301 MiB" in finding.answer
    assert finding.holds == "partly"


def test_small_differences_do_not_count(tmp_path):
    evidence = costed(tmp_path, {**COSTS, "t3a": (0.95, 298), "neo": (1.0, 303)})
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert "more accurate: none; faster: none; leaner: none" in finding.answer
    assert finding.holds == "yes"


def test_a_busy_machine_tells_nothing(tmp_path):
    evidence = costed(tmp_path, {**COSTS, "none": (1.25, 300), "t3a": (0.5, 303)})  # the model alone: 1 ms
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.answer.endswith("differs by a factor of 1.25: the machine was busy.")
    assert finding.holds == "unclear"


def test_accuracies_differ_only_beyond_chance(tmp_path):
    evidence = costed(tmp_path, COSTS)
    evidence.gather([])
    costs = evidence.costs(evidence.settings[0], COSTS)
    means = {name: Interval(50.0, 1.0, 3) for name in COSTS}

    def judged(**gaps):
        found = {name: Difference(gap := Interval(mean, 0.2, 3), verdict(gap)) for name, mean in gaps.items()}
        return tradeoff._judge(means, costs, found)

    answer, holds = judged(t3a=-3.0, lame=-2.0)
    assert answer.endswith("more accurate: none; faster: none; leaner: none")
    assert holds == "yes"
    answer, holds = judged(t3a=-3.0, lame=0.1)
    assert answer.endswith("it is unclear whether NEO is more accurate than lame")
    assert holds == "unclear"
    answer, holds = judged(t3a=-3.0, lame=2.0)
    assert "more accurate: lame; faster: none" in answer
    assert holds == "partly"


def test_memory_may_be_unknown_and_methods_may_be_missing(tmp_path):
    evidence = costed(
        tmp_path, {name: (ms, None) for name, (ms, _) in COSTS.items()}, methods=["none", "neo"], seeds=[1]
    )
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.holds == "unclear"
    assert "one is missing" in finding.answer
    (figure,) = finding.parts
    assert [row["peak_memory"] for row in figure.data] == [None, None]
    assert all(row["half_width"] > 1 for row in figure.data)
    assert figure.png().startswith(b"\x89PNG")


def test_nothing_measured_is_said(tmp_path):
    finding = ITEM.find(costed(tmp_path, {}))
    assert finding.answer == "Nothing could be measured."
    assert (finding.holds, finding.parts) == ("unclear", [])
