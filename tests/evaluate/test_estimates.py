"""Intervals of metrics that are made from how sure the answers were."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from neotta.evaluate.answers import Answers
from neotta.evaluate.estimates import METRICS, difference_of, mean_of
from neotta.evaluate.metrics import Reliability


def row(confidence, right, images=None):
    """A row of the frame: answers, and the metrics of them."""
    import torch

    count, nothing = len(right), np.zeros(len(right), dtype=np.int64)
    images = np.arange(count) if images is None else images
    sure = {"confidence": confidence, "nll": -np.log(confidence), "brier": (confidence - right) ** 2}
    answers = Answers(right, np.ones(count, bool), ("d",), nothing, images, images, nothing, sure)
    both = torch.from_numpy(confidence), torch.from_numpy(right)
    errors = {"ece": Reliability.of(*both).error(), "ece_equal_mass": Reliability.of(*both, equal_mass=True).error()}
    means = {name: float(values.mean()) for name, values in sure.items() if name != "confidence"}
    return SimpleNamespace(answers=answers, held_out=False, **errors, **means)


def drawn(rng, overconfident, count=400, images=None):
    """Answers that are less often right than the method says."""
    confidence = rng.uniform(0.3, 0.999, count)
    return row(confidence, rng.random(count) < confidence - overconfident, images)


def test_the_interval_of_a_mean_is_that_of_its_images():
    each = drawn(np.random.default_rng(0), 0.1)
    found = mean_of([[each]], METRICS["brier"])
    assert found.mean == pytest.approx(each.brier)
    error = each.answers.sure["brier"].std(ddof=1) / 20
    assert found.half_width == pytest.approx(1.96 * error, rel=0.15)


@pytest.mark.parametrize("metric", ["ece", "ece_equal_mass", "nll", "brier"])
def test_one_seed_gives_an_interval_and_a_verdict(metric):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 0.999, 600)
    right = rng.random(600) < confidence
    bold = np.clip(confidence + 0.3, 0, 0.999)
    gap = difference_of([[(row(bold, right), row(confidence, right))]], METRICS[metric])
    assert gap.verdict == ("helps" if metric == "nll" and gap.interval.mean < 0 else "hurts")
    assert gap.pvalue < 0.01
    assert mean_of([[row(bold, right)]], METRICS[metric]).half_width > 0


def test_equal_methods_seldom_differ():
    rng, false = np.random.default_rng(0), 0
    for _ in range(60):
        pairs = [[(drawn(rng, 0.1), drawn(rng, 0.1))] for _ in range(3)]
        false += difference_of(pairs, METRICS["ece"]).verdict != "can't tell"
    assert false <= 7


def test_runs_that_vary_by_themselves_widen_it():
    rng = np.random.default_rng(0)
    alike = mean_of([[drawn(rng, 0.1)] for _ in range(3)], METRICS["ece"])
    apart = mean_of([[drawn(rng, shift)] for shift in (0.0, 0.1, 0.3)], METRICS["ece"])
    assert apart.half_width > 3 * alike.half_width


def test_without_confidences_there_is_no_interval_from_one_run():
    each = drawn(np.random.default_rng(0), 0.1)
    each.answers.sure.clear()
    assert np.isnan(mean_of([[each]], METRICS["ece"]).half_width)


@pytest.mark.parametrize("metric", ["top1", "ece", "nll"])
def test_fewer_than_thirty_answers_are_too_few(metric):
    def told(count):
        sure, known = np.linspace(0.8, 0.99, count), METRICS[metric]
        mine, theirs = row(sure, np.ones(count, bool)), row(sure / 2, np.zeros(count, bool))
        mine.top1, theirs.top1 = 100.0, 0.0
        gap = difference_of([[(mine, theirs)]], known)
        return gap.verdict, known.text(gap.interval, "+"), known.text(mean_of([[mine]], known))

    verdict, *texts = told(29)
    assert verdict == "can't tell"
    assert all(text.endswith(" (too few)") for text in texts)
    verdict, *texts = told(30)
    assert verdict == "helps"
    assert not any("few" in text for text in texts)
