"""A session: a model and data opened once, on which the runs of any number of plans are carried out."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.adapters.registry import AnyAdapter, create, find, own_title, revision_of
from neotta.data.base import DataSource
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.data.real_streams import BAD_FRAMES_DOMAIN
from neotta.errors import DataError, ModelError, NeottaError, OptionError, StorageError
from neotta.evaluate.answers import pack
from neotta.evaluate.domains import SOURCE_DATA, Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.keys import RunKeys, order_key, separate_states
from neotta.evaluate.metrics import score
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


class Session:
    """A model and data, opened once, on which any number of plans are carried out.

    Attributes:
        name: The name of the model in records.
        loaded: The model with its preprocessing and labels.
        model: The model.
        weights: A hash of the model: its weights, and how it is built.
        encoder: The part in front of the head.
        head: The head.
        example: Noise of the size that the model takes, to find its head with; None if its library tells the head.
    """

    def __init__(
        self,
        model: str | LoadedModel | Session = "digits",
        data: str | DataSource = "digits",
        *,
        model_options: Mapping[str, Any] | None = None,
        domains: Sequence[str] = (),
        corrupted: bool = False,
        corruption_preset: str | None = None,
        corruption_seed: int = 0,
        source_data: str | None = None,
        class_names: Mapping[str, str] | None = None,
        group_by: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        device: str | None = None,
        source: DataSource | None = None,
    ) -> None:
        self.model_options, self.device = dict(model_options or {}), device
        if isinstance(model, Session):
            self._share_model(model)
        else:
            self._open_model(model)
        self.workers, self._cache = workers, cache
        self._given = data
        self._data = data.layout if isinstance(data, DataSource) else data
        self._selection = {
            "domains": list(domains),
            "corrupted": corrupted,
            "corruption_preset": corruption_preset,
            "corruption_seed": corruption_seed,
            "source_data": source_data,
            "class_names": dict(class_names or {}),
            "group_by": group_by,
        }
        self.data = Domains(
            data if source is None else source,
            self.loaded.labels,
            self.loaded.preprocess,
            outputs=self.head.out_features,
            domains=domains,
            corrupted=corrupted,
            preset=corruption_preset,
            seed=corruption_seed,
            source_data=source_data,
            renamed=class_names,
            group_by=group_by,
        )
        preprocess = self.data.preprocess
        self.embeddings = EmbeddingCache(self.encoder, preprocess, self.weights, cache, workers=workers)
        self._keys = RunKeys(self.data, self.weights)
        self.runner = Runner(self.data, self.embeddings, preprocess, self.head.weight, workers)
        self._adapters: dict[str, AnyAdapter] = {}
        self._filled: set[str] = set()

    def _open_model(self, model: str | LoadedModel) -> None:
        self._model_by_name = not isinstance(model, LoadedModel)
        self.loaded = model if isinstance(model, LoadedModel) else self._load(model)
        self.model = self.loaded.model
        self.name = self.loaded.name or type(self.model).__name__
        self.example = None if of_a_library(self.model) else _noise(self.loaded)
        self.encoder, self.head = split(self.model, example=self.example)
        self.weights = identity(self.model)

    def _load(self, name: str) -> LoadedModel:
        with torch.random.fork_rng():
            torch.manual_seed(0)  # a model with random weights is the same one in every process
            chosen = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            return load_model(name, device=chosen, **self.model_options)

    def _share_model(self, other: Session) -> None:
        self._model_by_name, self.device = other._model_by_name, other.device
        self.loaded, self.model, self.name, self.example = other.loaded, other.model, other.name, other.example
        self.encoder, self.head, self.weights = other.encoder, other.head, other.weights
        if self.model_options != other.model_options:  # they differ in the preprocessing
            values = {**other.loaded.preprocess.to_dict(), **self.model_options["preprocess"]}
            self.loaded = self.loaded._replace(preprocess=Preprocess.from_dict(values))

    @classmethod
    def for_plan(cls, plan: Plan, *, model: LoadedModel | Session | None = None, **settings: Any) -> Session:
        """Open the model and the data of a plan."""
        of_plan = {"data": plan.data, "model_options": plan.model_options, **_selection(plan)}
        return cls(model or plan.model, **{**of_plan, **settings})

    def other(self, plan: Plan) -> Session:
        """A session with the same model for a plan on other domains of the data."""
        return Session.for_plan(plan, model=self, data=self._given, cache=self._cache, workers=self.workers)

    def opener(self, **changes: Any) -> Callable[[], Session]:
        """What opens the same session in another process, with some settings changed; it can be pickled."""
        if not self._model_by_name or isinstance(self._given, DataSource):
            raise OptionError("several processes need the model and the data by name: use jobs=1")
        settings = {"cache": self._cache, "workers": self.workers, "device": self.device, **changes}
        settings |= {"model_options": self.model_options, **self._selection}
        return functools.partial(Session, self.name, self._data, **settings)

    def suits(self, plan: Plan) -> bool:
        """Whether a plan is on this model and data."""
        mine = {name: value for name, value in self._selection.items() if name != "corruption_seed"}
        return self.has_model(plan) and (self._data, mine) == (plan.data, _selection(plan))

    def has_model(self, plan: Plan) -> bool:
        """Whether a plan is on this model."""
        return (self.name, self.model_options) == (plan.model, plan.model_options)

    def runs(self, plan: Plan) -> list[Run]:
        """All runs of a plan."""
        if not self.suits(plan):
            raise OptionError("the plan is on another model or other data than this session: open one for it")
        names = self.data.names(plan.corruptions, plan.severities)
        return [run.model_copy(update={"preset": self.preset(run.method, run.preset)}) for run in plan.runs(names)]

    def preset(self, method: str, preset: str = "paper") -> str:
        """The preset for this data, if a method has one, such as `"paper-cifar10"`; otherwise the preset itself."""
        name = f"{preset}-{self.data.family}"
        return name if name in find(method).Options.presets else preset

    # ---- one run

    def key(self, run: Run) -> str:
        """A hash of everything that the result of a run depends on."""
        return content_key(self._keys.content(run))

    def question(self, run: Run) -> str:
        """A hash of the same without the revision of the method."""
        return self._keys.question(run, self._keys.content(run))

    def orders(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run: one that is adapted to and scored, or one to adapt to and one to score."""
        return self._keys.orders(run)

    def check(self, run: Run) -> None:
        """Validate the run's method and options."""
        self._keys.options(run)

    def adapter(self, run: Run) -> AnyAdapter:
        """The method of a run, at its start."""
        needed = self._keys.needed(run, self._keys.clean_images)
        about = {"method": run.method, "revision": revision_of(run.method), "seed": needed.get("seed")}
        key = content_key({**about, "options": self._keys.options(run)})
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
                needed = self._keys.needed(run, functools.partial(self._keys.blank_images, counts=counts))
                self._create(run, {**needed, **options}).detach()
            for count in counts:
                if not self.data.has_clean:
                    return f"{find(method.method).title} needs {count} clean images: give {SOURCE_DATA}"
                self.data.clean.check(count)
        except (ModelError, DataError) as error:  # others are mistakes, and not a model or data that do not suit
            return str(error)
        return ""

    def execute(self, run: Run) -> tuple[Record, RunResult | None]:
        """Carry a run out."""
        try:
            result = self.predict(run)
            answers = pack(result, self.orders(run)[-1], self.data.dataset, self.data.groups)
            took = "seconds_without_encoder" if self._uses_cache(run) else "seconds"
            scores = {**_scored(run, result), **answers, took: round(result.seconds, 4)}
            return Record.make({**self._about(run), "status": "ok", **scores, **surroundings()}), result
        except StorageError:
            raise
        except Exception as error:  # whatever a method may raise: it is its run that fails, not the sweep
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
            return self.failure(run, f"{type(error).__name__}: {error}{where}"), None

    def failure(self, run: Run, error: str) -> Record:
        """The record of a run that failed."""
        return Record.make({**self._about(run), "status": "failed", "error": error})

    def _about(self, run: Run) -> dict[str, Any]:
        about = {**run.entries(), "domain": run.domain, "model": self.name, "data": self._data}
        about["weights"] = self.weights
        try:
            content = self._keys.content(run)
        except NeottaError:  # without its orders, or with wrong options, a run is known by what was asked for
            return {**about, "key": content_key({"run": about}), "opened": self._opened()}
        manifests = [manifest for manifest, _, _ in content["manifests"]]
        known = {name: content[name] for name in ("options", "preprocess", "revision")} | {"manifests": manifests}
        known["opened"] = self._opened()
        if title := own_title(run.method):
            known["title"] = title
        return {**about, "key": content_key(content), "question": self._keys.question(run, content), **known}

    def _opened(self) -> dict[str, Any]:
        options = {"model_options": self.model_options, **self._selection}
        chosen = {name: value for name, value in options.items() if value not in (None, [], {})}
        entries: dict[str, Any] = json.loads(json.dumps(chosen, default=str))
        return entries

    def predict(self, run: Run) -> RunResult:
        """Carry a run out and return its predictions."""
        self.fill([run])
        return self.runner.predict(
            self.orders(run),
            self.adapter(run),
            from_cache=self._uses_cache(run),
            separate=separate_states(run),
        )

    # ---- embeddings

    def _uses_cache(self, run: Run) -> bool:
        return find(run.method).declaration.needs == "embeddings"

    def fill(self, runs: Iterable[Run], on_encoded: Callable[[int], None] | None = None) -> None:
        """Let the encoder see, once, every image that runs from the cache will ask for."""
        fresh = {key: run for run in runs if (key := order_key(run)) not in self._filled and self._uses_cache(run)}
        for name, indices in self.wanted(fresh.values()).items():
            self.embeddings.fill(self.data.dataset(name), indices, on_encoded)
        self._filled.update(fresh)

    def wanted(self, runs: Iterable[Run]) -> dict[str, Indices]:
        """The samples that runs from the cache ask for and the encoder has not seen, by domain."""
        by_domain: dict[str, list[Indices]] = {}
        different = {order_key(run): run for run in runs if self._uses_cache(run)}
        for run in different.values():
            for order in self.orders(run):
                for number, name in enumerate(order.domains):
                    by_domain.setdefault(name, []).append(order.index[order.domain == number])
        return {
            name: self.embeddings.missing(self.data.dataset(name), np.concatenate(indices))
            for name, indices in by_domain.items()
        }


def _scored(run: Run, result: RunResult) -> dict[str, Any]:
    scores = score(result)
    shown = [name for name in dict.fromkeys(result.domains) if not name.startswith(BAD_FRAMES_DOMAIN)]
    per_domain = scores.pop("per_domain", dict.fromkeys(shown, scores["metrics"]))
    if len(run.domains) > 1:
        scores["per_domain"] = {name: per_domain[name] for name in shown}
    return scores


def _selection(plan: Plan) -> dict[str, Any]:
    return {
        "domains": plan.domains,
        "corrupted": bool(plan.corruptions),
        "corruption_preset": plan.corruption_preset,
        "source_data": plan.source,
        "class_names": plan.class_names,
        "group_by": plan.group_by,
    }


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
