from __future__ import annotations

import numpy as np
import pytest
from support.small_studies import costed, made_up_cost

from neotta.evaluate.metrics import Interval
from neotta.paper.item import chosen
from neotta.paper.items import resources
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
        assert row["milliseconds_per_image"] == pytest.approx(milliseconds)
        assert row["peak_mebibytes"] == mebibytes
        mine = [record for record in records if record.method == row["method"] and record.domain != "clean"]
        assert len(mine) == 4
        assert row["mean"] == pytest.approx(np.mean([record.metrics["top1"] for record in mine]))


def test_it_is_honest_about_what_is_faster_leaner_or_more_accurate(tmp_path):
    evidence = costed(tmp_path, {**COSTS, "t3a": (0.5, 303), "lame": (2.0, 200)})
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    accuracy = {row["method"]: row["mean"] for row in finding.parts[0].data}
    better = [name for name in ("lame", "t3a") if accuracy[name] > accuracy["neo"]]
    assert better == []
    assert "more accurate: none; faster: T3A; leaner: LAME (as lean: T3A)." in finding.answer
    assert f"NEO reaches {accuracy['neo']:.1f} % in 1.01 ms per image with 301 MiB" in finding.answer
    assert finding.holds == "no"  # whatever the methods that are missing cost


@pytest.mark.parametrize(
    ("t3a", "said", "holds"),
    [
        ((0.95, 298), "faster: none (as fast: T3A); leaner: none (as lean: T3A)", "no"),
        ((1.2, 298), "faster: none; leaner: none (as lean: T3A)", "no"),
        ((1.2, 380), "faster: none; leaner: none", "yes"),
    ],
)
def test_a_tie_is_a_tie(t3a, said, holds):
    costs = {name: made_up(name, *cost) for name, cost in {**COSTS, "t3a": t3a, "neo": (1.0, 303)}.items()}
    worse = Interval(-3.0, 0.2, 3)
    means = {name: Interval(50.0, 1.0, 3) for name in COSTS}
    answer, held = resources._ahead_in_all(means, costs, {"t3a": worse, "lame": worse})
    assert answer.endswith(f"more accurate: none; {said}")
    assert held == holds


def made_up(name, milliseconds, mebibytes):
    return made_up_cost(name, milliseconds, mebibytes)


def test_a_busy_machine_tells_nothing(tmp_path):
    evidence = costed(tmp_path, {**COSTS, "none": (1.25, 300), "t3a": (0.5, 303)})  # the model alone: 1 ms
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.answer.endswith("differs by a factor of 1.25: the machine was busy.")


def test_accuracies_differ_only_beyond_chance():
    costs = {name: made_up(name, *cost) for name, cost in {**COSTS, "t3a": (1.2, 400)}.items()}
    means = {name: Interval(50.0, 1.0, 3) for name in COSTS}

    def judged(**gaps):
        found = {name: Interval(mean, 0.2, 3) for name, mean in gaps.items()}
        return resources._ahead_in_all(means, costs, found)

    answer, holds = judged(t3a=-3.0, lame=-2.0)
    assert answer.endswith("more accurate: none; faster: none; leaner: none")
    assert holds == "yes"
    answer, holds = judged(t3a=-3.0, lame=0.1)
    assert answer.endswith("it is unclear whether NEO is more accurate than LAME")
    assert holds == "unclear"
    answer, holds = judged(t3a=-3.0, lame=2.0)
    assert "more accurate: LAME; faster: none" in answer
    assert holds == "no"


def test_memory_may_be_unknown_and_methods_may_be_missing(tmp_path):
    evidence = costed(
        tmp_path, {name: (ms, None) for name, (ms, _) in COSTS.items()}, methods=["none", "neo"], seeds=[1]
    )
    evidence.gather([ITEM])
    finding = ITEM.find(evidence)
    assert finding.holds == "not judged"
    assert "one is missing" in finding.answer
    (figure,) = finding.parts
    assert [row["peak_mebibytes"] for row in figure.data] == [None, None]
    assert all(row["half_width"] > 1 for row in figure.data)
    assert figure.png().startswith(b"\x89PNG")


def test_nothing_measured_is_said(tmp_path):
    finding = ITEM.find(costed(tmp_path, {}))
    assert finding.answer == "Nothing could be measured."
    assert (finding.holds, finding.parts) == ("unclear", [])
