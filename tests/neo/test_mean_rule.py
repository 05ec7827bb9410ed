"""NEO's rule against plain means in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.errors import OptionError
from neotta.neo.mean import MeanRule, MovingMeanRule

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=6)
D = 5


def run(rule, batches, weights=None):
    """The states after batches, (B, d) each, and what was subtracted in each call."""
    states, offsets = rule.layout(D).blank(), []
    for turn, batch in enumerate(batches):
        given_weights = None if weights is None else torch.tensor(weights[turn])[None]
        states, offset = rule.update(states, torch.tensor(batch)[None], given_weights, torch.zeros(1))
        offsets.append(offset[0].numpy())
    return states, offsets


def random_batches(sizes, seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, D)) + 2 for size in sizes], [rng.choice([0.0, 0.3, 2.0], n) for n in sizes]


@settings(max_examples=40)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_every_sample_counts_equally(sizes, seed):
    batches, _ = random_batches(sizes, seed)
    states, offsets = run(MeanRule(), batches)
    for turn, offset in enumerate(offsets):
        np.testing.assert_allclose(offset, np.concatenate(batches[: turn + 1]).mean(0)[None], rtol=1e-12)
    assert states[0, :4].tolist() == [sum(sizes), 0, 0, sum(sizes)]


@settings(max_examples=40)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_rows_have_weights(sizes, seed):
    batches, weights = random_batches(sizes, seed)
    rows, all_weights = np.concatenate(batches), np.concatenate(weights)
    states, _ = run(MeanRule(), batches, weights)
    if all_weights.any():
        expected = np.average(rows, 0, all_weights)
        np.testing.assert_allclose(MeanRule().offset(states)[0], expected, rtol=1e-10)
    else:
        assert not MeanRule().offset(states).any()
    assert states[0, 0] == (all_weights > 0).sum()


@settings(max_examples=40)
@given(sizes=SIZES, seed=st.integers(0, 1000), weighted=st.booleans())
def test_every_batch_counts_equally(sizes, seed, weighted):
    batches, weights = random_batches(sizes, seed)
    rule = MeanRule(weighting="batch")
    states, _ = run(rule, batches, weights if weighted else None)
    used = [
        np.average(batch, 0, weight if weighted else None)
        for batch, weight in zip(batches, weights, strict=True)
        if weight.any() or not weighted
    ]
    expected = np.mean(used, 0) if used else np.zeros(D)
    np.testing.assert_allclose(rule.offset(states)[0], expected, rtol=1e-10, atol=1e-12)


@settings(max_examples=40)
@given(sizes=SIZES, seed=st.integers(0, 1000), alpha=st.sampled_from([0.0, 0.1, 0.5, 1.0]), debias=st.booleans())
def test_a_moving_average_of_batches(sizes, seed, alpha, debias):
    batches, _ = random_batches(sizes, seed)
    rule = MovingMeanRule(alpha=alpha, debias=debias)
    _, offsets = run(rule, batches)
    count = len(sizes)
    shares = alpha * (1 - alpha) ** np.arange(count - 1, -1, -1.0)
    expected = shares @ np.array([batch.mean(0) for batch in batches])
    if debias and alpha > 0:
        expected = expected / (1 - (1 - alpha) ** count)
    np.testing.assert_allclose(offsets[-1][0], expected, rtol=1e-10, atol=1e-12)
    assert not rule.mergeable


@settings(max_examples=40)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_james_stein_shrinks_by_its_formula(sizes, seed):
    batches, _ = random_batches(sizes, seed)
    rows = np.concatenate(batches)
    n, mean = len(rows), rows.mean(0)
    states, _ = run(MeanRule(shrinkage="james-stein"), batches)
    expected = np.zeros(D)
    if n > 1:
        noise = rows.var(0, ddof=1).sum() / n
        expected = max(0.0, 1 - noise / (mean @ mean)) * mean
    np.testing.assert_allclose(MeanRule(shrinkage="james-stein").offset(states)[0], expected, rtol=1e-8, atol=1e-10)


RULES = [MeanRule(), MeanRule(weighting="batch"), MovingMeanRule(alpha=0.3), MeanRule(shrinkage="james-stein")]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_bad_rows_and_rows_of_no_weight_leave_no_trace(rule):
    rows = np.random.default_rng(0).standard_normal((8, D))
    clean, _ = run(rule, [rows[:3], rows[3:]])
    for bad in (math.nan, math.inf, 2e6):
        dirty = [np.insert(rows[:3], [0, 2], bad, 0), np.insert(rows[3:], 5, bad, 0), np.full((2, D), bad)]
        states, _ = run(rule, dirty)
        assert states[0, :2].tolist() == [8, 5]
        torch.testing.assert_close(states[:, 3:], clean[:, 3:])
        light, _ = run(rule, dirty, [[0.0, 1.0, 1.0, 0.0, 1.0], [1.0] * 5 + [0.0], [0.0, 0.0]])
        torch.testing.assert_close(light, clean)


@pytest.mark.parametrize("rule", [RULES[0], RULES[1], RULES[3]], ids=str)
def test_merging_is_adding(rule):
    rng, layout = np.random.default_rng(0), rule.layout(D)
    parts = [[rng.standard_normal((n, D)) + 1 for n in sizes] for sizes in ((3, 1), (4,), ())]
    (a, _), (b, _), (empty, _) = (run(rule, part) for part in parts)
    both, _ = run(rule, parts[0] + parts[1])
    torch.testing.assert_close(rule.merged(a, b, layout), both)
    torch.testing.assert_close(rule.merged(b, a, layout), both)
    assert torch.equal(rule.merged(a, empty, layout), a)


def test_streams_in_one_call_are_independent():
    rows = torch.randn(3, 4, D, dtype=torch.float64)
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    for rule in RULES:
        states, offsets = rule.update(rule.layout(D).blank(3), rows, mask, torch.zeros(1))
        for stream, count in enumerate((4, 1, 0)):
            alone, offset = (
                rule.update(rule.layout(D).blank(), rows[stream : stream + 1, :count], None, torch.zeros(1))
                if count
                else (rule.layout(D).blank(), torch.zeros(1, 1, D).double())
            )
            torch.testing.assert_close(states[stream], alone[0])
            torch.testing.assert_close(offsets[stream], offset[0])


def test_the_sum_of_a_million_samples_is_exact_enough():
    rule = MeanRule()
    states, rows = rule.layout(1).blank(), torch.full((1, 1000, 1), 1e6 / 3, dtype=torch.float64)
    for _ in range(1000):
        states, _ = rule.update(states, rows, None, torch.zeros(1))
    np.testing.assert_allclose(rule.offset(states).item(), 1e6 / 3, rtol=1e-12)


def test_wrong_options():
    for method, wrong, match in [
        ("neo", {"weighting": "row"}, "weighting"), ("neo", {"shrinkage": "stein"}, "shrinkage"),
        ("neo", {"weighting": "batch", "shrinkage": "james-stein"}, "shrinkage depends on the number of samples"),
        ("neo", {"alpha": 0.1, "shrinkage": "james-stein"}, "alpha"), ("neo", {"debias": True}, "debias"),
        ("neo-continual", {"alpha": 2.0}, "alpha"), ("neo-continual", {"alpha": True}, "alpha"),
        ("neo-continual", {"alpha": math.nan}, "alpha"),
    ]:  # fmt: skip
        with pytest.raises(OptionError, match=match):
            neotta.adapt(nn.Sequential(nn.Linear(3, 4)), method, **wrong)
