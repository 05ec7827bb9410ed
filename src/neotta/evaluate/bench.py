"""A bench: a model, data and a cache of embeddings, opened once, for the runs of any number of plans."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import AnyAdapter, create, find, revision_of
from neotta.data.base import DataSource
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.data.orders import find_order
from neotta.errors import DataError, ModelError, NeottaError, OptionError
from neotta.evaluate.domains import SOURCE_DATA, Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.key import identity
from neotta.evaluate.plan import MethodPlan, Plan, Run
from neotta.evaluate.records import content_key
from neotta.models.load import LoadedModel, load_model
from neotta.models.preprocess import AsIs, Preprocess
from neotta.neo.find_head import of_a_library
from neotta.neo.split import split

KEPT = 4_000_000
"""Number of samples up to which orders are kept: about 100 MB."""
DATA_ENTRIES = ("data", "domains", "corruption_preset", "source", "class_names", "group_by")
"""Entries of a plan that say which data is opened."""


class Bench:
    """The model and the data of a plan, opened once; other plans on the same model and data can be carried out, too.

    `model` is the model of the plan if it is open already, or a bench whose model is used; `source` is its data.

    Attributes:
        loaded: The model with its preprocessing and labels.
        weights: A hash of the model: its weights, and how it is built.
        encoder: The part in front of the head.
        example: Noise of the size that the model takes, to find its head with; None if its library tells the head.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        model: LoadedModel | Bench | None = None,
        source: DataSource | None = None,
        cache: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        device: str | None = None,
    ) -> None:
        self.plan, self.name = plan, plan.model
        self.workers, self.device, self._cache = workers, device, cache
        if isinstance(model, Bench):
            self._share_model(model)
        else:
            self.loaded = model or self._load()
            self.example = None if of_a_library(self.loaded.model) else self._noise()
            self.encoder, self.head = split(self.loaded.model, example=self.example)
            self.weights = identity(self.loaded.model)
        self.model = self.loaded.model
        self.data = Domains(plan, self.loaded.labels, self.loaded.preprocess, self.head.out_features, source)
        self.embeddings = EmbeddingCache(self.encoder, self.data.preprocess, self.weights, cache, workers=workers)
        self.clean_images: Callable[[int], Tensor] = functools.cache(lambda count: self.data.clean.images(count))
        self.clean_digest: Callable[[int], str] = functools.cache(lambda count: self.data.clean.digest(count))
        self._orders: OrderedDict[str, tuple[Order, ...]] = OrderedDict()
        self._kept = 0
        self._hashes: dict[str, list[str]] = {}
        self._adapters: dict[str, AnyAdapter] = {}

    def _load(self) -> LoadedModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # a model with random weights is the same one in every process
            chosen = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            return load_model(self.name, device=chosen, **self.plan.model_options)

    def _share_model(self, other: Bench) -> None:
        self.device, self.loaded, self.example = other.device, other.loaded, other.example
        self.encoder, self.head, self.weights = other.encoder, other.head, other.weights
        if self.plan.model_options != other.plan.model_options:  # they differ in the preprocessing
            values = {**other.loaded.preprocess.to_dict(), **self.plan.model_options["preprocess"]}
            self.loaded = self.loaded._replace(preprocess=Preprocess.from_dict(values))

    def _noise(self) -> Tensor:
        like, shape = next(self.loaded.model.parameters()), _shape(self.loaded.preprocess)
        return torch.randn((2, *shape), generator=torch.Generator().manual_seed(0)).to(like)

    def other(self, plan: Plan) -> Bench:
        """A bench with the same model for a plan on other domains of the data."""
        return Bench(plan, model=self, source=self.data.whole, cache=self._cache, workers=self.workers)

    def opener(self, **changes: Any) -> Callable[[], Bench]:
        """What opens the same bench in another process, with some settings changed; it can be pickled."""
        settings = {"cache": self._cache, "workers": self.workers, "device": self.device, **changes}
        return functools.partial(Bench, self.plan, **settings)

    def suits(self, plan: Plan) -> bool:
        return self.has_model(plan) and data_entries(self.plan) == data_entries(plan)

    def has_model(self, plan: Plan) -> bool:
        return (self.plan.model, self.plan.model_options) == (plan.model, plan.model_options)

    # ---- runs and their orders

    def runs(self, plan: Plan) -> list[Run]:
        if not self.suits(plan):
            raise OptionError("the plan is on another model or other data than this bench: open one for it")
        names = self.data.names(plan.corruptions, plan.severities)
        runs = [run.model_copy(update={"preset": self.preset(run.method, run.preset)}) for run in plan.runs(names)]
        if any(run.at_most for run in runs) and self._fewer(names, max(plan.samples)):
            runs = [run.model_copy(update={"samples": -1}) for run in runs]
        return runs

    def _fewer(self, names: Iterable[str], samples: int) -> bool:
        """Whether every domain has fewer samples."""
        with contextlib.suppress(NeottaError):  # raised again when the data is used
            return all(len(self.data.dataset(name)) < samples for name in names)
        return False

    def preset(self, method: str, preset: str = "paper") -> str:
        """The preset for this data, if a method has one, such as `"paper-cifar10"`; otherwise the preset itself."""
        name = f"{preset}-{self.data.family}"
        return name if name in find(method).Options.presets else preset

    def orders(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run; those that differ only in their method share them.

        A single order is adapted to and scored. Of two, the first is adapted to, and the second is scored with the
        state frozen.
        """
        key = run.order_key
        if key not in self._orders:
            made = find_order(run.order)(
                {name: self.data.dataset(name) for name in run.domains},
                samples=run.samples,
                at_most=run.at_most,
                seed=run.seed,
                batch_size=run.batch_size,
                held_out=run.held_out_samples,
                source=None if run.source_domain is None else {run.source_domain: self.data.dataset(run.source_domain)},
                **run.order_options,
            )
            self._orders[key] = (made,) if isinstance(made, Order) else tuple(made)
            self._kept += sum(map(len, self._orders[key]))
            while self._kept > KEPT and len(self._orders) > 1:
                _, oldest = self._orders.popitem(last=False)
                self._kept -= sum(len(order) for order in oldest)
        self._orders.move_to_end(key)
        return self._orders[key]

    def order_hashes(self, run: Run) -> list[str]:
        """Hashes of the orders of a run, and of the images and labels that they show."""
        if run.order_key not in self._hashes:
            hashes = [f"{order.hash()}-{self.data.digest(order)}" for order in self.orders(run)]
            self._hashes[run.order_key] = hashes
        return self._hashes[run.order_key]

    # ---- methods

    def needed(self, run: Run, source: Callable[[int], Any] = lambda count: None) -> dict[str, Any]:
        """Options that follow from the model, the data and the seed, unless the run gives them."""
        ready = self.data.preprocess
        mean, std = (None, None) if isinstance(ready, AsIs) else (ready.mean, ready.std)
        facts = DataFacts(mean=mean, std=std, source=source, seed=run.seed)
        return find(run.method).declaration.data_options(facts, run.options)

    def options(self, run: Run) -> dict[str, str]:
        """All options of a run as records write them, without those that follow from model, data and seed."""
        needed = self.needed(run)
        chosen = find(run.method).Options.make(run.method, {**needed, **run.options}, run.preset)
        own = {name: value for name, value in chosen.given().items() if name not in needed}
        return {name: str(value) for name, value in own.items() if not isinstance(value, Tensor)}

    def why_not(self, method: MethodPlan) -> str:
        """Why a method cannot run on this model and data; empty if it can."""
        blank = torch.zeros(2, *_shape(self.data.preprocess))  # whether the model suits does not depend on the images
        count = find(method.method).declaration.source_images
        try:
            for options in method.grid():
                preset = self.preset(method.method, method.preset)
                run = Run(method=method.method, preset=preset, options=options, domains=())
                self._create(run, self.needed(run, lambda count: blank)).detach()
                if count and "source" not in options:
                    if not self.data.has_clean:
                        return f"{find(method.method).title} needs {count} clean images: give {SOURCE_DATA}"
                    self.data.clean.check(count)
        except (ModelError, DataError) as error:  # others are mistakes, and not a model or data that do not suit
            return str(error)
        return ""

    def adapter(self, run: Run) -> AnyAdapter:
        about = {"method": run.method, "revision": revision_of(run.method), "seed": run.seed}
        key = content_key({**about, "options": self.options(run)})
        adapter = self._adapters.get(key)
        if adapter is None:
            adapter = self._create(run, self.needed(run, self.clean_images), classes=self.data.class_indices)
            self._adapters = {key: adapter}  # one at a time: some hold copies of the whole network
        adapter.reset()
        return adapter

    def _create(self, run: Run, needed: dict[str, Any], **more: Any) -> AnyAdapter:
        options = {**needed, **run.options}
        return create(run.method, self.model, preset=run.preset, example=self.example, **more, **options)

    # ---- embeddings

    def uses_cache(self, run: Run) -> bool:
        return find(run.method).declaration.needs == "embeddings"

    def fill(self, runs: Iterable[Run]) -> None:
        """Let the encoder see, once, every image that runs from the cache will ask for."""
        for name, indices in self.wanted(runs).items():
            self.embeddings.fill(self.data.dataset(name), indices)

    def wanted(self, runs: Iterable[Run]) -> dict[str, Indices]:
        """The samples that runs from the cache ask for and the encoder has not seen, by domain."""
        by_domain: dict[str, list[Indices]] = {}
        different = {run.order_key: run for run in runs if self.uses_cache(run)}
        for run in different.values():
            for order in self.orders(run):
                for number, name in enumerate(order.domains):
                    by_domain.setdefault(name, []).append(order.index[order.domain == number])
        return {
            name: self.embeddings.missing(self.data.dataset(name), np.concatenate(indices))
            for name, indices in by_domain.items()
        }


def data_entries(plan: Plan) -> dict[str, Any]:
    return {**{name: getattr(plan, name) for name in DATA_ENTRIES}, "corrupted": bool(plan.corruptions)}


def _shape(ready: Preprocess) -> tuple[int, ...]:
    return tuple(ready.shape) if isinstance(ready, AsIs) else (len(ready.mean), *ready.size)
