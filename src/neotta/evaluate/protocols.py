"""The orders of a run: which samples it adapts to and which it is scored on, by its protocol."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from neotta.data import orders
from neotta.data.base import ImageDataset
from neotta.data.order import Order, reorder
from neotta.evaluate.domains import Domains
from neotta.evaluate.plan import ORDER_OPTIONS, Run, check_order
from neotta.evaluate.records import content_key

KEPT = 4_000_000
"""Number of samples up to which orders are kept: about 100 MB."""

_DEFAULTS: dict[str, dict[str, Any]] = {"imbalanced": {"ratio": 10.0}, "correlated": {"delta": 0.1}}


class ProtocolOrders:
    """The orders of runs. Runs that differ only in their method share them, so they are kept.

    Args:
        data: Where the samples are.
    """

    def __init__(self, data: Domains) -> None:
        self._data = data
        self._kept: OrderedDict[str, tuple[Order, ...]] = OrderedDict()
        self._size = 0
        self._hashes: dict[str, list[str]] = {}

    def of(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run.

        A single order is adapted to and scored. Of two, the first is adapted to, and the second is scored with the
        state frozen.
        """
        key = order_key(run)
        if key not in self._kept:
            self._kept[key] = made = _make(run, self._data)
            self._size += sum(len(order) for order in made)
            while self._size > KEPT and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                self._size -= sum(len(order) for order in oldest)
        self._kept.move_to_end(key)
        return self._kept[key]

    def hashes(self, run: Run) -> list[str]:
        """The hash of each order and of its images."""
        key = order_key(run)
        if key not in self._hashes:
            self._hashes[key] = [f"{order.hash()}-{self._data.digest(order)}" for order in self.of(run)]
        return self._hashes[key]


def order_key(run: Run) -> str:
    """A hash of everything that the orders of a run depend on."""
    return content_key(run.entries(without=["method", "preset", "options"]))


def _make(run: Run, data: Domains) -> tuple[Order, ...]:
    check_order(run.protocol, run.order, run.order_options)
    common: dict[str, Any] = {"seed": run.seed, "batch_size": run.batch_size}
    targets = {name: data.dataset(name) for name in run.domains}
    if run.protocol == "continual":
        given = {**_DEFAULTS.get(run.order, {}), **run.order_options}
        skew = orders.Skew(**{name: given.pop(name) for name in ORDER_OPTIONS["online", run.order] & given.keys()})
        return (orders.continual(targets, samples=run.samples, skew=skew, **given, **common),)
    target = {run.domains[0]: targets[run.domains[0]]}
    if run.protocol == "online":
        return (_online(run, target),)
    if run.protocol == "cross-domain":
        source = str(run.source_domain)
        adapt = orders.few_samples({source: data.dataset(source)}, run.samples, **common).adapt
        return adapt, _first(orders.iid(target, **common), run.held_out_samples)
    if run.order == "few-classes":
        held = orders.few_classes(target, samples=run.samples, **{"validate": -1, **run.order_options}, **common)
    else:
        held = orders.few_samples(target, run.samples, **common)
    return held.adapt, _first(held.validate, run.held_out_samples)


def _online(run: Run, data: dict[str, ImageDataset]) -> Order:
    common: dict[str, Any] = {"samples": run.samples, "seed": run.seed, "batch_size": run.batch_size}
    if run.order == "iid":
        return orders.iid(data, **common)
    if run.order == "real":
        return orders.real(data, **run.order_options, **common)
    make = orders.imbalanced if run.order == "imbalanced" else orders.correlated
    return make(data, **{**_DEFAULTS[run.order], **run.order_options}, **common)


def _first(order: Order, count: int) -> Order:
    """The first samples of an order; all of them for -1."""
    return order if count < 0 or count >= len(order) else reorder(order, np.arange(count))
