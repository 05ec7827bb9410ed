"""What a run answered: each prediction, and what a record keeps of it, which intervals are made from.

In a record this is a string with one character per sample, whether it was right, and the position of each image, unless
that is the order in which the seed draws the images of a domain: then it is drawn again. How sure the method was is
kept in two bytes per sample and number, compressed. If groups of images were declared, such as clips of a video,
`groups` has the number of each sample's group among those of its dataset.
"""

from __future__ import annotations

import base64
import hashlib
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neotta.data.base import ImageDataset
from neotta.data.drawing import Indices, shuffled
from neotta.data.order import Order
from neotta.errors import DataError, InputError
from neotta.evaluate.records import Record

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
    def none(cls) -> PredictionStats:
        whole = torch.empty(0, dtype=torch.int64)
        return cls(whole, whole, *[torch.empty(0)] * 5)

    @classmethod
    def concatenate(cls, parts: Sequence[PredictionStats]) -> PredictionStats:
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def at(self, chosen: Tensor) -> PredictionStats:
        """Select some, by a mask (N,)."""
        return PredictionStats(*(column[chosen] for column in self))

    def labelled(self) -> PredictionStats:
        known = self.labels != UNKNOWN
        return self if bool(known.all()) else self.at(known)


@dataclass
class RunResult:
    """What a run predicted, in the order of its samples; it grows while the run is carried out."""

    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)  # the domain of each
    stats: PredictionStats = field(default_factory=PredictionStats.none)  # statistics of each prediction
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


# ---- in records

Bits = NDArray[np.bool_]
Reals = NDArray[np.float64]
SURE = {"confidence": 1.0, "nll": 32.0, "brier": 2.0}
"""What is kept of how sure a method was, with the largest value: larger ones are cut off.

The steps are 1/65,535 of that. 65,535 is a multiple of 15, and steps are rounded up: a confidence stays in its bin.
"""
STEPS = 65_535
LARGEST = 100_000_000
"""Largest domain that a record may name: drawing from a larger one would only fill the memory."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a run, in the order of its samples."""

    right: Bits  # whether each sample was right, (N,)
    known: Bits  # whether this is known: false for samples that could not be read or have no label, (N,)
    domains: tuple[str, ...]  # names of the domains
    domain: Indices  # position of each sample's domain in `domains`, (N,)
    # the image behind each sample: the same number for the same image, in other runs and domains too, (N,)
    image: Indices
    unit: Indices  # its group in the same way, or the image itself if no groups were declared, (N,)
    batch: Indices  # the batch of each sample, counted from 0, (N,)
    sure: dict[str, Reals]  # of each sample the terms of `SURE`, (N,) each; none in records that do not have them

    def of_domain(self, name: str) -> Answers | None:
        """The known answers of one domain; None if there are none."""
        chosen = self.known & (self.domain == (self.domains.index(name) if name in self.domains else -1))
        if not chosen.any():
            return None
        columns = (self.domain[chosen], self.image[chosen], self.unit[chosen], self.batch[chosen])
        sure = {name: values[chosen] for name, values in self.sure.items()}
        return Answers(self.right[chosen], self.known[chosen], self.domains, *columns, sure)

    @cached_property
    def units(self) -> set[int]:
        return set(self.unit.tolist())


def pack(
    result: RunResult,
    order: Order,
    dataset: Callable[[str], ImageDataset],
    groups: Callable[[str], Indices | None] = lambda name: None,
) -> dict[str, Any]:
    """What a record keeps of the answers of a run; nothing if no sample has a label."""
    if not (result.stats.labels != UNKNOWN).any():
        return {}
    marks = np.full(len(order), "?")
    stats = result.stats
    right = (stats.labels == stats.predicted).numpy()
    entries = _entries(result, order)
    marks[entries] = np.where((stats.labels == UNKNOWN).numpy(), "?", np.where(right, "1", "0"))
    datasets = [dataset(name) for name in order.domains]
    hashes = {key: _hash(ids) for key, ids in {id(each.ids): each.ids for each in datasets}.items()}
    pools = [[name, len(each), hashes[id(each.ids)]] for name, each in zip(order.domains, datasets, strict=True)]
    packed: dict[str, Any] = {"right": "".join(marks), "pools": pools, "straddle": order.straddle}
    terms = dict(zip(SURE, (stats.confidence, stats.surprise, stats.brier), strict=True))
    packed |= {name: _squeezed(values.double().numpy(), entries, len(order), name) for name, values in terms.items()}
    if len(order.domains) > 1:
        packed["domain"] = order.domain.tolist()
    if not np.array_equal(order.index, _drawn(order.domain, pools, order.seed)):
        packed["images"] = order.index.tolist()
    numbers = [groups(name) for name in order.domains]
    if any(number is not None for number in numbers):
        full = [np.zeros(len(d), np.int64) if n is None else n for n, d in zip(numbers, datasets, strict=True)]
        packed["groups"] = [int(full[domain][index]) for domain, index in zip(order.domain, order.index, strict=True)]
    return {"answers": packed}


def unpack(record: Record) -> Answers | None:
    """The answers of a recorded run; None if the record does not have them."""
    if not record.answers:
        return None
    try:
        return _unpacked(record.answers, record.seed, record.batch_size)
    except (LookupError, TypeError, ValueError, OverflowError, zlib.error) as error:
        raise DataError(
            f"the answers in the record {record.key!r} cannot be read ({error!r}): if an earlier version wrote "
            "it, measure again with 'neotta run' to a new file"
        ) from error


def _unpacked(packed: Mapping[str, Any], seed: int, batch_size: int) -> Answers:
    marks = np.frombuffer(packed["right"].encode(), dtype=np.uint8) if isinstance(packed["right"], str) else np.empty(0)
    if not len(marks) or not np.isin(marks, list(b"01?")).all():
        raise ValueError("'right' has to be a string of 0, 1 and ?")
    if not all(
        isinstance(name, str) and type(size) is int and 0 <= size <= LARGEST for name, size, _ in packed["pools"]
    ):
        raise ValueError("'pools' has to hold names and sizes of domains")
    names, _, pools = zip(*packed["pools"], strict=True)
    domain = _numbers(packed["domain"], len(marks)) if "domain" in packed else np.zeros(len(marks), dtype=np.int64)
    bases = np.array([int(pool, 16) << 32 for pool in pools], dtype=np.int64)[domain]
    index = _numbers(packed["images"], len(marks)) if "images" in packed else _drawn(domain, packed["pools"], seed)
    order = Order("recorded", seed, names, domain, index, ("",) * len(marks), batch_size, straddle=packed["straddle"])
    batch = np.repeat(np.arange(len(order.batches())), [part.stop - part.start for part in order.batches()])
    unit = bases + (_numbers(packed["groups"], len(marks)) if "groups" in packed else index)
    sure = {name: _stretched(packed[name], len(marks), name) for name in SURE if name in packed}
    return Answers(marks == ord("1"), marks != ord("?"), names, domain, bases + index, unit, batch, sure)


def _squeezed(values: Reals, entries: Indices, count: int, name: str) -> str:
    steps = np.zeros(count, dtype="<u2")
    steps[entries] = np.ceil(np.nan_to_num(values / SURE[name], posinf=1.0).clip(0, 1) * STEPS)
    return base64.b64encode(zlib.compress(steps.tobytes(), 9)).decode()


def _stretched(text: str, count: int, name: str) -> Reals:
    unpacked = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), 2 * count + 1)
    if len(unpacked) != 2 * count:
        raise ValueError(f"{name!r} has to hold {count} values")
    return np.frombuffer(unpacked, dtype="<u2") / STEPS * SURE[name]


def _numbers(values: Sequence[int], count: int) -> Indices:
    indices: Indices = np.array(values, dtype=np.int64)
    if indices.shape != (count,) or indices.min() < 0 or indices.max() > LARGEST:
        raise ValueError(f"there have to be {count} positions")
    return indices


def _entries(result: RunResult, order: Order) -> Indices:
    if len(result.ids) == len(order):
        return np.arange(len(order))
    entries, place = [], 0
    for name, domain in zip(result.ids, result.domains, strict=True):
        while (order.ids[place], order.domains[order.domain[place]]) != (name, domain):
            place += 1
        entries.append(place)
        place += 1
    return np.array(entries, dtype=np.int64)


def _drawn(domain: Indices, pools: Sequence[Sequence[Any]], seed: int) -> Indices:
    index = np.full(len(domain), -1, dtype=np.int64)
    for number, (name, size, _) in enumerate(pools):
        here = np.flatnonzero(domain == number)
        drawn = shuffled(size, seed, name)
        index[here[: len(drawn)]] = drawn[: len(here)]
    return index


def _hash(ids: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:7]
