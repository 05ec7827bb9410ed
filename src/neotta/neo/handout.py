"""Values for the samples of a block, handed out in order as batches need them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from neotta.errors import InputError

Values = TypeVar("Values", bound=Any)


class Taker(Protocol):
    """Who takes values: a memory. Each of them starts with the first value."""

    def checkpoint(self) -> Callable[[], None]:
        """Remember the state; the function that is returned goes back to it."""


class Handout(Generic[Values]):
    """One value per sample, for the calls inside a `with` block.

    A batch of as many samples as there are values takes all of them, any number of times. Smaller batches, as those a
    pipeline splits its input into, take them in order.

    Args:
        values: A sequence that can be sliced.
        what: What they are, in the plural, for messages.
    """

    def __init__(self, values: Values, what: str) -> None:
        self.values = values
        self._what = what
        self._places: dict[Any, int] = {}
        self._undo: dict[Any, Callable[[], None]] = {}

    def take(self, samples: int, taker: Taker) -> Values:
        """The values of the next batch of a taker."""
        taken = self.peek(samples, taker)
        if samples < len(self.values):
            if taker not in self._undo:
                self._undo[taker] = taker.checkpoint()
            self._places[taker] = (self._places.get(taker, 0) + samples) % len(self.values)
        return taken

    def peek(self, samples: int, taker: Taker) -> Values:
        """The values of the next batch of a taker, which `take` will give it."""
        given, start = len(self.values), self._places.get(taker, 0)
        if samples > given - start:
            used = f", {start} of which are used" if start else ""
            raise InputError(f"got {given} {self._what} for a batch of {samples}{used}: pass one per sample")
        chosen: Values = self.values[start : start + samples]
        return chosen

    def finish(self) -> None:
        """Check that every taker has taken all values.

        Raises:
            InputError: Some are left. The states of the takers are then what they were before the block.
        """
        for place in self.undo():
            raise InputError(
                f"got {len(self.values)} {self._what}, and the calls inside the block used only {place} of them: pass "
                "one per sample. What these calls had added is undone"
            )

    def undo(self) -> list[int]:
        """Undo the calls of the takers that have taken some values and not all; returns how many each had taken."""
        left = {taker: place for taker, place in self._places.items() if place}
        for taker in left:
            self._undo[taker]()
        return list(left.values())


@contextlib.contextmanager
def handing_out(handout: Handout[Values], place: ContextVar[Handout[Values] | None]) -> Iterator[None]:
    """Set a context variable for a block; if the values do not fit the calls inside it, these are undone.

    Raises:
        InputError: Some values are left.
    """
    token = place.set(handout)
    try:
        yield
    except InputError:
        handout.undo()
        raise
    finally:
        place.reset(token)
    handout.finish()
