"""What comes of a run: first batch by batch, then all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.evaluate.scores import UNKNOWN, Facts


@dataclass
class Part:
    """What came of a part of a stream.

    Attributes:
        fresh: Entries of the stream, (B,), and logits, (B, C), of the batches that were not looked at yet.
        entries: Entries of the stream that were, (n,) each.
        facts: What is to be known of them.
        logits: Their logits, (n, C) each, if they are asked for.
        unreadable: Samples that could not be read.
        seconds: How long it took.
    """

    fresh: list[tuple[Indices, Tensor]] = field(default_factory=list)
    entries: list[Indices] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    unreadable: int = 0
    seconds: float = 0.0

    def copy(self) -> Part:
        """The same, so that what is added to one is not added to the other."""
        return replace(
            self, fresh=list(self.fresh), entries=list(self.entries), facts=list(self.facts), logits=list(self.logits)
        )

    def look_at(self, labels: Callable[[Indices], Tensor], keep_logits: bool) -> None:
        """Turn logits into facts, of many batches at once: that is much faster than one by one.

        Args:
            labels: Gives the labels of entries, (n,).
            keep_logits: Whether the logits are asked for.
        """
        if not self.fresh:
            return
        entries = np.concatenate([entries for entries, _ in self.fresh])
        logits = torch.cat([logits for _, logits in self.fresh])
        self.fresh.clear()
        self.entries.append(entries)
        self.facts.append(Facts.of(logits, labels(entries)))
        if keep_logits:
            self.logits.append(logits)


@dataclass
class Outputs:
    """What a run predicted, in the order of its stream.

    Attributes:
        ids: The samples.
        domains: Where each comes from.
        facts: What the scores need to know of each prediction.
        logits: (n, C) each, of all samples, if they were asked for.
        skipped: Samples that could not be read.
        not_adapted: Samples that were predicted but not adapted to.
        seconds: How long the predictions took, without the time of the encoder where it ran before.
    """

    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    facts: Facts = field(default_factory=lambda: Facts.join([]))
    logits: list[Tensor] = field(default_factory=list)
    skipped: int = 0
    not_adapted: int = 0
    seconds: float = 0.0

    @property
    def labels(self) -> list[int | None]:
        """The classes of the samples; None where a label is not known."""
        return [None if label == UNKNOWN else label for label in self.facts.labels.tolist()]

    def tensor(self) -> Tensor:
        """All logits, (N, C) float32."""
        return torch.cat(self.logits).float() if self.logits else torch.empty(0, 0)

    def add(self, stream: Order, part: Part) -> None:
        """Take over what came of a stream."""
        self.skipped += part.unreadable
        self.seconds = round(self.seconds + part.seconds, 4)
        if part.entries:
            entries = np.concatenate(part.entries)
            self.ids += [stream.ids[entry] for entry in entries]
            self.domains += [stream.domains[domain] for domain in stream.domain[entries]]
            self.facts = Facts.join([self.facts, *part.facts])
            self.logits += part.logits
