"""A session: a model and data opened once, on which the runs of any number of plans are carried out."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import AnyAdapter, create, find, own_title, revision_of
from neotta.data.base import DataSource
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.data.real_streams import BAD_FRAMES_DOMAIN
from neotta.errors import DataError, ModelError, NeottaError, OptionError, StorageError
from neotta.evaluate.answers import pack
from neotta.evaluate.domains import SOURCE_DATA, Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.metrics import score
from neotta.evaluate.orders import ORDERS, Request, order_options
from neotta.evaluate.plan import MethodPlan, Plan, Run
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.provenance import surroundings
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.running import Runner
from neotta.models.load import LoadedModel, load_model
from neotta.models.preprocess import AsIs, Preprocess
from neotta.neo.find_head import of_a_library
from neotta.neo.split import split
from neotta.neo.statefile import fingerprint

LIBRARIES = ("torch", "torchvision", "timm", "transformers", "neotta")
"""Packages whose versions are on record; the code of any other module counts by its text."""
KEPT = 4_000_000
"""Number of samples up to which orders are kept: about 100 MB."""
DATA_ENTRIES = ("data", "domains", "corruption_preset", "source", "class_names", "group_by")
"""Entries of a plan that say which data is opened."""


class Session:
    """The model and the data of a plan, opened once; other plans on the same model and data can be carried out, too.

    `model` is the model of the plan if it is open already, or a session whose model is used; `source` is its data.

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
        model: LoadedModel | Session | None = None,
        source: DataSource | None = None,
        cache: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        device: str | None = None,
    ) -> None:
        self.plan, self.name = plan, plan.model
        self.workers, self.device, self._cache = workers, device, cache
        if isinstance(model, Session):
            self._share_model(model)
        else:
            self.loaded = model or self._load()
            self.example = None if of_a_library(self.loaded.model) else _noise(self.loaded)
            self.encoder, self.head = split(self.loaded.model, example=self.example)
            self.weights = identity(self.loaded.model)
        self.model = self.loaded.model
        self.data = Domains(plan, self.loaded.labels, self.loaded.preprocess, self.head.out_features, source)
        preprocess = self.data.preprocess
        self.embeddings = EmbeddingCache(self.encoder, preprocess, self.weights, cache, workers=workers)
        self.runner = Runner(self.data, self.embeddings, preprocess, self.head.weight, workers)
        self.clean_images: Callable[[int], Tensor] = functools.cache(lambda count: self.data.clean.images(count))
        self._clean_digest: Callable[[int], str] = functools.cache(lambda count: self.data.clean.digest(count))
        self._orders: OrderedDict[str, tuple[Order, ...]] = OrderedDict()
        self._kept = 0
        self._hashes: dict[str, list[str]] = {}
        self._adapters: dict[str, AnyAdapter] = {}
        self._filled: set[str] = set()

    def _load(self) -> LoadedModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # a model with random weights is the same one in every process
            chosen = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            return load_model(self.name, device=chosen, **self.plan.model_options)

    def _share_model(self, other: Session) -> None:
        self.device, self.loaded, self.example = other.device, other.loaded, other.example
        self.encoder, self.head, self.weights = other.encoder, other.head, other.weights
        if self.plan.model_options != other.plan.model_options:  # they differ in the preprocessing
            values = {**other.loaded.preprocess.to_dict(), **self.plan.model_options["preprocess"]}
            self.loaded = self.loaded._replace(preprocess=Preprocess.from_dict(values))

    def other(self, plan: Plan) -> Session:
        """A session with the same model for a plan on other domains of the data."""
        return Session(plan, model=self, source=self.data.whole, cache=self._cache, workers=self.workers)

    def opener(self, **changes: Any) -> Callable[[], Session]:
        """What opens the same session in another process, with some settings changed; it can be pickled."""
        settings = {"cache": self._cache, "workers": self.workers, "device": self.device, **changes}
        return functools.partial(Session, self.plan, **settings)

    def suits(self, plan: Plan) -> bool:
        return self.has_model(plan) and _data_entries(self.plan) == _data_entries(plan)

    def has_model(self, plan: Plan) -> bool:
        return (self.plan.model, self.plan.model_options) == (plan.model, plan.model_options)

    def runs(self, plan: Plan) -> list[Run]:
        if not self.suits(plan):
            raise OptionError("the plan is on another model or other data than this session: open one for it")
        names = self.data.names(plan.corruptions, plan.severities)
        return [run.model_copy(update={"preset": self.preset(run.method, run.preset)}) for run in plan.runs(names)]

    def preset(self, method: str, preset: str = "paper") -> str:
        """The preset for this data, if a method has one, such as `"paper-cifar10"`; otherwise the preset itself."""
        name = f"{preset}-{self.data.family}"
        return name if name in find(method).Options.presets else preset

    # ---- the orders of runs, and their keys: hashes of everything that their results depend on

    def orders(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run; those that differ only in their method share them.

        A single order is adapted to and scored. Of two, the first is adapted to, and the second is scored with the
        state frozen.
        """
        key = run.order_key
        if key not in self._orders:
            self._orders[key] = made = self._make_orders(run)
            self._kept += sum(len(order) for order in made)
            while self._kept > KEPT and len(self._orders) > 1:
                _, oldest = self._orders.popitem(last=False)
                self._kept -= sum(len(order) for order in oldest)
        self._orders.move_to_end(key)
        return self._orders[key]

    def _make_orders(self, run: Run) -> tuple[Order, ...]:
        options, data = order_options(run.protocol, run.order, run.order_options), self.data
        source = {} if run.source_domain is None else {run.source_domain: data.dataset(run.source_domain)}
        targets = {name: data.dataset(name) for name in run.domains}
        common = {"seed": run.seed, "batch_size": run.batch_size}
        request = Request(targets, source, lambda: data.bad_frames, run.samples, run.held_out_samples, common)
        return ORDERS[run.protocol, run.order].make(request, options)

    def key(self, run: Run) -> str:
        return content_key(self.content(run))

    def content(self, run: Run) -> dict[str, Any]:
        """Everything that the result of a run depends on; its hash is the key."""
        hashes = self._order_hashes(run)
        last = len(hashes) - 1
        counts: list[int] = []
        options = self.options(run, counts)
        classes = self.data.class_indices
        return {
            **({"source": self._clean_digest(max(counts))} if counts else {}),
            **({"separate": True} if run.separate_states else {}),
            **({"tuned": run.tuned} if run.tuned is not None else {}),
            **({"groups": groups} if (groups := self._groups_hash(run)) else {}),
            "revision": revision_of(run.method),
            "weights": self.weights,
            "preprocess": self.data.preprocess.to_dict(),
            "classes": None if classes is None else [int(index) for index in classes],
            "manifests": [(manifest, place == 0, place == last) for place, manifest in enumerate(hashes)],
            "protocol": run.protocol,
            "samples": run.samples,
            "seed": run.seed,
            "method": run.method,
            "options": options,
        }

    def _order_hashes(self, run: Run) -> list[str]:
        if run.order_key not in self._hashes:
            hashes = [f"{order.hash()}-{self.data.digest(order)}" for order in self.orders(run)]
            self._hashes[run.order_key] = hashes
        return self._hashes[run.order_key]

    def _groups_hash(self, run: Run) -> str:
        numbers = [self.data.groups(name) for name in self.orders(run)[-1].domains]
        if all(number is None for number in numbers):
            return ""
        return content_key({"groups": [None if number is None else number.tolist() for number in numbers]})

    def question(self, run: Run, content: Mapping[str, Any] | None = None) -> str:
        """A hash of the content without the revision, so that records of other revisions can be found.

        Records from before seeds and source images were in the key answer it, too: they had the method's own seed, and
        clean images of the data.
        """
        content = self.content(run) if content is None else content
        kind, options = find(run.method), content["options"]
        if kind.declaration.random:
            options = {"seed": str(kind.Options.model_fields["seed"].default), **options}
        new = ("revision", "source") if self.plan.source is None else ("revision",)
        return content_key({**{name: content[name] for name in content if name not in new}, "options": options})

    def options(self, run: Run, counts: list[int] | None = None) -> dict[str, str]:
        """All options of a run as records write them, without those that follow from model, data and seed.

        The numbers of clean images that the method asks for are added to `counts`.
        """
        needed = self.needed(run, functools.partial(self.blank_images, counts=[] if counts is None else counts))
        chosen = find(run.method).Options.make(run.method, {**needed, **run.options}, run.preset)
        own = {name: value for name, value in chosen.given().items() if name not in needed}
        return {name: str(value) for name, value in own.items() if not isinstance(value, Tensor)}

    def needed(self, run: Run, source: Callable[[int], Tensor]) -> dict[str, Any]:
        """Options that follow from the model, the data and the seed, unless the run gives them."""
        ready = self.data.preprocess
        mean, std = (None, None) if isinstance(ready, AsIs) else (ready.mean, ready.std)
        facts = DataFacts(mean=mean, std=std, source=source, seed=run.seed)
        return find(run.method).declaration.data_options(facts, run.options)

    def blank_images(self, count: int, counts: list[int]) -> Tensor:
        """Two placeholder images, where only their shape matters; records how many were asked for."""
        counts.append(count)
        ready = self.data.preprocess
        return torch.zeros(2, *ready.shape) if isinstance(ready, AsIs) else torch.zeros(2, 3, *ready.size)

    # ---- one run

    def adapter(self, run: Run) -> AnyAdapter:
        needed = self.needed(run, self.clean_images)
        about = {"method": run.method, "revision": revision_of(run.method), "seed": needed.get("seed")}
        key = content_key({**about, "options": self.options(run)})
        adapter = self._adapters.get(key)
        if adapter is None:
            options = {**needed, **run.options}
            adapter = self._create(run, options, classes=self.data.class_indices)
            self._adapters = {key: adapter}  # one at a time: some hold copies of the whole network
        adapter.reset()
        return adapter

    def _create(self, run: Run, options: Mapping[str, Any], **more: Any) -> AnyAdapter:
        return create(run.method, self.model, preset=run.preset, example=self.example, **more, **options)

    def why_not(self, method: MethodPlan) -> str:
        """Why a method cannot run on this model and data; empty if it can."""
        counts: list[int] = []
        try:
            for options in method.grid():
                preset = self.preset(method.method, method.preset)
                run = Run(method=method.method, preset=preset, options=options, domains=())
                needed = self.needed(run, functools.partial(self.blank_images, counts=counts))
                self._create(run, {**needed, **options}).detach()
            for count in counts:
                if not self.data.has_clean:
                    return f"{find(method.method).title} needs {count} clean images: give {SOURCE_DATA}"
                self.data.clean.check(count)
        except (ModelError, DataError) as error:  # others are mistakes, and not a model or data that do not suit
            return str(error)
        return ""

    def execute(self, run: Run) -> tuple[Record, RunResult | None]:
        """The record of a run and its predictions; a run that fails gives a record that says so, and None."""
        try:
            result = self.predict(run)
            answers = pack(result, self.orders(run)[-1], self.data.dataset, self.data.groups)
            took = "seconds_without_encoder" if _uses_cache(run) else "seconds"
            scores = {**_scored(run, result), **answers, took: round(result.seconds, 4)}
            return Record.make({**self._about(run), "status": "ok", **scores, **surroundings()}), result
        except StorageError:  # it would be so for every other run
            raise
        except Exception as error:  # whatever a method may raise: it is its run that fails, not the sweep
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
            return self.failure(run, f"{type(error).__name__}: {error}{where}"), None

    def failure(self, run: Run, error: str) -> Record:
        return Record.make({**self._about(run), "status": "failed", "error": error})

    def _about(self, run: Run) -> dict[str, Any]:
        about = {**run.entries(), "domain": run.domain, "model": self.name, "data": self.plan.data}
        about["weights"] = self.weights
        chosen = {"model_options": self.plan.model_options, **_data_entries(self.plan)}
        chosen = {name: value for name, value in chosen.items() if name != "data" and value not in (None, [], {})}
        opened = {"opened": json.loads(json.dumps(chosen, default=str))}  # tells how to repeat the run
        try:
            content = self.content(run)
        except NeottaError:  # without its orders, or with wrong options, a run is known by what was asked for
            return {**about, "key": content_key({"run": about}), **opened}
        manifests = [manifest for manifest, _, _ in content["manifests"]]
        known = {name: content[name] for name in ("options", "preprocess", "revision")} | {"manifests": manifests}
        if title := own_title(run.method):
            known["title"] = title
        return {**about, "key": content_key(content), "question": self.question(run, content), **known, **opened}

    def predict(self, run: Run) -> RunResult:
        self.fill([run])
        how = {"from_cache": _uses_cache(run), "separate": run.separate_states}
        return self.runner.predict(self.orders(run), self.adapter(run), **how)

    # ---- embeddings

    def fill(self, runs: Iterable[Run]) -> None:
        """Let the encoder see, once, every image that runs from the cache will ask for."""
        fresh = {run.order_key: run for run in runs if _uses_cache(run) and run.order_key not in self._filled}
        for name, indices in self.wanted(fresh.values()).items():
            self.embeddings.fill(self.data.dataset(name), indices)
        self._filled.update(fresh)

    def wanted(self, runs: Iterable[Run]) -> dict[str, Indices]:
        """The samples that runs from the cache ask for and the encoder has not seen, by domain."""
        by_domain: dict[str, list[Indices]] = {}
        different = {run.order_key: run for run in runs if _uses_cache(run)}
        for run in different.values():
            for order in self.orders(run):
                for number, name in enumerate(order.domains):
                    by_domain.setdefault(name, []).append(order.index[order.domain == number])
        return {
            name: self.embeddings.missing(self.data.dataset(name), np.concatenate(indices))
            for name, indices in by_domain.items()
        }


def _data_entries(plan: Plan) -> dict[str, Any]:
    return {**{name: getattr(plan, name) for name in DATA_ENTRIES}, "corrupted": bool(plan.corruptions)}


def _uses_cache(run: Run) -> bool:
    return find(run.method).declaration.needs == "embeddings"


def _scored(run: Run, result: RunResult) -> dict[str, Any]:
    scores = score(result)
    shown = [name for name in dict.fromkeys(result.domains) if not name.startswith(BAD_FRAMES_DOMAIN)]
    per_domain = scores.pop("per_domain", dict.fromkeys(shown, scores["metrics"]))
    if len(run.domains) > 1:
        scores["per_domain"] = {name: per_domain[name] for name in shown}
    return scores


def _noise(loaded: LoadedModel) -> Tensor:
    like, ready = next(loaded.model.parameters()), loaded.preprocess
    shape = (2, *ready.shape) if isinstance(ready, AsIs) else (2, len(ready.mean), *ready.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like)


def identity(model: nn.Module) -> str:
    """A hash that differs where models may give different results.

    Two models with the same weights differ if a layer has another option (the eps of a norm, say), or if a class that
    is not part of a library was written again.
    """
    parts = [fingerprint(model.state_dict()), repr(model)]
    kinds = {type(module) for module in model.modules()}
    parts += sorted(_source(kind) for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"
