"""NEO-Stream as a rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from neotta.errors import OptionError
from neotta.neo import stream_exchange, stream_moments
from neotta.neo.class_means import ClassMeans
from neotta.neo.fleet_start import fleet_start
from neotta.neo.label_prior import START
from neotta.neo.moments import COUNTS, as_real, namespace
from neotta.neo.rules import Field, Rule
from neotta.neo.stream_exchange import as_table
from neotta.neo.stream_moments import Constants, StreamMoments

FEWEST_CLASSES = 3  # with two, a shift and a label prior are one number


@dataclass(frozen=True)
class StreamRule(Rule):
    """Re-centering that separates a shift of the domain from the labels of a stream.

    Attributes:
        gate: Minimum skewness of the logits at which the two can be separated: about three visible classes. A lower
            value gains more and harms more.
        stay: Probability that a sticky stream repeats its last label.
        window: The short time scale, in label draws; None to use only all time.
        prior: Use the order of the samples. Set it to False if the order means nothing, as for shuffled requests.
        classes: Each class's own mean logits on clean data, instead of equal peaks (see `neotta.reference`).

    Raises:
        OptionError: An option is out of range.
    """

    space = "logits"
    State = StreamMoments

    gate: float = 0.6
    stay: float = 0.98
    window: float | None = 32.0
    prior: bool = True
    classes: ClassMeans | None = None

    def __post_init__(self) -> None:
        if not _number(self.gate) or not self.gate >= 0.0:
            raise OptionError(f"gate is {self.gate!r}: expected a number of at least 0")
        if not _number(self.stay) or not 0.0 <= self.stay < 1.0:
            raise OptionError(f"stay is {self.stay!r}: expected a probability below 1")
        if self.window is not None and (not _number(self.window) or not self.window > 0):
            raise OptionError(f"window is {self.window!r}: expected a number above 0, or None")
        if not isinstance(self.prior, bool):
            raise OptionError(f"prior is {self.prior!r}: expected True or False")

    @property
    def constants(self) -> Constants:
        """The options as plain constants."""
        return Constants(float(self.gate), float(self.stay), self.window, self.prior, self.classes)

    @property
    def mergeable(self) -> bool:
        """Moments over all time can be merged."""
        return True

    def fields(self, size: int) -> dict[str, Field]:
        """The moments of both time scales, and the state of the label prior."""
        signed = ("mean", "third", "peak", "previous", "shift", "start")
        least = {name: -math.inf if name in signed else 0.0 for name in StreamMoments._fields}
        return {
            name: Field(
                shape,
                "count" if name in COUNTS else "real",
                START if name == "sticky" else 0.0,
                least[name],
                most=1.0 if name == "sticky" else math.inf,
            )
            for name, shape in stream_moments.field_shapes(size).items()
        }

    def take(
        self, state: Any, rows: Any, groups: Any, *, finite: Any, bias: Any, adapt: bool, weights: Any = None
    ) -> tuple[Any, Any]:
        """Add a batch of logits, (N, C); with fewer than three classes nothing is subtracted."""
        xp = namespace(rows)
        asked = xp.ones_like(finite) if weights is None else weights > 0
        counted = finite & asked
        if rows.shape[-1] < FEWEST_CLASSES:
            subtract = xp.zeros_like(rows)
        elif not adapt:
            return state, stream_moments.answer(state, groups, self.constants)
        else:
            learnt = as_real(counted, rows) if weights is None else xp.where(counted, weights, 0.0)
            if xp is not np or not finite.all():
                rows = xp.where(finite[:, None], rows, 0.0)
            state, subtract = stream_moments.step(state, rows, learnt, bias - bias.mean(), groups, self.constants)
        if adapt:
            good, bad = groups.total(counted * 1), groups.total((~finite & asked) * 1)
            state = state._replace(
                count=state.count + good, batches=state.batches + (good > 0), rejected=state.rejected + bad
            )
        return state, subtract

    def merge(self, old: StreamMoments, new: StreamMoments) -> None:
        """Add the moments of `new` to `old`, in place; the window, the labels and the last sample are reset."""
        mine, theirs = (as_table(state) if old.weight.ndim == 1 else state for state in (old, new))
        for column, values in zip(mine, stream_moments.merged(mine, theirs, self.constants), strict=True):
            column[...] = values

    def difference(self, now: StreamMoments, before: StreamMoments) -> StreamMoments:
        """The moments over all time that, merged into `before`, give those of `now`."""
        return _first(stream_exchange.difference(as_table(now), as_table(before)))

    def adopt(self, total: StreamMoments, mine: StreamMoments) -> StreamMoments:
        """The total over all time, with the window, the labels and the last sample of this replica."""
        return _first(stream_exchange.adopted(as_table(total), as_table(mine), self.constants))

    def centre(self, state: StreamMoments) -> Any:
        """The shift, (..., C)."""
        return state.shift

    def start(self, fleet: StreamMoments) -> Any:
        """The shift of other streams, (C,), shrunk by how far they differ."""
        return fleet_start(fleet, self.constants)


def _first(table: StreamMoments) -> StreamMoments:
    return StreamMoments(*(column[0] for column in table))


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value
