"""Metrics by hand: every number of a record on predictions that can be counted with a pencil."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neotta.evaluate.answers import UNKNOWN, PredictionStats, RunResult
from neotta.evaluate.metrics import BINS, Interval, Reliability, interval, metrics, score, verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [10, 15])
def test_a_confidence_on_the_edge_of_a_bin_belongs_to_the_lower_bin(bins, dtype):
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).to(dtype)[1:]
    found = Reliability.of(edges, torch.ones(bins, dtype=torch.bool), bins)
    assert found.samples.tolist() == [1] * bins
    above = torch.nextafter(edges[:-1], torch.tensor(2.0, dtype=dtype))
    assert Reliability.of(above, torch.ones(bins - 1, dtype=torch.bool), bins).samples.tolist() == [0] + [1] * (
        bins - 1
    )


def test_a_confidence_of_zero_is_in_no_bin():
    found = Reliability.of(torch.tensor([0.0, 1e-9, 1.0]), torch.tensor([True, False, True]))
    assert found.samples.tolist() == [1, *[0] * (BINS - 2), 1]
    assert found.accuracy.tolist() == [0.0, *[0.0] * (BINS - 2), 1.0]
    assert math.isnan(Reliability.of(torch.zeros(2), torch.ones(2)).error())
    assert BINS == 15


def test_the_calibration_error_by_hand():
    found = Reliability.of(torch.tensor([0.2, 0.3, 0.9, 0.9]), torch.tensor([1, 0, 1, 1]).bool(), bins=2)
    assert found.samples.tolist() == [2, 2]
    torch.testing.assert_close(found.confidence, torch.tensor([0.25, 0.9]).double())
    assert found.accuracy.tolist() == [0.5, 1.0]
    assert found.error() == pytest.approx((2 * 0.25 + 2 * 0.1) / 4, abs=1e-7)


@given(st.lists(st.tuples(st.floats(2**-10, 1, width=32), st.booleans()), min_size=1, max_size=40))
def test_the_calibration_error_is_its_definition(rows):
    confidence, correct = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    total = 0.0
    for low in range(BINS):
        edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64).float()
        inside = (confidence > edges[low]) & (confidence <= edges[low + 1])
        if inside.any():
            total += abs(float((confidence[inside].double() - correct[inside].double()).sum()))
    assert Reliability.of(confidence, correct).error() == pytest.approx(total / len(rows), abs=1e-9)


@given(st.integers(1, 200), st.integers(0, 99))
def test_bins_of_equal_mass_hold_as_many_samples_each(count, seed):
    confidence = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    correct = torch.rand(count, generator=torch.Generator().manual_seed(seed + 1)) < confidence
    curve = Reliability.of(confidence, correct, equal_mass=True)
    assert int(curve.samples.sum()) == count
    assert int(curve.samples.max() - curve.samples.min()) <= 1
    assert bool((curve.confidence.diff() >= 0).all())
    parts = torch.tensor_split(confidence.argsort(), min(count, BINS))
    gaps = [float((confidence[part].double() - correct[part].double()).sum().abs()) for part in parts]
    assert curve.error() == pytest.approx(sum(gaps) / count)


def test_the_brier_score_is_the_squared_distance_to_the_truth():
    logits, labels = (
        torch.randn(9, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3] * 2 + [UNKNOWN]),
    )
    found = PredictionStats.of(logits, labels).brier
    truth = torch.nn.functional.one_hot(labels[:8], 4)
    torch.testing.assert_close(found[:8], (logits.softmax(1)[:8] - truth).square().sum(1))
    assert bool(found[8].isnan())


def stats():
    """Five predictions over six classes, the last without a label."""
    return PredictionStats(
        labels=torch.tensor([0, 1, 5, 1, UNKNOWN]),
        predicted=torch.tensor([0, 1, 2, 0, 3]),
        confidence=torch.tensor([0.9, 0.8, 0.5, 0.6, 0.2]),
        entropy=torch.tensor([0.1, 0.2, 0.3, 0.4, 1.0]),
        surprise=torch.tensor([0.1, 0.3, 2.0, 1.6, math.nan]),
        in_five=torch.tensor([1.0, 1.0, 0.0, 1.0, math.nan]),
        brier=torch.tensor([0.02, 0.08, 0.9, 1.0, math.nan]),
    )


def test_metrics_by_hand():
    found = metrics(stats())
    assert found == {
        "entropy": pytest.approx(0.4),
        "confidence": pytest.approx(0.6),
        "top1": 50.0,
        "top5": 75.0,
        "ece": pytest.approx((0.1 + 0.2 + 0.5 + 0.6) / 4),
        "ece_equal_mass": pytest.approx((0.1 + 0.2 + 0.5 + 0.6) / 4),
        "nll": pytest.approx(1.0),
        "brier": pytest.approx(0.5),
    }
    unlabelled = stats()._replace(labels=torch.full((5,), UNKNOWN))
    assert set(metrics(unlabelled)) == {"entropy", "confidence"}
    assert metrics(stats().at(torch.zeros(5, dtype=torch.bool))) == {}


def test_a_record_by_hand():
    result = RunResult(list("abcde"), ["fog", "fog", "snow", "fog", "snow"], stats(), unreadable=3, not_adapted=2)
    found = score(result, ("snow", "fog", "rain"))
    assert (found["count"], found["unreadable"], found["not_adapted"]) == (5, 3, 2)
    assert found["metrics"] == metrics(stats())
    assert found["per_class"] == {"class": [0, 1, 5], "right": [1, 1, 0], "samples": [1, 2, 1]}
    assert list(found["per_domain"]) == ["fog", "snow"]
    assert found["per_domain"]["fog"]["top1"] == pytest.approx(200 / 3)
    assert found["per_domain"]["snow"] == metrics(stats().at(torch.tensor([False, False, True, False, True])))
    assert [sum(found["reliability"]["samples"]), len(found["reliability"]["samples"])] == [4, BINS]
    assert found["reliability"]["confidence"][8] == 0.6
    assert found["reliability"]["accuracy"][11] == 1.0
    assert all(value == round(value, 5) for value in found["reliability"]["confidence"])
    one = score(RunResult(list("ab"), ["fog", "fog"], stats().at(torch.tensor([1, 1, 0, 0, 0]).bool())))
    assert "per_domain" not in one
    none = score(RunResult(["e"], ["fog"], stats().at(torch.tensor([0, 0, 0, 0, 1]).bool())))
    assert not {"reliability", "per_class"} & set(none)


def test_rounding_of_the_curve():
    confidence = torch.tensor([0.123456, 0.123457])
    all_stats = stats().at(torch.tensor([1, 1, 0, 0, 0]).bool())._replace(confidence=confidence)
    found = score(RunResult(list("ab"), ["fog", "fog"], all_stats))
    assert found["reliability"]["confidence"][1] == 0.12346


def test_intervals_by_hand():
    assert interval([]) == pytest.approx(Interval(math.nan, math.nan, 0), nan_ok=True)
    assert interval([3.0], 0.0)[:3:2] == (3.0, 1)
    assert math.isnan(interval([3.0], 0.0).half_width)
    found = interval([1.0, 3.0], 0.0)  # t(0.975; 1) = 12.706, standard error 1
    assert (found.mean, found.runs) == (2.0, 2)
    assert found.half_width == pytest.approx(12.7062, abs=1e-3)
    assert interval([1.0, 2.0, 3.0], 0.0).half_width == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)
    half = interval([1.0, 3.0], 0.5)  # the variance times (1 + 0.5) / (1 - 0.5)
    assert half.half_width == pytest.approx(12.7062 * math.sqrt(3), abs=1e-2)
    three = interval([1.0, 2.0, 3.0], 0.5)  # times (1 + 2 * 0.5) / (1 - 0.5)
    assert three.half_width == pytest.approx(4.30265 * math.sqrt(4 / 3), abs=1e-4)
    for shared in (1.0, math.nan):
        assert math.isnan(interval([1.0, 3.0], shared).half_width)
    assert math.isnan(interval([2.0, 2.0], 0.0).half_width)


def test_the_ends_and_the_words_of_an_interval():
    even, uneven, none = Interval(1.0, 0.25, 3), Interval(1.2, 1.2, 3, 0.1, 2.4), Interval(1.0, math.nan, 1)
    assert even.ends == (0.75, 1.25)
    assert uneven.ends == (0.1, 2.4)
    assert (str(even), even.text(2, "+")) == ("1.0 ± 0.2", "+1.00 [+0.75, +1.25]")
    assert uneven.text(1, "+") == "+1.2 [+0.1, +2.4]"
    assert str(none) == "1.0"
    assert Interval(-0.001, math.nan, 1).text(1) == "0.0"
    assert Interval(1.8, 2.1, 3, 0.004, 3.9).text(1, "+") == "+1.8 [+0.004, +3.9]"
    assert Interval(2.5, 2.7, 3, -0.04, 5.2).text(1, "+") == "+2.5 [-0.04, +5.2]"
    assert Interval(0.0, 0.0, 3, 0.0, 0.0).text(1, "+") == "+0.0 [+0.0, +0.0]"


@pytest.mark.parametrize(
    ("low", "high", "least", "expected"),
    [
        (0.1, 2.0, 0.0, "helps"),
        (0.0, 2.0, 0.0, "can't tell"),
        (-2.0, -0.1, 0.0, "hurts"),
        (-2.0, 0.0, 0.0, "can't tell"),
        (0.1, 2.0, 0.5, "can't tell"),
        (0.6, 2.0, 0.5, "helps"),
        (0.1, 0.4, 0.5, "hurts"),
    ],
)
def test_verdicts(low, high, least, expected):
    assert verdict(Interval((low + high) / 2, 1.0, 3, low, high), least) == expected


def test_the_least_difference_is_none():
    assert verdict(Interval(1.0, 1.0, 3, 0.001, 2.0)) == "helps"
    assert verdict(Interval(-1.0, 1.0, 3, -2.0, -0.001)) == "hurts"
