"""What a run predicted: first batch by batch, then all of it, and as a CSV or Parquet file."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from neotta._extras import need
from neotta._files import atomic
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.errors import InputError, OptionError

if TYPE_CHECKING:
    import pandas

UNKNOWN = -1
"""The label of an unlabelled sample."""
SMALLEST = 1e-8
"""Probabilities are clamped to at least this in the entropy."""


class PredictionStats(NamedTuple):
    """All that the metrics need of each prediction, (N,) each: a thousandth of the logits."""

    labels: Tensor  # the true classes, UNKNOWN if unlabelled
    predicted: Tensor  # the most probable classes
    confidence: Tensor  # probabilities of the most probable classes
    entropy: Tensor  # entropy of the predicted distribution, in nats
    surprise: Tensor  # -log of the label's probability; NaN if unlabelled
    # whether the label is among the five most probable classes, 0 or 1; NaN with fewer than five classes
    in_five: Tensor
    # squared distance between the predicted distribution and the true one, 0 to 2; NaN if unlabelled
    brier: Tensor

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> PredictionStats:
        known = labels != UNKNOWN
        column = labels.clamp(min=0).unsqueeze(1)
        _check_labels(logits, column.squeeze(1))
        logs = logits.float().log_softmax(dim=1)
        top, predicted = logs.max(dim=1)
        in_five = torch.full_like(top, math.nan)
        if logs.shape[1] >= 5:
            in_five = logs.topk(5, dim=1).indices.eq(column).any(dim=1).float()
        surprise = -logs.gather(1, column).squeeze(1)
        brier = (logs.exp().square().sum(dim=1) - 2 * (-surprise).exp() + 1).clamp(min=0)
        logs.clamp_(min=math.log(SMALLEST))
        entropy = -(logs.exp() * logs).sum(dim=1)
        return cls(
            labels,
            predicted,
            top.exp(),
            entropy,
            surprise.masked_fill(~known, math.nan),
            in_five.masked_fill(~known, math.nan),
            brier.masked_fill(~known, math.nan),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[PredictionStats]) -> PredictionStats:
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, chosen: Tensor) -> PredictionStats:
        """Select some, by a mask (N,)."""
        return PredictionStats(*(column[chosen] for column in self))

    def labelled(self) -> PredictionStats:
        known = self.labels != UNKNOWN
        return self if bool(known.all()) else self.at(known)


def _nothing() -> PredictionStats:
    whole = torch.empty(0, dtype=torch.int64)
    return PredictionStats(whole, whole, *[torch.empty(0)] * 5)


@dataclass
class RunResult:
    """What a run predicted, in the order of its samples; it grows while the run is carried out."""

    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)  # the domain of each
    stats: PredictionStats = field(default_factory=_nothing)  # statistics of each prediction
    unreadable: int = 0  # number of samples that could not be read
    not_adapted: int = 0  # number of samples that were predicted but not adapted to
    seconds: float = 0.0  # time of the predictions, without the encoder if the embeddings were cached

    def add(self, order: Order, entries: Indices, logits: Tensor, labels: Tensor) -> None:
        self.ids += [order.ids[entry] for entry in entries]
        self.domains += [order.domains[domain] for domain in order.domain[entries]]
        self.stats = PredictionStats.concatenate([self.stats, PredictionStats.of(logits, labels)])

    def frame(self) -> pandas.DataFrame:
        """One row for each sample: `id`, `domain`, `label`, `prediction`, `confidence` and `entropy`."""
        import pandas

        stats = {"label": self.stats.labels, "prediction": self.stats.predicted}
        stats |= {"confidence": self.stats.confidence, "entropy": self.stats.entropy}
        columns = {name: column.tolist() for name, column in stats.items()}
        return pandas.DataFrame({"id": self.ids, "domain": self.domains, **columns})


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise InputError(f"expected logits (N, C) and labels (N,), got {shapes}")
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise InputError(f"labels range from {labels.min()} to {labels.max()}, there are {logits.shape[1]} classes")


SUFFIXES = (".csv", ".parquet")


def check_suffix(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OptionError(f"predictions go to a .csv or .parquet file, got {os.fspath(path)!r}")


def write_predictions(
    path: str | os.PathLike[str], predictions: pandas.DataFrame, names: Sequence[str] | None = None
) -> None:
    """Write one line per seed and sample: `id`, `domain`, `seed`, `label` if any is known, and what methods predict.

    The columns of a method are `METHOD.prediction` and `METHOD.confidence`. They are empty for a sample that the
    method did not predict. The rows of `predictions` are those of `RunResult.frame`, with `seed` and `method`; the
    first method gives the order of the samples. `names` are those of classes, instead of their numbers.
    """
    check_suffix(path)
    need("pyarrow", "a file of predictions")

    def named(classes: pandas.Series) -> pandas.Series:
        known = classes.astype("Int64").where(classes != UNKNOWN).astype(object)
        return known.map(lambda index: names[index], na_action="ignore") if names is not None else known

    of_sample = ["id", "domain", "seed"]
    frame = predictions.drop_duplicates(of_sample)[[*of_sample, "label"]]
    if (frame["label"] == UNKNOWN).all():
        frame = frame[of_sample]
    for method, mine in predictions.groupby("method", sort=False):
        answers = mine.drop_duplicates(of_sample, keep="last")[[*of_sample, "prediction", "confidence"]]
        renamed = {name: f"{method}.{name}" for name in ("prediction", "confidence")}
        frame = frame.merge(answers.rename(columns=renamed), how="left", on=of_sample)
    classes = [name for name in frame if name == "label" or name.endswith(".prediction")]
    frame = frame.assign(**{name: named(frame[name]) for name in classes})
    with atomic(Path(path)) as temporary:
        if Path(path).suffix.lower() == ".csv":
            frame.to_csv(temporary, index=False, float_format="%.6f", lineterminator="\n")
        else:
            frame.to_parquet(temporary, index=False)
