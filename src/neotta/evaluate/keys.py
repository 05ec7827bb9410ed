"""The orders of runs, and their keys: hashes of everything that their results depend on."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import find, revision_of
from neotta.data.order import Order
from neotta.data.real_streams import STARTS
from neotta.evaluate.domains import Domains
from neotta.evaluate.orders import ORDERS, Request, order_options
from neotta.evaluate.plan import Run
from neotta.evaluate.records import content_key
from neotta.models.preprocess import AsIs

KEPT = 4_000_000
"""Number of samples up to which orders are kept: about 100 MB."""


class RunKeys:
    """The orders, options and keys of runs on one model and data."""

    def __init__(self, data: Domains, weights: str) -> None:
        self._data, self._weights = data, weights
        self._orders: OrderedDict[str, tuple[Order, ...]] = OrderedDict()
        self._size = 0
        self._hashes: dict[str, list[str]] = {}
        self.clean_images: Callable[[int], Tensor] = functools.cache(lambda count: data.clean.images(count))
        self._clean_digest: Callable[[int], str] = functools.cache(lambda count: data.clean.digest(count))
        self._preprocess = data.preprocess.to_dict()

    def orders(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run; those that differ only in their method share them.

        A single order is adapted to and scored. Of two, the first is adapted to, and the second is scored with the
        state frozen.
        """
        key = order_key(run)
        if key not in self._orders:
            self._orders[key] = made = self._make(run)
            self._size += sum(len(order) for order in made)
            while self._size > KEPT and len(self._orders) > 1:
                _, oldest = self._orders.popitem(last=False)
                self._size -= sum(len(order) for order in oldest)
        self._orders.move_to_end(key)
        return self._orders[key]

    def _make(self, run: Run) -> tuple[Order, ...]:
        options, data = order_options(run.protocol, run.order, run.order_options), self._data
        source = {} if run.source_domain is None else {run.source_domain: data.dataset(run.source_domain)}
        targets = {name: data.dataset(name) for name in run.domains}
        common = {"seed": run.seed, "batch_size": run.batch_size}
        request = Request(targets, source, lambda: data.bad_frames, run.samples, run.held_out_samples, common)
        return ORDERS[run.protocol, run.order].make(request, options)

    def _order_hashes(self, run: Run) -> list[str]:
        key = order_key(run)
        if key not in self._hashes:
            self._hashes[key] = [f"{order.hash()}-{self._data.digest(order)}" for order in self.orders(run)]
        return self._hashes[key]

    def _groups_hash(self, run: Run) -> str:
        numbers = [self._data.groups(name) for name in self.orders(run)[-1].domains]
        if all(number is None for number in numbers):
            return ""
        return content_key({"groups": [None if number is None else number.tolist() for number in numbers]})

    def content(self, run: Run) -> dict[str, Any]:
        """Everything that the result of a run depends on; its hash is the key."""
        hashes = self._order_hashes(run)
        last = len(hashes) - 1
        counts: list[int] = []
        options = self.options(run, counts)
        return {
            **({"source": self._clean_digest(max(counts))} if counts else {}),
            **({"separate": True} if separate_states(run) else {}),
            **({"tuned": run.tuned} if run.tuned is not None else {}),
            **({"groups": groups} if (groups := self._groups_hash(run)) else {}),
            "revision": revision_of(run.method),
            "weights": self._weights,
            "preprocess": self._preprocess,
            "classes": None if self._data.class_indices is None else [int(index) for index in self._data.class_indices],
            "manifests": [(manifest, place == 0, place == last) for place, manifest in enumerate(hashes)],
            "protocol": run.protocol,
            "samples": run.samples,
            "seed": run.seed,
            "method": run.method,
            "options": options,
        }

    def question(self, run: Run, content: Mapping[str, Any]) -> str:
        """A hash of the content without the revision, so that records of other revisions can be found.

        Records from before seeds and source images were in the key answer it, too: they had the method's own seed, and
        clean images of the data.
        """
        kind, options = find(run.method), content["options"]
        if kind.declaration.random:
            options = {"seed": str(kind.Options.model_fields["seed"].default), **options}
        new = ("revision",) if self._data.has_source_data else ("revision", "source")
        return content_key({**{name: content[name] for name in content if name not in new}, "options": options})

    def options(self, run: Run, counts: list[int] | None = None) -> dict[str, str]:
        """All options of a run as records write them, without those that follow from model, data and seed."""
        needed = self.needed(run, functools.partial(self.blank_images, counts=[] if counts is None else counts))
        chosen = find(run.method).Options.make(run.method, {**needed, **run.options}, run.preset)
        own = {name: value for name, value in chosen.given().items() if name not in needed}
        return {name: str(value) for name, value in own.items() if not isinstance(value, Tensor)}

    def needed(self, run: Run, source: Callable[[int], Tensor]) -> dict[str, Any]:
        """Options that follow from the model, the data and the seed, unless the run gives them."""
        ready = self._data.preprocess
        mean, std = (None, None) if isinstance(ready, AsIs) else (ready.mean, ready.std)
        facts = DataFacts(mean=mean, std=std, source=source, seed=run.seed)
        return find(run.method).declaration.data_options(facts, run.options)

    def blank_images(self, count: int, counts: list[int]) -> Tensor:
        """Two placeholder images, where only their shape matters; records how many were asked for."""
        counts.append(count)
        ready = self._data.preprocess
        return torch.zeros(2, *ready.shape) if isinstance(ready, AsIs) else torch.zeros(2, 3, *ready.size)


def order_key(run: Run) -> str:
    """A hash of everything that the orders of a run depend on."""
    return content_key(run.entries(without=["method", "preset", "options", "tuned"]))


def separate_states(run: Run) -> bool:
    """Whether each camera of a run has a state of its own."""
    if run.order == "real":
        return run.order_options.get("kind") in STARTS
    return run.order == "cameras" and bool(run.order_options.get("separate", False))
