"""Where a new stream begins: at the shift of the fleet, instead of at none.

A camera that has seen one frame cannot tell a shift from a label, but the other cameras of the fleet, taken together,
often can: one may show two classes, all of them show many. So their moments are pooled, and the shift of the pool is
estimated as that of one stream. It is shrunk by how far the streams differ: where half of the cameras are in fog, the
others' shift says nothing about a new one.

No single stream has much influence: its weight is bounded, and streams far from the others are left out.
"""

from __future__ import annotations

from typing import Any

from neotta.neo.moments import namespace
from neotta.neo.shift_estimate import EVER, estimates, mix_of_classes
from neotta.neo.stream_moments import Constants, StreamMoments

FEWEST_STREAMS = 8  # smaller fleets begin plain
LEAST_WEIGHT = 2.0  # label draws that a stream needs to be asked
MOST_WEIGHT = 32.0  # label draws that a stream counts as, at most
FAR = 3.0  # streams beyond this many typical distances are left out


def fleet_start(fleet: StreamMoments, use: Constants) -> Any:
    """The shift that a new stream begins with, (C,); zeros if the fleet is too small or too different.

    Args:
        fleet: The moments of other streams, (S, ...).
        use: The constants of the rule.
    """
    xp = namespace(fleet.mean)
    nothing = xp.zeros_like(fleet.shift[:1])[0] if len(fleet.weight) else fleet.shift.sum(0)
    asked = fleet.weight[:, EVER] >= LEAST_WEIGHT
    if int(asked.sum()) < FEWEST_STREAMS:
        return nothing
    fleet = _rows(fleet, asked)
    fleet = _rows(fleet, _ordinary(fleet))
    if len(fleet.weight) < FEWEST_STREAMS:
        return nothing
    pool = _pooled(fleet)
    shift = estimates(pool, use).step(EVER, pool.shift * 0.0)[0]
    length = (shift * shift).sum()
    if not float(length) > 0.0:
        return nothing
    return shift * (1 - _spread(fleet, pool, shift, use) / length).clip(min=0.0)


def _rows(state: StreamMoments, which: Any) -> StreamMoments:
    return StreamMoments(*(column[which] for column in state))


def _ordinary(fleet: StreamMoments) -> Any:
    """Which streams are near the others in mean and variance, (S,)."""
    xp = namespace(fleet.mean)
    mean = fleet.mean[:, EVER]
    variance = fleet.second[:, EVER].sum(-1) / fleet.weight[:, EVER]
    away = xp.sqrt(((mean - _median(mean)) ** 2).sum(-1))
    return (away <= FAR * _median(away)) & (variance <= FAR**2 * _median(variance))


def _median(values: Any) -> Any:
    """The middle value over the streams, (S, ...) to (...)."""
    ordered = namespace(values).sort(values, 0)
    ordered = getattr(ordered, "values", ordered)
    return (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def _pooled(fleet: StreamMoments) -> StreamMoments:
    """The moments of all streams over all time as one stream, (1, ...), each with a bounded weight."""
    xp = namespace(fleet.mean)
    weight = fleet.weight[:, EVER].clip(max=MOST_WEIGHT)
    scaled = (weight / fleet.weight[:, EVER])[:, None]
    column, trust = weight[:, None], fleet.trust[:, EVER]
    mean = (column * fleet.mean[:, EVER]).sum(0) / weight.sum()
    away = fleet.mean[:, EVER] - mean
    second, third = scaled * fleet.second[:, EVER], scaled * fleet.third[:, EVER]
    sums = {
        "weight": weight.sum(),
        "squares": (weight * weight).sum(),
        "mean": mean,
        "second": (second + column * away**2).sum(0),
        "third": (third + 3 * away * second + column * away**3).sum(0),
        "predicted": (column * fleet.predicted[:, EVER] / trust[:, None]).sum(0),
        "peak": (weight * fleet.peak[:, EVER] / trust).sum(),
        "trust": weight.sum(),
    }
    one = _rows(fleet, slice(0, 1))
    return one._replace(**{name: xp.stack([value, value * 0.0])[None] for name, value in sums.items()})


def _spread(fleet: StreamMoments, pool: StreamMoments, shift: Any, use: Constants) -> Any:
    """How far the shifts of single streams are from that of the fleet: the mean squared distance beyond noise, ()."""
    weight, trust = fleet.weight[:, EVER], fleet.trust[:, EVER]
    share = fleet.predicted[:, EVER] / trust[:, None]
    mix, _, _ = mix_of_classes(share, fleet.peak[:, EVER] / trust, use.classes)
    rest = fleet.mean[:, EVER] - mix - shift
    variance = (fleet.second[:, EVER].sum(-1) / weight).mean()
    noise = variance / weight.clip(max=MOST_WEIGHT)
    distance: Any = (rest * rest).sum(-1) - noise
    return distance.mean().clip(min=0.0)
