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

    Each support has a slot, and free slots are reused, so that there are at most twice as many as the largest number of
    supports at one time. The slots are part of the state: they decide the order of summation, and so the last bit.

    Attributes:
        sums: Sum of the supports of each class, each support of length 1, (C, d).
        counts: Number of supports of each class, (C,).
        directions: The supports themselves, of length 1, in float32 at least, (slots, d); none without a filter.
        labels: Their classes, (slots,); -1 for a free slot.
        entropies: Those of their predictions, (slots,).
    """

    name = "t3a"
    title = "T3A"
    paper = "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization, NeurIPS 2021"
    declaration = Declaration(needs="embeddings", optimization_free=True)
    Options = T3AOptions

    sums: Tensor
    counts: Tensor
    directions: Tensor
    labels: Tensor
    entropies: Tensor

    def _start(self) -> None:
        weight = self.head.weight.detach()
        self.add_state("sums", weight.new_zeros(self.num_classes, self.head.in_features, dtype=widest(weight.device)))
        self.add_state("counts", weight.new_zeros(self.num_classes, dtype=torch.int64))
        if self.filtered:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self.add_state("directions", weight.new_empty(0, weight.shape[-1], dtype=dtype), grows=True)
            self.add_state("labels", weight.new_empty(0, dtype=torch.int64), grows=True, any_value=True)
            self.add_state("entropies", weight.new_empty(0, dtype=dtype), grows=True)
        rows = weight if self.options.warmup_rows == "all" else self.keep(weight.T).T
        for start in range(0, len(rows), WARMUP_BATCH):
            batch = rows[start : start + WARMUP_BATCH]
            self._add(batch, *self.judge(batch))

    @property
    def filtered(self) -> bool:
        """Whether supports are kept, because some may be dropped."""
        return self.options.filter_k != NO_FILTER

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
        if self.filtered:
            slots = self._make_room(len(labels))
            self.directions[slots] = directions.to(self.directions.dtype)
            self.labels[slots] = labels
            self.entropies[slots] = entropies.to(self.entropies.dtype)

    def _filtered(self, predicted: Tensor, adapt: bool) -> Tensor:
        """The sums without the worst supports of overfull classes, (C, d); if adapting, these are dropped."""
        if not self.filtered:
            return self.sums
        overfull = self.counts > self.options.filter_k
        if self.options.filter_classes == "predicted":
            overfull &= predicted.bincount(minlength=len(overfull)) > 0
        if not bool(overfull.any()):
            return self.sums
        slots = (overfull[self.labels] & (self.labels >= 0)).nonzero().flatten()
        keep = best(self.labels[slots], self.entropies[slots], self.options.filter_k)
        supports, labels = slots[keep], self.labels[slots[keep]]
        # Summing again, instead of subtracting what is dropped, keeps rounding errors from accumulating.
        sums = self.sums if adapt else self.sums.clone()
        sums[overfull] = 0.0
        sums.index_add_(0, labels, self.directions[supports].to(sums.dtype))
        if adapt:
            self.labels[slots[~keep]] = -1
            self.counts[overfull] = self.options.filter_k
        return sums

    def _make_room(self, count: int) -> Tensor:
        """The first free slots for so many supports."""
        missing = count - int((self.labels < 0).sum())
        if missing > 0:
            by = max(missing, len(self.labels))
            self.directions = torch.cat([self.directions, self.directions.new_zeros(by, self.directions.shape[1])])
            self.labels = torch.cat([self.labels, self.labels.new_full((by,), -1)])
            self.entropies = torch.cat([self.entropies, self.entropies.new_zeros(by)])
        return (self.labels < 0).nonzero().flatten()[:count]

    def _check_values(self, state: Mapping[str, Tensor]) -> None:
        super()._check_values(state)
        if self.filtered:
            labels = state["labels"]
            alive = labels[labels >= 0].bincount(minlength=len(self.counts))
            sizes = {len(state[name]) for name in ("directions", "labels", "entropies")}
            if len(sizes) > 1 or not torch.equal(alive.cpu(), state["counts"].cpu()):
                raise StateMismatchError("the supports of this state do not match their counts: it is damaged")


def best(labels: Tensor, entropies: Tensor, count: int) -> Tensor:
    """Which supports, (n,), are among the `count` of lowest entropy of their class."""
    order = entropies.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]  # by class, and by entropy within a class
    ordered = labels[order]
    rank = torch.arange(len(order), device=order.device) - torch.searchsorted(ordered, ordered)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(0, order, rank < count)
