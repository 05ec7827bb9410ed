"""NEO-Stream as a rule: its options, what it remembers, and how a batch is taken in."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

from neotta.errors import OptionError
from neotta.neo import stream_moments
from neotta.neo.moments import namespace
from neotta.neo.stream_moments import Constants, StreamGroups, StreamMoments

FEWEST_CLASSES = 3  # with two, a shift and a label prior are one number


@dataclass(frozen=True)
class StreamRule:
    """Re-centering that tells a shift of the domain from the labels of a stream.

    Attributes:
        gate: Least skewness of the logits at which the two can be told apart: about three visible classes. Lower gains
            more and harms more.
        stay: Probability that the next label of a sticky stream is the last one again.
        window: The short time scale, in label draws; None for all time alone.
        prior: Use the order of the samples. False for samples whose order means nothing, such as shuffled requests.

    Raises:
        OptionError: An option is out of range.
    """

    gate: float = 0.6
    stay: float = 0.98
    window: float | None = 32.0
    prior: bool = True

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
        """What the functions on moments take."""
        return Constants(float(self.gate), float(self.stay), self.window, self.prior)

    def step(
        self, state: StreamMoments, logits: Any, weights: Any, bias: Any, groups: StreamGroups, adapt: bool = True
    ) -> tuple[StreamMoments, Any]:
        """Take in a batch of finite logits, (N, C), and return the state and what to subtract from each row, (N, C).

        Args:
            state: The moments of the K streams of the batch.
            logits: In order of arrival.
            weights: How much each row counts, (N,).
            bias: The bias of the head, (C,).
            groups: Which stream each row belongs to.
            adapt: Whether the batch is taken in; if not, the state stays as it is.
        """
        if logits.shape[-1] < FEWEST_CLASSES:
            return state, namespace(logits).zeros_like(logits)
        if not adapt:
            return state, stream_moments.answer(state, groups, self.constants)
        return stream_moments.step(state, logits, weights, bias - bias.mean(), groups, self.constants)

    def merged(self, one: StreamMoments, other: StreamMoments) -> StreamMoments:
        """The moments of two states together; the window, the labels and the last sample start anew."""
        return stream_moments.merged(one, other, self.constants)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value
