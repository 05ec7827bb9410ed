"""The orders of a run: which samples it adapts to and which it is scored on, by its protocol."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from neotta.data import orders
from neotta.data._numbers import whole
from neotta.data.base import ImageDataset
from neotta.data.changing import held_out
from neotta.data.order import Order, reorder
from neotta.data.real_streams import OUTLIERS, STARTS
from neotta.evaluate.calibration import ACCURACY, IMAGES, Calibration, Path, Progress
from neotta.evaluate.domains import CLEAN, Domains
from neotta.evaluate.order_options import LABEL_OPTIONS, check_order
from neotta.evaluate.plan import Run
from neotta.evaluate.records import content_key

KEPT = 4_000_000
"""Number of samples up to which orders are kept: about 100 MB."""

_DEFAULTS: dict[str, dict[str, Any]] = {"imbalanced": {"ratio": 10.0}, "correlated": {"delta": 0.1}}


class ProtocolOrders:
    """The orders of runs. Runs that differ only in their method share them, so they are kept.

    Args:
        data: Where the samples are.
        calibration: Measures the unadapted model, on which a changing corruption depends.
    """

    def __init__(self, data: Domains, calibration: Calibration) -> None:
        self._data, self._calibration = data, calibration
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
            self._kept[key] = made = self._make(run)
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

    def calibrate(self, run: Run, progress: Progress | None = None) -> None:
        """Measure what the orders of a run depend on, if anything, before they are asked for."""
        if run.order == "changing":
            self._path(run, progress)

    def _path(self, run: Run, progress: Progress | None = None) -> Path:
        accuracy = run.order_options.get("accuracy", ACCURACY)
        images = run.order_options.get("calibration", IMAGES)
        return self._calibration.path(run.domains, accuracy, images, progress)

    def _make(self, run: Run) -> tuple[Order, ...]:
        check_order(run.protocol, run.order, run.order_options)
        if run.order == "changing":
            return (self._changing(run),)
        data = self._data
        targets = {name: data.dataset(name) for name in run.domains}
        if run.protocol == "continual":
            return (_through_domains(run, targets),)
        target = {run.domains[0]: targets[run.domains[0]]}
        if run.protocol == "online":
            strewn = {"bad_frames": data.bad_frames} if run.order_options.get("kind") == OUTLIERS else {}
            return (_online(run, target, strewn),)
        common: dict[str, Any] = {"seed": run.seed, "batch_size": run.batch_size}
        if run.protocol == "cross-domain":
            source = str(run.source_domain)
            adapt = orders.few_samples({source: data.dataset(source)}, run.samples, **common).adapt
            return adapt, _first(orders.iid(target, **common), run.held_out_samples)
        if run.order == "few-classes":
            held = orders.few_classes(target, samples=run.samples, **{"validate": -1, **run.order_options}, **common)
        else:
            held = orders.few_samples(target, run.samples, **common)
        return held.adapt, _first(held.validate, run.held_out_samples)

    def _changing(self, run: Run) -> Order:
        skew, given = _skew(run)
        accuracy, images = given.pop("accuracy", ACCURACY), given.pop("calibration", IMAGES)
        path = self._path(run)
        clean = self._data.dataset(CLEAN)
        _, pool = held_out(len(clean), images)
        reached = [point.accuracy for point in path.points]
        about = {"accuracy": accuracy, "images": images, "weak": path.weak, "reached": [min(reached), max(reached)]}
        return orders.changing(
            {CLEAN: clean},
            path.points,
            pool=pool,
            samples=run.samples if run.samples < 0 else run.samples * len(run.domains),
            skew=skew,
            seed=run.seed,
            batch_size=run.batch_size,
            parameters={"calibration": about},
            **given,
        )


def order_key(run: Run) -> str:
    """A hash of everything that the orders of a run depend on."""
    return content_key(run.entries(without=["method", "preset", "options", "tuned"]))


def separate_states(run: Run) -> bool:
    """Whether each camera of a run has a state of its own."""
    if run.order == "real":
        return run.order_options.get("kind") in STARTS
    return run.order == "cameras" and bool(run.order_options.get("separate", False))


def _skew(run: Run) -> tuple[orders.Skew, dict[str, Any]]:
    """How the labels of an order are distributed, and its other options."""
    given = {**_DEFAULTS.get(run.order, {}), **run.order_options}
    return orders.Skew(**{name: given.pop(name) for name in LABEL_OPTIONS & given.keys()}), given


def _through_domains(run: Run, data: dict[str, ImageDataset]) -> Order:
    skew, given = _skew(run)
    common: dict[str, Any] = {"samples": run.samples, "skew": skew, "seed": run.seed, "batch_size": run.batch_size}
    if run.order == "real":
        del common["skew"]
        return orders.real(data, **given, **common)
    if run.order == "mixed":
        return orders.mixed(data, **common)
    if run.order == "cameras":
        given.pop("separate", None)  # about the method's state, not about the samples
        count = whole("per_domain (the number of cameras in each domain)", given.pop("per_domain", 1), 1)
        watch = {f"{name} camera {number + 1}": name for name in data for number in range(count)}
        return orders.cameras(data, watch, **given, **common)
    make = {"recurring": orders.recurring, "gradual": orders.gradual}.get(run.order, orders.continual)
    return make(data, **given, **common)


def _online(run: Run, data: dict[str, ImageDataset], strewn: dict[str, Any]) -> Order:
    common: dict[str, Any] = {"samples": run.samples, "seed": run.seed, "batch_size": run.batch_size}
    if run.order in ("iid", "stored"):
        return (orders.iid if run.order == "iid" else orders.stored)(data, **common)
    if run.order == "real":
        return orders.real(data, **run.order_options, **strewn, **common)
    make = orders.imbalanced if run.order == "imbalanced" else orders.correlated
    return make(data, **{**_DEFAULTS[run.order], **run.order_options}, **common)


def _first(order: Order, count: int) -> Order:
    """The first samples of an order; all of them for -1."""
    return order if count < 0 or count >= len(order) else reorder(order, np.arange(count))
