"""Rules: the weight of a new batch, and the vector that is subtracted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from neotta.errors import OptionError
from neotta.neo import moments
from neotta.neo.moments import COUNTS, Groups, Moments, Squares

Weighting = Literal["sample", "batch"]
Shrinkage = Literal["james-stein"]
FleetStart = Literal["plain", "fleet"]


class Field(NamedTuple):
    """A field of the state of a stream.

    Attributes:
        shape: Shape for one stream.
        kind: `"count"` is an integer; `"real"` has the most precise floating point dtype; so has `"narrow"`, but
            float32 in a table of many streams.
        start: Initial value.
        least: Smallest valid value; counts are never negative.
        most: Largest valid value.
        optional: Whether a saved state may lack it, and then starts with the initial value.
    """

    shape: tuple[int, ...]
    kind: Literal["count", "real", "narrow"] = "real"
    start: float = 0.0
    least: float = -math.inf
    optional: bool = False
    most: float = math.inf


class Rule(ABC):
    """How the vectors to subtract are computed from the moments of streams.

    Attributes:
        space: Whether rows are embeddings (the input of the head) or logits (its output).
        State: The state, a named tuple of arrays that include `count`, `batches` and `rejected`.
    """

    space: ClassVar[Literal["embeddings", "logits"]]
    State: ClassVar[Any]

    @property
    @abstractmethod
    def mergeable(self) -> bool:
        """Whether states can be merged."""

    @abstractmethod
    def fields(self, size: int) -> dict[str, Field]:
        """The fields of a stream of vectors of this length, in the order of `State`."""

    @abstractmethod
    def take(
        self, state: Any, rows: Any, groups: Groups, *, finite: Any, bias: Any, adapt: bool, weights: Any = None
    ) -> tuple[Any, Any]:
        """Add a batch.

        Args:
            state: The moments of the streams of the batch, which may be changed in place.
            rows: (N, d) or (N, C), in order of arrival.
            groups: Which stream each row belongs to.
            finite: Which rows are finite, (N,); None if all are. The others only change `rejected`.
            bias: Bias of the head, (C,), if it has one.
            adapt: Whether to add the batch; if not, the state does not change.
            weights: How much each row counts, (N,), at least 0; None for 1 each. Rows of weight 0 change nothing.

        Returns:
            The new state, and what to subtract from each row: (N, ...) or a shape that broadcasts to it.
        """

    @abstractmethod
    def merge(self, old: Any, new: Any) -> None:
        """Add the samples of `new` to `old`, in place."""

    @abstractmethod
    def difference(self, now: Any, before: Any) -> Any:
        """What `now` has seen since `before`, both of one stream: merged into `before`, it gives what can be merged."""

    def adopt(self, total: Any, mine: Any) -> Any:
        """What a replica of one stream holds after it got the total of all: what cannot be merged stays its own."""
        return total

    @abstractmethod
    def centre(self, state: Any) -> Any:
        """Return the vector to subtract, (..., d) or (..., C); it may be the state's own array."""

    def start(self, fleet: Any) -> Any:
        """Return the shift that a new stream begins with, (C,), given the moments of other streams, (S, ...)."""
        raise NotImplementedError(f"a {type(self).__name__} begins every stream without a shift")


@dataclass(frozen=True)
class MeanRule(Rule):
    """How a centroid is computed from the moments of a stream.

    - `weighting="sample"`: every sample counts equally (NEO);
    - `weighting="batch"`: every batch counts equally (the pseudo-code printed in the paper);
    - `alpha=a`: an exponential moving average of batch means (NEO-Continual). It starts at zero; `debias=True`
      corrects the bias towards that start.

    Attributes:
        weighting: See above.
        alpha: Weight of a new batch in a moving average, in [0, 1].
        debias: Divide the moving average by 1 - (1 - alpha)^t.
        shrinkage: `"james-stein"` scales the mean down while few samples have been seen.
        variance: Track the total variance; shrinkage turns it on.

    Raises:
        OptionError: An option or combination is invalid.
    """

    space = "embeddings"
    State = Moments

    weighting: Weighting = "sample"
    alpha: float | None = None
    debias: bool = False
    shrinkage: Shrinkage | None = None
    variance: bool = False

    def __post_init__(self) -> None:
        if self.weighting not in get_args(Weighting):
            raise OptionError(f"weighting is {self.weighting!r}: expected 'sample' or 'batch'")
        number = isinstance(self.alpha, Real) and not isinstance(self.alpha, bool)
        if self.alpha is not None and not (number and 0.0 <= self.alpha <= 1.0):
            raise OptionError(f"alpha is {self.alpha!r}: expected a number between 0 and 1")
        if self.debias and self.alpha is None:
            raise OptionError("debias needs a moving average: set alpha too")
        if self.shrinkage not in (None, *get_args(Shrinkage)):
            raise OptionError(f"shrinkage is {self.shrinkage!r}: expected None or 'james-stein'")
        if self.shrinkage is not None:
            object.__setattr__(self, "variance", True)
        if self.variance and (self.alpha is not None or self.weighting != "sample"):
            raise OptionError(
                "shrinkage and variance need weighting='sample' and no alpha, as they depend on the number of samples"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> MeanRule:
        """Create a rule from options by name.

        Raises:
            OptionError: An option is unknown, or the combination is invalid.
        """
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in options if name not in known]:
            raise OptionError(f"a NEO head has no option {unknown[0]!r}: it takes {', '.join(known)}")
        return cls(**options)

    @property
    def by(self) -> str:
        """The count that weights a mean when it is merged: samples or batches."""
        return "batches" if self.weighting == "batch" else "count"

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged: a moving average depends on the order of its batches."""
        return self.alpha is None

    @property
    def remembers(self) -> tuple[str, ...]:
        """The moments that the next centroid depends on."""
        more = ["batches"] if self.debias or (self.alpha is None and self.weighting == "batch") else []
        return ("mean", "count", *more, *(["scatter"] if self.variance else []))

    def fields(self, size: int) -> dict[str, Field]:
        """Three counts, the mean, the scatter and the discount of weights."""
        counts = dict.fromkeys(COUNTS, Field((), "count"))
        more = {"scatter": Field((), least=0.0), "discount": Field((), optional=True)}
        return {**counts, "mean": Field((size,), "narrow"), **more}

    def take(
        self, state: Any, rows: Any, groups: Groups, *, finite: Any, bias: Any, adapt: bool, weights: Any = None
    ) -> tuple[Any, Any]:
        """Add a batch of embeddings, and return the centroid of each row's stream.

        Weights are those of the weighted mean. Where every batch counts equally, or in a moving average, they only
        weight the rows within a batch.
        """
        if adapt:
            new = moments.summarise(rows, groups, finite=finite, variance=self.variance, weights=weights)
            moments.combine(state, new, self.share(state, new))
        return state, groups.spread(self.centre(state))

    def share(self, old: Moments, new: Moments) -> Any:
        """Weight of a batch in the new mean, (...); 0 if it has no finite row."""
        if self.alpha is not None:
            return moments.as_real(new.batches, old.mean) * self.alpha
        return self._proportion(old, new)

    def merge(self, old: Moments, new: Moments, squares: Squares = moments.squares) -> None:
        """Add the samples of `new` to `old`, in place and exactly."""
        share = self._proportion(old, new)
        moments.combine(old, new if self.variance else new._replace(scatter=None), share, squares)

    def difference(self, now: Moments, before: Moments) -> Moments:
        """The moments that, merged into `before`, give `now`."""
        return moments.difference(now, before, self.by)

    def _proportion(self, old: Moments, new: Moments) -> Any:
        if self.by == "count":
            return moments.weight_share(old, new)
        return moments.proportion(getattr(old, self.by), getattr(new, self.by), old.mean)

    def centre(self, state: Moments, squares: Squares = moments.squares) -> Any:
        """Return the vector to subtract, (..., d); it may be the state's own mean."""
        if self.shrinkage is not None:
            return state.mean * moments.shrink_factor(state, squares)[..., None]
        if self.debias and self.alpha is not None:
            return state.mean / moments.moving_weight(state.batches, self.alpha, state.mean)[..., None]
        return state.mean
