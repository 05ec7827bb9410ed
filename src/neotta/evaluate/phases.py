"""The parts of a run: which samples it adapts to and which it is scored on, by its protocol."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from neotta.data import orders
from neotta.data.base import ImageDataset
from neotta.data.order import Order, reorder
from neotta.evaluate.domains import Domains
from neotta.evaluate.plan import STREAM_OPTIONS, Run, check_stream
from neotta.evaluate.records import content_key

KEPT = 4_000_000
"""How many samples the streams that are kept may have in all: some 100 MB."""

_DEFAULTS: dict[str, dict[str, Any]] = {"imbalanced": {"ratio": 10.0}, "correlated": {"delta": 0.1}}


class Phase(NamedTuple):
    """A part of a run: a stream that is adapted to, or scored, or both."""

    stream: Order
    adapt: bool
    scored: bool


class Phases:
    """The phases of runs. Runs that differ only in their method share them, so they are made once and kept.

    Args:
        data: Where the samples are.
    """

    def __init__(self, data: Domains) -> None:
        self._data = data
        self._kept: OrderedDict[str, list[Phase]] = OrderedDict()
        self._size = 0
        self._hashes: dict[str, list[str]] = {}

    def of(self, run: Run) -> list[Phase]:
        """The phases of a run."""
        key = stream_key(run)
        if key not in self._kept:
            self._kept[key] = made = _make(run, self._data)
            self._size += sum(len(phase.stream) for phase in made)
            while self._size > KEPT and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._size -= sum(len(phase.stream) for phase in oldest)
        self._kept.move_to_end(key)
        return self._kept[key]

    def hashes(self, run: Run) -> list[str]:
        """For each phase the hash of its stream and of the images that it shows."""
        key = stream_key(run)
        if key not in self._hashes:
            streams_ = [phase.stream for phase in self.of(run)]
            self._hashes[key] = [f"{stream.hash()}-{self._data.digest(stream)}" for stream in streams_]
        return self._hashes[key]


def stream_key(run: Run) -> str:
    """A hash of all that the streams of a run depend on."""
    return content_key(run.model_dump(mode="json", exclude={"method", "preset", "options"}))


def _make(run: Run, data: Domains) -> list[Phase]:
    check_stream(run.protocol, run.stream, run.stream_options)
    common: dict[str, Any] = {"seed": run.seed, "batch_size": run.batch_size}
    targets = {name: data.dataset(name) for name in run.domains}
    if run.protocol == "continual":
        given = {**_DEFAULTS.get(run.stream, {}), **run.stream_options}
        skew = orders.Skew(**{name: given.pop(name) for name in STREAM_OPTIONS["online", run.stream] & given.keys()})
        return [Phase(orders.continual(targets, samples=run.samples, skew=skew, **given, **common), True, True)]
    one = {run.domains[0]: targets[run.domains[0]]}
    if run.protocol == "online":
        return [Phase(_stream(run, one), True, True)]
    if run.protocol == "cross-domain":
        source = str(run.source_domain)
        there = orders.few_samples({source: data.dataset(source)}, run.samples, **common).adapt
        return [Phase(there, True, False), Phase(_first(orders.iid(one, **common), run.evaluate), False, True)]
    if run.stream == "few-classes":
        held = orders.few_classes(one, samples=run.samples, **{"validate": -1, **run.stream_options}, **common)
    else:
        held = orders.few_samples(one, run.samples, **common)
    return [Phase(held.adapt, True, False), Phase(_first(held.validate, run.evaluate), False, True)]


def _stream(run: Run, data: dict[str, ImageDataset]) -> Order:
    common: dict[str, Any] = {"samples": run.samples, "seed": run.seed, "batch_size": run.batch_size}
    if run.stream == "iid":
        return orders.iid(data, **common)
    make = orders.imbalanced if run.stream == "imbalanced" else orders.correlated
    return make(data, **{**_DEFAULTS[run.stream], **run.stream_options}, **common)


def _first(stream: Order, count: int) -> Order:
    """The first samples of a stream, all of them for -1."""
    return stream if count < 0 or count >= len(stream) else reorder(stream, np.arange(count))
