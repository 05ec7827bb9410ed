"""States: what is remembered of streams, one row of numbers for each; and rules, which learn and use them.

A rule declares every field of its state once: its shape, what it starts with, and how two states merge. All fields of
a stream are columns of one table, (K, width), so copying, saving, sending and merging states are single operations.
The arithmetic is written in torch without branches on values: it runs on every device, compiled, and in ONNX graphs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from neotta.neo.codec import Field
from neotta.neo.reference_file import HeadReference
from neotta.options import Options

LARGEST = 1e6  # rows with larger numbers are rejected like Inf, which keeps sums of third powers exact
TALLIES = ("count", "rejected", "changed")  # the first columns of every state


class Layout:
    """Which columns of a table of states belong to which field.

    Every state begins with `tallies`: the number of samples learnt from, of rows rejected because of NaN or Inf, and of
    answers that differ from plain ones. The `fields` are in the order of the columns.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self.fields = {"tallies": Field((len(TALLIES),), least=0.0), **fields}
        self._sizes, self._shapes = list[int](), list[tuple[int, ...]]()
        self._start = list[float]()
        for field in self.fields.values():
            self._sizes.append(math.prod(field.shape))
            self._shapes.append((-1, *field.shape))
            self._start += [field.start] * self._sizes[-1]
        self.width = sum(self._sizes)

    def blank(self, streams: int = 1, device: torch.device | str | None = None) -> Tensor:
        """States of streams that have seen nothing, (K, width)."""
        return torch.tensor(self._start, dtype=widest(torch.device(device or "cpu")), device=device).repeat(streams, 1)

    def split(self, states: Tensor) -> list[Tensor]:
        """The fields of states, (K, width), as views, (K, ...)."""
        return [*map(Tensor.view, torch.split(states, self._sizes, 1), self._shapes)]

    def join(self, fields: Sequence[Tensor]) -> Tensor:
        """The opposite of `split`."""
        return torch.cat([part.view(len(part), size) for part, size in zip(fields, self._sizes, strict=True)], 1)

    def sums(self, device: torch.device) -> Tensor:
        """Which columns add up in a merge, (width,)."""
        return torch.tensor([f.merge == "sum" for f in self.fields.values() for _ in range(f.size)], device=device)

    def merged(self, one: Tensor, other: Tensor) -> Tensor:
        """States that saw what either saw, (K, width)."""
        return torch.where(self.sums(one.device), one + other, one)


class Rule(Options, ABC):
    """How states learn from samples, and what is subtracted. Its fields are the options of a method."""

    # Whether rows are embeddings (the input of the head) or logits (its output).
    space: ClassVar[Literal["embeddings", "logits"]]
    # Like its layouts, what is no option lies in the `__dict__` of a rule, which compilers can read.
    clean: ClassVar[HeadReference | None] = None

    def knowing(self, clean: HeadReference | None) -> Rule:
        """The same rule where clean data was measured (see `neotta.reference`)."""
        rule = self.model_copy()
        rule.__dict__["clean"] = clean
        return rule

    @property
    def mergeable(self) -> bool:
        """Whether states can be merged."""
        return True

    def size(self, features: int, classes: int) -> int:
        """The length of the vectors that it learns from, at a head with so many inputs and outputs."""
        return classes if self.space == "logits" else features

    @abstractmethod
    def fields(self, size: int) -> dict[str, Field]:
        """The fields of the state of a stream of vectors of this length, after the tallies."""

    def layout(self, size: int) -> Layout:
        """The state of a stream of vectors of this length."""
        layouts: dict[int, Layout] = self.__dict__.setdefault("layouts", {})
        if size not in layouts:
            layouts[size] = Layout(self.fields(size))
        return layouts[size]

    @abstractmethod
    def update(self, states: Tensor, rows: Tensor, weights: Tensor | None, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from samples.

        Args:
            states: States of K streams, (K, width).
            rows: The T samples of each stream in order of arrival, (K, T, d) or (K, T, C).
            weights: How much each row counts, (K, T), at least 0; None for 1 each. Rows of weight 0, NaN, Inf or
                numbers beyond `LARGEST` change nothing but the tallies.
            bias: Bias of the head, (C,).

        Returns:
            The new states, and what to subtract from each row, (K, T, ...) or (K, 1, ...).
        """

    @abstractmethod
    def offset(self, states: Tensor) -> Tensor:
        """What lasts of what is subtracted, and so can be folded into a bias, (K, d) or (K, C)."""

    def standing(self, states: Tensor) -> Tensor:
        """What is subtracted from a sample that is not learnt from, (K, d) or (K, C)."""
        return self.offset(states)

    def merged(self, one: Tensor, other: Tensor, layout: Layout) -> Tensor:
        """States that saw what either saw, (K, width)."""
        return layout.merged(one, other)


def widest(device: torch.device) -> torch.dtype:
    """The most precise floating point dtype of a device."""
    return torch.float32 if device.type == "mps" else torch.float64


def taken(rows: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The rows, with zeros for those that cannot be learnt from, (K, T, d).

    And their weights, which of them count, and which are rejected, all as numbers, (K, T).
    """
    usable = (rows.abs() <= LARGEST).all(-1)
    rows, counted = rows.masked_fill(~usable[..., None], 0.0), usable.to(rows.dtype)
    if weights is None:
        return rows, counted, counted, 1 - counted
    positive = (weights > 0).to(rows.dtype)
    return rows, weights * counted, positive * counted, positive * (1 - counted)
