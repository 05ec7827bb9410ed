"""What replicas exchange of NEO-Stream: the moments over all time, which add up.

The window, the labels and the last sample belong to the replica that saw them.
"""

from __future__ import annotations

from typing import Any

from neotta.neo.moments import COUNTS, namespace
from neotta.neo.shift_estimate import EVER, LATELY, shift_of
from neotta.neo.stream_moments import SUMS, Central, Constants, StreamMoments

_SCALES = (*Central._fields, *SUMS)  # the fields of both time scales


def difference(now: StreamMoments, before: StreamMoments) -> StreamMoments:
    """The moments over all time that, merged into `before`, give `now`; everything else is 0."""
    xp = namespace(now.mean)
    mine, theirs = (Central(*(getattr(state, name)[:, EVER] for name in Central._fields)) for state in (now, before))
    parts = _without(mine, theirs)._asdict()
    # Responsibilities age by the share of the older samples, which multiplies up to this.
    aged = theirs.weight / xp.where(mine.weight > 0, mine.weight, 1.0)
    for name in SUMS:
        new, old = getattr(now, name)[:, EVER], getattr(before, name)[:, EVER]
        kept = 1.0 if name == "squares" else aged if new.ndim == 1 else aged[:, None]
        parts[name] = new - old * kept if name == "peak" else (new - old * kept).clip(min=0.0)
    nothing = {name: getattr(now, name) * 0 for name in StreamMoments._fields}
    scales = {name: xp.stack([values, values * 0.0], 1) for name, values in parts.items()}
    counts = {name: getattr(now, name) - getattr(before, name) for name in COUNTS}
    return StreamMoments(**{**nothing, **scales, **counts})


def adopted(total: StreamMoments, mine: StreamMoments, use: Constants) -> StreamMoments:
    """The moments of all replicas over all time, with the window, the labels and the last sample of this one."""
    xp = namespace(total.mean)
    scales = {name: xp.stack([getattr(total, name)[:, EVER], getattr(mine, name)[:, LATELY]], 1) for name in _SCALES}
    counts = {name: getattr(total, name) for name in COUNTS}
    state = mine._replace(**scales, **counts)
    return state._replace(shift=shift_of(state, use))


def _without(total: Central, part: Central) -> Central:
    """The samples of `total` that are not in `part`."""
    weight = (total.weight - part.weight).clip(min=0.0)
    some = namespace(weight).where(weight > 0, weight, 1.0)[:, None]
    whole = namespace(weight).where(total.weight > 0, total.weight, 1.0)[:, None]
    n, m = part.weight[:, None], weight[:, None]
    known = 1.0 * (m > 0)
    mean = known * (part.mean + (total.mean - part.mean) * whole / some)
    step = known * (mean - part.mean)
    second = known * (total.second - part.second - step**2 * n * m / whole).clip(min=0.0)
    third = total.third - part.third - step**3 * n * m * (n - m) / whole**2
    return Central(weight, mean, second, known * (third - 3 * step * (n * second - m * part.second) / whole))


def as_table(state: Any) -> StreamMoments:
    """One stream as a table of one."""
    return StreamMoments(*(column[None] for column in state))
