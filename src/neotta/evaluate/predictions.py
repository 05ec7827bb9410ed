"""What a run predicted: first batch by batch, then all of it, and as a CSV or Parquet file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neotta._extras import need
from neotta._files import atomic
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.errors import InputError, OptionError

UNKNOWN = -1
"""The label of an unlabelled sample."""
SMALLEST = 1e-8
"""Probabilities are clamped to at least this in the entropy."""


class PredictionStats(NamedTuple):
    """All that the metrics need of each prediction, (N,) each: a thousandth of the logits.

    Attributes:
        labels: The true classes, UNKNOWN if unlabelled.
        predicted: The most probable classes.
        confidence: Probabilities of the most probable classes.
        entropy: Entropy of the predicted distribution, in nats.
        surprise: -log of the label's probability; NaN if unlabelled.
        in_five: Whether the label is among the five most probable classes, 0 or 1; NaN with fewer than five classes.
    """

    labels: Tensor
    predicted: Tensor
    confidence: Tensor
    entropy: Tensor
    surprise: Tensor
    in_five: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> PredictionStats:
        """Compute them."""
        known = labels != UNKNOWN
        column = labels.clamp(min=0).unsqueeze(1)
        _check_labels(logits, column.squeeze(1))
        logs = logits.float().log_softmax(dim=1)
        top, predicted = logs.max(dim=1)
        in_five = torch.full_like(top, math.nan)
        if logs.shape[1] >= 5:
            in_five = logs.topk(5, dim=1).indices.eq(column).any(dim=1).float()
        surprise = -logs.gather(1, column).squeeze(1)
        logs.clamp_(min=math.log(SMALLEST))
        entropy = -(logs.exp() * logs).sum(dim=1)
        return cls(
            labels,
            predicted,
            top.exp(),
            entropy,
            surprise.masked_fill(~known, math.nan),
            in_five.masked_fill(~known, math.nan),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[PredictionStats]) -> PredictionStats:
        """Concatenate several."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, chosen: Tensor) -> PredictionStats:
        """Select some, by a mask (N,)."""
        return PredictionStats(*(column[chosen] for column in self))

    def labelled(self) -> PredictionStats:
        """Select those whose label is known."""
        known = self.labels != UNKNOWN
        return self if bool(known.all()) else self.at(known)


def _nothing() -> PredictionStats:
    whole = torch.empty(0, dtype=torch.int64)
    return PredictionStats(whole, whole, *[torch.empty(0)] * 4)


@dataclass
class RunResult:
    """What a run predicted, in the order of its samples; it grows while the run is carried out.

    Attributes:
        ids: The samples.
        domains: The domain of each.
        stats: Statistics of each prediction.
        classes: Number of classes C; 0 before the first prediction.
        unreadable: Number of samples that could not be read.
        not_adapted: Number of samples that were predicted but not adapted to.
        seconds: Time of the predictions, without the encoder if the embeddings were cached.
    """

    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    stats: PredictionStats = field(default_factory=_nothing)
    classes: int = 0
    unreadable: int = 0
    not_adapted: int = 0
    seconds: float = 0.0

    @property
    def labels(self) -> list[int | None]:
        """The classes of the samples; None if unlabelled."""
        return [None if label == UNKNOWN else label for label in self.stats.labels.tolist()]

    def add(self, order: Order, entries: Indices, logits: Tensor, labels: Tensor) -> None:
        """Add predictions."""
        self.ids += [order.ids[entry] for entry in entries]
        self.domains += [order.domains[domain] for domain in order.domain[entries]]
        self.stats = PredictionStats.concatenate([self.stats, PredictionStats.of(logits, labels)])
        self.classes = logits.shape[1]

    def extend(self, other: RunResult) -> None:
        """Add the predictions of another run."""
        self.ids += other.ids
        self.domains += other.domains
        self.stats = PredictionStats.concatenate([self.stats, other.stats])
        self.classes = max(self.classes, other.classes)

    def rows(self) -> dict[tuple[str, str], int]:
        """The row of each sample, by domain and id."""
        return {place: row for row, place in enumerate(zip(self.domains, self.ids, strict=True))}


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise InputError(f"expected logits (N, C) and labels (N,), got {shapes}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise InputError(f"labels range from {labels.min()} to {labels.max()}, there are {logits.shape[1]} classes")


SUFFIXES = (".csv", ".parquet")


def check_suffix(path: str | os.PathLike[str]) -> None:
    """Check the suffix of a file for predictions."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OptionError(f"predictions go to a .csv or .parquet file, got {os.fspath(path)!r}")


def write_predictions(
    path: str | os.PathLike[str],
    predictions: Mapping[int, Mapping[str, RunResult]],
    names: Sequence[str] | None = None,
) -> None:
    """Write one line per seed and sample: `id`, `domain`, `seed`, `label` if any is known, and what methods predict.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. They are empty for a sample that the
    method did not predict.
    """
    check_suffix(path)
    import pandas

    frame = pandas.DataFrame(_columns(predictions, names), dtype=object)
    confidences = [name for name in frame if name.endswith(".confidence")]
    frame = frame.astype(dict.fromkeys(confidences, "float64"))
    with atomic(Path(path)) as temporary:
        if Path(path).suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
            return
        need("pyarrow", "writing Parquet files")
        frame.to_parquet(temporary, index=False)


def _columns(predictions: Mapping[int, Mapping[str, RunResult]], names: Sequence[str] | None) -> dict[str, list[Any]]:
    def named(index: int | None) -> str | int | None:
        return index if index is None or names is None else names[index]

    samples: dict[tuple[int, str, str], int | None] = {}
    answers: dict[str, dict[tuple[int, str, str], tuple[int, float]]] = {}
    for seed, methods in predictions.items():
        for method, each in methods.items():
            places = [(seed, domain, name) for domain, name in each.rows()]
            for place, label in zip(places, each.labels, strict=True):
                samples.setdefault(place, label)
            pairs = zip(each.stats.predicted.tolist(), each.stats.confidence.tolist(), strict=True)
            answers.setdefault(method, {}).update(zip(places, pairs, strict=True))
    columns: dict[str, list[Any]] = {
        "id": [name for _, _, name in samples],
        "domain": [domain for _, domain, _ in samples],
        "seed": [seed for seed, _, _ in samples],
    }
    if any(label is not None for label in samples.values()):
        columns["label"] = [named(label) for label in samples.values()]
    for method, by_place in answers.items():
        both = [by_place.get(place, (None, None)) for place in samples]
        columns[f"{method}.prediction"] = [named(predicted) for predicted, _ in both]
        columns[f"{method}.confidence"] = [confidence for _, confidence in both]
    return columns
