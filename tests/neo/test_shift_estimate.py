"""The estimate of a shift from moments, number by number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from neotta.neo.shift_estimate import EVER, LATELY, estimates, shift_of
from neotta.neo.stream_rule import StreamRule

C = 4


def by_hand(state, gate, scale):
    """Whether a scale tells a shift, the shift, and the squared error to expect, in plain numbers."""
    part = {name: np.asarray(values)[0, scale].tolist() for name, values in state._asdict().items() if name in SCALED}
    weight, squares, trust = part["weight"], part["squares"], part["trust"] or 1.0
    samples = weight if scale == EVER else min(weight, weight**2 / (squares or 1.0))
    variance, skew = (sum(part[name]) / (weight or 1.0) for name in ("second", "third"))
    told = samples > 1.5 and variance >= 1e-9 and math.sqrt(C) * skew >= gate * variance**1.5
    share, height = [number / trust for number in part["predicted"]], part["peak"] / trust / (1 - 1 / C)
    concentration = sum(number**2 for number in share)
    uneven = max(0.0, concentration - 1 / C) * C / (C - 1)
    misfit = max(0.0, variance - height**2 * (1 - concentration))
    noise = variance / (samples - 1 if samples > 1 else 1.0) + misfit * uneven
    return told, [mean - height * (s - 1 / C) for mean, s in zip(part["mean"], share, strict=True)], noise


SCALED = ("weight", "squares", "mean", "second", "third", "predicted", "peak", "trust")


def random_state(seed, kind):
    rng = np.random.default_rng(seed)
    weight = rng.choice([0.0, 0.3, 0.9, 1.4, 1.5, 1.6, 5.0, 40.0], (1, 2))
    trust = rng.choice([0.0, 0.2, 0.8, 5.0], (1, 2))
    values = {
        name: np.zeros((1, *field.shape), np.int64 if field.kind == "count" else np.float64)
        for name, field in StreamRule().fields(C).items()
    }
    values |= {
        "weight": weight,
        "squares": weight * rng.choice([0.1, 0.6, 1.0, 2.0], (1, 2)),
        "mean": rng.standard_normal((1, 2, C)),
        "second": weight[..., None] * rng.random((1, 2, C)) * rng.choice([1.0, 1e-10], (1, 1, 1)),
        "third": weight[..., None] * rng.random((1, 2, C)) * rng.choice([4.0, 1.0], (1, 1, 1)),
        "predicted": trust[..., None] * rng.dirichlet(np.ones(C), (1, 2)),
        "peak": trust * rng.random((1, 2)) * 2,
        "trust": trust,
        "start": rng.standard_normal((1, C)),
    }
    return StreamRule.State(**{name: kind(array) for name, array in values.items()})


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("window", [None, 32.0])
def test_the_shift_is_what_its_definition_says(kind, window):
    told_once = 0
    for seed in range(60):
        state, rule = random_state(seed, kind), StreamRule(window=window)
        found = estimates(state, rule.constants)
        shift = np.asarray(state.start)[0]
        for scale in (EVER, LATELY):
            told, own, noise = by_hand(state, rule.gate, scale)
            assert bool(found.told[0, scale]) is told, (seed, scale)
            np.testing.assert_allclose(np.asarray(found.shift)[0, scale], own, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(float(found.noise[0, scale]), noise, rtol=1e-12)
            if told and (scale == EVER or window is not None):
                step = own - shift
                shift = shift + max(0.0, 1 - noise / max(1e-12, float(step @ step))) * step
                told_once += 1
        np.testing.assert_allclose(np.asarray(shift_of(state, rule.constants))[0], shift, rtol=1e-12, atol=1e-12)
    assert told_once > 10


def test_without_a_gate_symmetric_logits_tell_a_shift_too():
    state = random_state(0, np.asarray)
    even = state._replace(weight=np.full((1, 2), 8.0), second=np.ones((1, 2, C)), third=np.zeros((1, 2, C)))
    assert estimates(even, StreamRule(gate=0.0).constants).told.all()
    assert not estimates(even, StreamRule(gate=0.1).constants).told.any()
