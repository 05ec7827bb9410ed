"""T3A: classify by prototypes, the means of the most certain embeddings seen so far.

Paper: Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization",
NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor
from torch.nn import functional as F

from neotta.adapters._methods import register
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.losses import entropy
from neotta.errors import StateMismatchError
from neotta.neo.state import widest
from neotta.options import Options

NO_FILTER = -1
WARMUP_BATCH = 1024
"""Number of rows of the head that are classified at once, to limit memory when there are many classes."""


class T3AOptions(Options):
    presets: ClassVar = {"original": {"filter_classes": "all"}}

    filter_k: int = Field(
        20, ge=NO_FILTER, description="Supports kept per class, those of the lowest entropy; -1 keeps all."
    )
    filter_classes: Literal["predicted", "all"] = Field(
        "predicted",
        description='Which classes are filtered: the "predicted" ones of the batch or "all". They differ only while a '
        "class has more than filter_k rows of the head and was never predicted.",
    )
    warmup_rows: Literal["all", "kept"] = Field(
        "all", description="Rows of the head to start from when `classes` is given: all, or those of the kept classes."
    )

    @field_validator("filter_k")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise ValueError("no support would be left: it is at least 1, or -1 for no filter")
        return value


@register
class T3A(EmbeddingAdapter[T3AOptions]):
    """Replace the head's weights by prototypes of the most certain embeddings.

    The first supports are the rows of the head. A prediction needs only the sum of the supports of each class; the
    supports themselves are kept if they may be dropped later, that is, if there is a filter.

    Attributes:
        sums: Sum of the supports of each class, each support of length 1, (C, d).
        counts: Number of supports of each class, (C,).
        supports: The supports themselves; None without a filter.
    """

    name = "t3a"
    title = "T3A"
    paper = "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, NeurIPS 2021"
    declaration = Declaration(needs="embeddings", optimization_free=True)
    Options = T3AOptions

    sums: Tensor
    counts: Tensor
    supports: Supports | None

    def _start(self) -> None:
        weight = self.head.weight.detach()
        self.sums = weight.new_zeros(self.num_classes, self.head.in_features, dtype=widest(weight.device))
        self.counts = weight.new_zeros(self.num_classes, dtype=torch.int64)
        self.supports = None if self.options.filter_k == NO_FILTER else Supports(weight)
        rows = weight if self.options.warmup_rows == "all" else self.keep(weight.T).T
        for start in range(0, len(rows), WARMUP_BATCH):
            batch = rows[start : start + WARMUP_BATCH]
            self._add(batch, *self.judge(batch))

    def judge(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """The class that the model predicts for embeddings (B, d), and its entropy; (B,) each."""
        logits = self.classify(embeddings)
        return logits.argmax(dim=1), entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    def _embeddings(self, embeddings: Tensor, adapt: bool) -> Tensor:
        labels, entropies = self.judge(embeddings)
        usable = self.finite_rows(entropies.unsqueeze(1), adapt)  # NaN or Inf in an embedding makes the entropy NaN
        if not bool(usable.all()):
            labels, entropies = labels[usable], entropies[usable]
        if adapt:
            self._add(embeddings if len(labels) == len(usable) else embeddings[usable], labels, entropies)
        prototypes = F.normalize(self._filtered(labels, adapt), dim=1, eps=1e-12)
        return embeddings @ prototypes.to(embeddings.dtype).T

    def _add(self, embeddings: Tensor, labels: Tensor, entropies: Tensor) -> None:
        directions = F.normalize(embeddings.to(entropies.dtype), dim=1, eps=1e-12)
        self.sums.index_add_(0, labels, directions.to(self.sums.dtype))
        self.counts += labels.bincount(minlength=len(self.counts))
        if self.supports is not None:
            self.supports.add(directions, labels, entropies)

    def _filtered(self, predicted: Tensor, adapt: bool) -> Tensor:
        """The sums without the worst supports of overfull classes, (C, d); if adapting, these are dropped."""
        if self.supports is None:
            return self.sums
        overfull = self.counts > self.options.filter_k
        if self.options.filter_classes == "predicted":
            overfull &= predicted.bincount(minlength=len(overfull)) > 0
        if not bool(overfull.any()):
            return self.sums
        slots = self.supports.slots(overfull)
        keep = best(self.supports.labels[slots], self.supports.entropies[slots], self.options.filter_k)
        supports, labels = slots[keep], self.supports.labels[slots[keep]]
        # Summing again, instead of subtracting what is dropped, keeps rounding errors from accumulating.
        sums = self.sums if adapt else self.sums.clone()
        sums[overfull] = 0.0
        sums.index_add_(0, labels, self.supports.directions[supports].to(sums.dtype))
        if adapt:
            self.supports.labels[slots[~keep]] = -1
            self.counts[overfull] = self.options.filter_k
        return sums

    # ---- the state

    def _state(self) -> dict[str, Tensor]:
        state = {"sums": self.sums, "counts": self.counts}
        return state if self.supports is None else {**state, **self.supports.state()}

    def _fits(self, name: str, mine: Tensor, other: Tensor) -> bool:
        if name in ("sums", "counts"):
            return super()._fits(name, mine, other)
        return mine.dim() == other.dim() and mine.shape[1:] == other.shape[1:]  # any number of supports

    def _any_value(self, name: str) -> bool:
        return name == "labels"  # -1 for a free slot

    def _load(self, state: Mapping[str, Tensor]) -> None:
        if self.supports is not None:
            labels = state["labels"]
            alive = labels[labels >= 0].bincount(minlength=len(self.counts))
            sizes = {len(state[name]) for name in self.supports.state()}
            if len(sizes) > 1 or not torch.equal(alive.cpu(), state["counts"].cpu()):
                raise StateMismatchError("the supports of this state do not match their counts: it is damaged")
            self.supports.load(state)
        self.sums.copy_(state["sums"])
        self.counts.copy_(state["counts"])


class Supports:
    """A pool of supports from which the worst can be dropped.

    Each has a slot, and free slots are reused, so that the pool is at most twice as large as the largest number of
    supports at one time. The slots are part of the state: they decide the order of summation, and so the last bit.
    They are like a tensor of embeddings, (..., d), but in float32 at least.
    """

    def __init__(self, like: Tensor) -> None:
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.directions = like.new_empty(0, like.shape[-1], dtype=dtype)  # of length 1, (slots, d)
        self.labels = like.new_empty(0, dtype=torch.int64)  # (slots,); -1 for a free slot
        self.entropies = like.new_empty(0, dtype=dtype)  # (slots,)

    def add(self, directions: Tensor, labels: Tensor, entropies: Tensor) -> None:
        """Put supports, (B, d), into the first free slots."""
        missing = len(labels) - int((self.labels < 0).sum())
        if missing > 0:
            by = max(missing, len(self.labels))
            self.directions = torch.cat([self.directions, self.directions.new_zeros(by, self.directions.shape[1])])
            self.labels = torch.cat([self.labels, self.labels.new_full((by,), -1)])
            self.entropies = torch.cat([self.entropies, self.entropies.new_zeros(by)])
        slots = (self.labels < 0).nonzero().flatten()[: len(labels)]
        self.directions[slots] = directions.to(self.directions.dtype)
        self.labels[slots] = labels
        self.entropies[slots] = entropies.to(self.entropies.dtype)

    def slots(self, wanted: Tensor) -> Tensor:
        """The slots of the supports of some classes, given as a mask (C,)."""
        return (wanted[self.labels] & (self.labels >= 0)).nonzero().flatten()

    def state(self) -> dict[str, Tensor]:
        """The slots up to the last used one, by name."""
        used = (self.labels >= 0).nonzero()
        end = int(used[-1]) + 1 if len(used) else 0
        return {name: getattr(self, name)[:end] for name in ("directions", "labels", "entropies")}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        for name, mine in self.state().items():
            setattr(self, name, state[name].to(device=mine.device, dtype=mine.dtype, copy=True))


def best(labels: Tensor, entropies: Tensor, count: int) -> Tensor:
    """Which supports, (n,), are among the `count` of lowest entropy of their class."""
    order = entropies.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, and by entropy within a class
    ordered = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(0, order, rank < count)
