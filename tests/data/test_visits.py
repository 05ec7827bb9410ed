"""Orders that visit domains again, and severities that rise and fall."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.data import orders
from neotta.errors import DataError, OptionError

LABELS = np.arange(200) % 10
LEVELS = {f"{kind}/{level}": LABELS for kind in ("fog", "snow") for level in (5, 3, 1)}


def visited(order):
    return [name for name, _ in itertools.groupby(order.domains[domain] for domain in order.domain)]


@given(st.integers(0, 999), st.integers(1, 4), st.booleans())
def test_the_sequence_comes_several_times_over(seed, rounds, redraw):
    data = {"fog": LABELS, "snow": LABELS, "frost": LABELS}
    once = orders.continual(data, samples=20, seed=seed)
    order = orders.recurring(data, rounds=rounds, redraw=redraw, samples=20, seed=seed)
    assert visited(order) == visited(once) * rounds
    assert np.array_equal(order.index[:60], once.index)
    if rounds > 1:
        assert np.array_equal(order.index[60:120], once.index) is not redraw
    assert all(len(set(order.domain[batch])) == 1 for batch in order.batches())


def test_labels_are_skewed_within_each_visit():
    order = orders.recurring({"fog": LABELS}, rounds=2, redraw=True, samples=-1, ratio=20.0, delta=0.01)
    half = len(order) // 2
    for part in (order.index[:half], order.index[half:]):
        seen = LABELS[part]
        assert (seen[1:] == seen[:-1]).mean() > 0.5
        counts = np.bincount(seen)
        assert counts.max() >= 10 * counts.min()


def test_severities_rise_and_fall():
    order = orders.gradual(LEVELS, samples=8, shuffle=False)
    climbs = [[f"{kind}/{level}" for level in (1, 3, 5, 3, 1)] for kind in ("fog", "snow")]
    assert visited(order) == climbs[0] + climbs[1]
    counts = {name: int((order.domain == number).sum()) for number, name in enumerate(order.domains)}
    assert {counts["fog/5"], counts["snow/5"]} == {8}  # the top comes once, the others on the way up and down
    assert {counts[f"fog/{level}"] for level in (1, 3)} == {16}
    ones = order.index[order.domain == order.domains.index("fog/1")]
    assert len(ones) == 16
    assert not np.array_equal(ones[:8], ones[8:])  # drawn anew on the way down
    assert {visited(orders.gradual(LEVELS, samples=1, seed=seed))[0] for seed in range(8)} == {"fog/1", "snow/1"}


def test_a_burst_of_a_mixture_holds_several_domains():
    data = {"fog": LABELS, "snow": LABELS}
    order = orders.mixed(data, delta=0.01)
    seen = LABELS[order.index]
    assert (seen[1:] == seen[:-1]).mean() > 0.5
    assert sorted(zip(order.domain, order.index, strict=True)) == list(itertools.product(range(2), range(200)))
    first = seen == seen[0]
    assert set(order.domain[first]) == {0, 1}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: orders.gradual({"fog": 5}), DataError, "'fog' has no severity"),
        (lambda: orders.gradual({"fog/3": 5}), DataError, "several severities, but 'fog' has only 'fog/3'"),
        (lambda: orders.recurring({"fog": 5}, rounds=0, samples=1), OptionError, "rounds"),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
