"""What replicas share of a camera: its moments over all time, which add up in any order.

The window, the label prior and the last sample of `neo-stream` depend on the order of samples and stay with a replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from neotta.errors import OptionError
from neotta.neo.moments import COUNTS
from neotta.neo.rules import MeanRule, Rule
from neotta.neo.shift_estimate import EVER, shift_of
from neotta.neo.statefile import Array
from neotta.neo.stream_moments import StreamMoments
from neotta.neo.stream_rule import StreamRule

_SUMS = ("squares", "predicted", "peak", "trust")


class Shared(NamedTuple):
    """Moments of samples, float64.

    Attributes:
        weight: Sum of the samples' weights, (1,).
        mean: Weighted mean, (D,).
        second: Sums of squared distances to the mean, (D,); or (1,), over all coordinates.
        third: Sums of cubed distances, (D,); or (0,) if the rule needs none.
        sums: What is added up: counts, and what the rule needs.
    """

    weight: Array
    mean: Array
    second: Array
    third: Array
    sums: Array

    def pack(self) -> list[bytes]:
        """The bytes of each, little-endian."""
        return [np.ascontiguousarray(each, "<f8").tobytes() for each in self]

    @classmethod
    def unpack(cls, parts: list[bytes]) -> Shared:
        """Read what `pack` wrote."""
        return cls(*(np.frombuffer(part, "<f8").copy() for part in parts))

    def empty(self) -> Shared:
        """Moments of no sample, of the same size."""
        return Shared(*(np.zeros_like(each) for each in self))


def check_rule(rule: Rule) -> None:
    """Refuse rules whose states do not add up.

    Raises:
        OptionError: It is a moving average.
    """
    if not rule.mergeable:
        raise OptionError("replicas cannot share a moving average, which depends on the order of its batches: use "
                          "neo-stream or neo")  # fmt: skip


def shared_part(rule: Rule, state: Mapping[str, Array]) -> Shared:
    """The moments over all time in the state of a camera (one head), arrays by field."""
    counts = [float(state[name]) for name in COUNTS]
    if isinstance(rule, StreamRule):
        flat = [np.ravel(state[name][EVER]) for name in _SUMS]
        mean, second, third = (np.asarray(state[name][EVER], np.float64) for name in ("mean", "second", "third"))
        return Shared(np.array([state["weight"][EVER]]), mean, second, third, np.concatenate([counts, *flat]))
    discount = float(state.get("discount", np.zeros(())))
    weight = float(state["batches"]) if _mean(rule).weighting == "batch" else float(state["count"]) - discount
    scatter = np.array([state["scatter"]], np.float64)
    return Shared(
        np.array([weight]), np.asarray(state["mean"], np.float64), scatter, np.zeros(0), np.array([*counts, discount])
    )


def with_shared(rule: Rule, state: Mapping[str, Array], shared: Shared) -> dict[str, Array]:
    """The state of a camera with other moments over all time; the rest stays."""
    new = {name: np.array(values) for name, values in state.items()}
    for name, value in zip(COUNTS, shared.sums, strict=False):
        new[name] = np.array(round(float(value)), new[name].dtype)
    if not isinstance(rule, StreamRule):
        new["mean"] = shared.mean.astype(new["mean"].dtype)
        if _mean(rule).variance:
            new["scatter"] = shared.second.reshape(()).astype(new["scatter"].dtype)
        if "discount" in new:
            new["discount"] = np.array(shared.sums[len(COUNTS)], new["discount"].dtype)
        return new
    new["weight"][EVER] = shared.weight[0]
    for name in ("mean", "second", "third"):
        new[name][EVER] = getattr(shared, name)
    place = len(COUNTS)
    for name in _SUMS:
        size = new[name][EVER].size
        new[name][EVER] = shared.sums[place : place + size].reshape(new[name][EVER].shape)
        place += size
    table = StreamMoments(**{name: new[name][None] for name in StreamMoments._fields})
    new["shift"] = np.asarray(shift_of(table, rule.constants))[0]
    return new


def _mean(rule: Rule) -> MeanRule:
    assert isinstance(rule, MeanRule)
    return rule


def join(one: Shared, other: Shared) -> Shared:
    """The moments of both sets of samples; the script in `redis_share` does the same on the server."""
    n, m = one.weight, other.weight
    total = np.where(n + m > 0, n + m, 1.0)
    step = other.mean - one.mean
    apart = step**2 * n * m / total
    third = one.third
    if len(third):
        third = (
            one.third
            + other.third
            + step**3 * n * m * (n - m) / total**2
            + 3 * step * (n * other.second - m * one.second) / total
        )
    between = apart if len(one.second) == len(apart) else apart.sum(keepdims=True)
    return Shared(n + m, one.mean + step * m / total, one.second + other.second + between, third, one.sums + other.sums)


def difference(now: Shared, before: Shared) -> Shared:
    """The moments that, joined to `before`, give `now`; rounding is magnified here, and shrinks again when joined."""
    n, m = before.weight, now.weight - before.weight
    if float(m[0]) <= 0:  # nothing that has weight came
        blank = now.empty()
        return blank._replace(sums=now.sums - before.sums)
    mean = before.mean + (now.mean - before.mean) * (now.weight / m)
    step = mean - before.mean
    apart = step**2 * n * m / now.weight
    between = apart if len(now.second) == len(apart) else apart.sum(keepdims=True)
    second = np.maximum(now.second - before.second - between, 0.0)
    third = now.third
    if len(third):
        third = (
            now.third
            - before.third
            - step**3 * n * m * (n - m) / now.weight**2
            - 3 * step * (n * second - m * before.second) / now.weight
        )
    return Shared(m, mean, second, third, now.sums - before.sums)
