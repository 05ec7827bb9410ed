"""Carrying out runs: a model and data opened once, on which the runs of any number of plans are executed."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neotta.adapters.registry import AnyAdapter, create, find
from neotta.data.bad_frames import DOMAIN as BAD_FRAMES
from neotta.data.blended import scored_as
from neotta.data.drawing import Indices
from neotta.data.order import Order
from neotta.data.source import DataSource
from neotta.errors import DataError, ModelError, NeottaError, OptionError, StorageError
from neotta.evaluate.answers import pack
from neotta.evaluate.batches import Batches
from neotta.evaluate.calibration import Calibration, Progress
from neotta.evaluate.domains import SOURCE_DATA, Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.machine import surroundings
from neotta.evaluate.method_plan import MethodPlan
from neotta.evaluate.metrics import score
from neotta.evaluate.opened_model import OpenedModel
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.protocols import ProtocolOrders, order_key, separate_states
from neotta.evaluate.provenance import code_of
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.run_keys import RunKeys
from neotta.evaluate.running import Runner


class Workbench:
    """A model and data, opened once, on which any number of plans are carried out.

    Args:
        model: What `neotta.load_model` takes, or a model that another workbench opened.
        data: What `neotta.data.open_data` takes.
        model_options: Further arguments of `neotta.load_model`.
        domains: Only these domains of the data; all if empty.
        corrupted: Whether the plans name corruptions of the data's images.
        corruption_preset: Of the corruptions; by default chosen by the size of the images.
        corruption_seed: Of the corruptions.
        source_data: Clean images for methods that need some, as `PATH` or `PATH:domain`; by default those of the data.
        cache: A folder for embeddings; None keeps them in memory.
        workers: Loader processes; None chooses.
        device: Where the model runs; by default a GPU if there is one.
        source: The data, if it is open already.
    """

    def __init__(
        self,
        model: str | OpenedModel = "digits",
        data: str = "digits",
        *,
        model_options: Mapping[str, Any] | None = None,
        domains: Sequence[str] = (),
        corrupted: bool = False,
        corruption_preset: str | None = None,
        corruption_seed: int = 0,
        source_data: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        device: str | None = None,
        source: DataSource | None = None,
    ) -> None:
        self.opened = opened = model if isinstance(model, OpenedModel) else OpenedModel(model, model_options, device)
        self.model, self.head, self.loaded = opened.module, opened.head, opened.loaded
        self.workers, self._data, self._cache = workers, data, cache
        self._selection = {
            "domains": list(domains),
            "corrupted": corrupted,
            "corruption_preset": corruption_preset,
            "corruption_seed": corruption_seed,
            "source_data": source_data,
        }
        self.data = Domains(
            data if source is None else source,
            opened.loaded.labels,
            opened.loaded.preprocess,
            domains=domains,
            corrupted=corrupted,
            preset=corruption_preset,
            seed=corruption_seed,
            source_data=source_data,
        )
        preprocess = self.data.preprocess
        self.embeddings = EmbeddingCache(opened.encoder, preprocess, opened.weights, cache, workers=workers)
        self._orders = ProtocolOrders(self.data, Calibration(self.data, self.embeddings, self.head))
        self._keys = RunKeys(self.data, self._orders, opened.weights)
        self.runner = Runner(Batches(self.data, self.embeddings, preprocess, self.head.weight, workers))
        self._adapters: dict[str, AnyAdapter] = {}
        self._filled: set[str] = set()

    @classmethod
    def for_plan(cls, plan: Plan, *, model: OpenedModel | None = None, **settings: Any) -> Workbench:
        """Open the model and the data of a plan.

        Args:
            plan: The plan; others on the same model and data can be carried out, too.
            model: The model, if it is open already.
            **settings: Further arguments of the workbench.
        """
        return cls(model or plan.model, plan.data, model_options=plan.model_options, **_selection(plan), **settings)

    def surroundings(self) -> dict[str, Any]:
        """What opens another workbench with the same model, cache and workers, for other data."""
        return {"model": self.opened, "cache": self._cache, "workers": self.workers}

    def opener(self, **changes: Any) -> Callable[[], Workbench]:
        """What opens the same workbench in another process, with some settings changed; it can be pickled."""
        settings = {"cache": self._cache, "workers": self.workers, "device": self.opened.device, **changes}
        settings |= {"model_options": self.opened.options, **self._selection}
        return functools.partial(Workbench, self.opened.name, self._data, **settings)

    def suits(self, plan: Plan) -> bool:
        """Whether a plan is on this model and data."""
        mine = {name: value for name, value in self._selection.items() if name != "corruption_seed"}
        same_model = self.opened.made_from(plan.model, plan.model_options)
        return same_model and (self._data, mine) == (plan.data, _selection(plan))

    def runs(self, plan: Plan) -> list[Run]:
        """All runs of a plan.

        Raises:
            OptionError: The plan is on another model or other data.
        """
        if not self.suits(plan):
            raise OptionError("the plan is on another model or other data than this workbench: open one for it")
        found = plan.runs(self.data.names(plan.corruptions, plan.severities))
        return [run.model_copy(update={"preset": self.preset(run.method, run.preset)}) for run in found]

    def preset(self, method: str, preset: str = "paper") -> str:
        """The preset for this data, if a method has one, such as `"paper-cifar10"`; otherwise the preset itself."""
        name = f"{preset}-{self.data.family}"
        return name if name in find(method).Options.presets else preset

    @property
    def weights(self) -> str:
        """A hash of the model: its weights, and how it is built."""
        return self.opened.weights

    # ---- one run

    def key(self, run: Run) -> str:
        """A hash of everything that the result of a run depends on."""
        return content_key(self._keys.content(run))

    def question(self, run: Run) -> str:
        """A hash of the same without the code: records of the same question differ only in the code that made them."""
        return self._keys.question(run, self._keys.content(run))

    def orders(self, run: Run) -> tuple[Order, ...]:
        """The orders of a run: one that is adapted to and scored, or one to adapt to and one to score."""
        return self._orders.of(run)

    def calibrate(self, plan: Plan, progress: Progress | None = None) -> None:
        """Measure the unadapted model where the orders of a plan depend on it; otherwise do nothing.

        Raises:
            OptionError: The model or the data cannot be calibrated.
        """
        runs = self.runs(plan)
        for run in {order_key(run): run for run in runs}.values():
            self._orders.calibrate(run, progress)

    def check(self, run: Run) -> None:
        """Validate the run's method and options.

        Raises:
            UnknownMethodError: There is no such method.
            OptionError: An option or preset is unknown or wrong.
        """
        self._keys.options(run)

    def adapter(self, run: Run) -> AnyAdapter:
        """The method of a run, at its start."""
        needed = self._keys.needed(run, self._keys.clean_images)
        about = {"method": run.method, "code": code_of(run.method), "seed": needed.get("seed")}
        key = content_key({**about, "options": self._keys.options(run)})
        found = self._adapters.get(key)
        if found is None:
            options = {**needed, **run.options}
            found = self._create(run, options, classes=self.data.kept)
            self._adapters = {key: found}  # one at a time: some hold copies of the whole network
        found.reset()
        return found

    def _create(self, run: Run, options: Mapping[str, Any], **more: Any) -> AnyAdapter:
        return create(run.method, self.model, preset=run.preset, example=self.opened.example, **more, **options)

    def why_not(self, method: MethodPlan) -> str:
        """Why a method cannot run on this model and data; empty if it can."""
        asked: list[int] = []
        try:
            for options in method.grid():
                preset = self.preset(method.method, method.preset)
                run = Run(method=method.method, preset=preset, options=options, domains=())
                needed = self._keys.needed(run, functools.partial(self._keys.blank_images, asked=asked))
                self._create(run, {**needed, **options}).detach()
            for count in asked:
                if not self.data.has_clean:
                    return f"{find(method.method).title} needs {count} clean images: give {SOURCE_DATA}"
                self.data.clean.check(count)
        except (ModelError, DataError) as error:  # others are mistakes, and not a model or data that do not suit
            return str(error)
        return ""

    def execute(self, run: Run, *, resumable: bool = False) -> tuple[Record, RunResult | None]:
        """Carry a run out.

        Args:
            run: The run.
            resumable: Whether a run that differs only by more samples comes next.

        Returns:
            Its record and its predictions; a run that fails gives a record that says so, and None.

        Raises:
            StorageError: The cache cannot be written, which would be so for every other run.
        """
        try:
            result = self.predict(run, resumable=resumable)
            answers = pack(result, self.orders(run)[-1], run.samples, self.data.dataset)
            took = "seconds_without_encoder" if self._uses_cache(run) else "seconds"
            scores = {**_scored(run, result), **answers, took: round(result.seconds, 4)}
            return {**self._about(run), "status": "ok", **scores, **surroundings()}, result
        except StorageError:
            raise
        except Exception as error:  # whatever a method may raise: it is its run that fails, not the sweep
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
            return self.failure(run, f"{type(error).__name__}: {error}{where}"), None

    def failure(self, run: Run, error: str) -> Record:
        """The record of a run that failed."""
        return {**self._about(run), "status": "failed", "error": error}

    def _about(self, run: Run) -> Record:
        """What is known of a run before it is carried out."""
        about = {**run.entries(), "domain": run.domain, "model": self.opened.name, "data": self._data}
        about["weights"] = self.weights
        try:
            content = self._keys.content(run)
        except NeottaError:  # without its orders, or with wrong options, a run is known by what was asked for
            return {**about, "key": content_key({"run": about}), "opened": self._opened()}
        manifests = [manifest for manifest, _, _ in content["manifests"]]
        known = {name: content[name] for name in ("options", "preprocess", "code")} | {"manifests": manifests}
        known["opened"] = self._opened()
        if "calibration" in (parameters := self.orders(run)[0].parameters):
            known["calibration"] = parameters["calibration"]
        return {**about, "key": content_key(content), "question": self._keys.question(run, content), **known}

    def _opened(self) -> dict[str, Any]:
        """How model and data were opened, as JSON, so that a record tells how to repeat its run."""
        given = {"model_options": self.opened.options, **self._selection}
        kept = {name: value for name, value in given.items() if value not in (None, [], {})}
        found: dict[str, Any] = json.loads(json.dumps(kept, default=str))
        return found

    def predict(self, run: Run, *, resumable: bool = False) -> RunResult:
        """Carry a run out and return its predictions."""
        self.fill([run])
        return self.runner.predict(
            content_key(run.entries(without=["samples"])),
            self.orders(run),
            functools.partial(self.adapter, run),
            from_cache=self._uses_cache(run),
            resumable=resumable,
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
        asked: dict[str, list[Indices]] = {}
        different = {order_key(run): run for run in runs if self._uses_cache(run)}
        for run in different.values():
            for order in self.orders(run):
                for number, name in enumerate(order.domains):
                    asked.setdefault(name, []).append(order.index[order.domain == number])
        return {
            name: self.embeddings.missing(self.data.dataset(name), np.concatenate(indices))
            for name, indices in asked.items()
        }


def _scored(run: Run, result: RunResult) -> Record:
    """What a result is worth: blends of the same two corruptions are one domain, and bad frames are none."""
    names = {name: scored_as(name) for name in dict.fromkeys(result.domains)}
    scores = score(dataclasses.replace(result, domains=[names[name] for name in result.domains]))
    shown = [name for name in dict.fromkeys(names.values()) if not name.startswith(BAD_FRAMES)]
    per_domain = scores.pop("per_domain", dict.fromkeys(shown, scores["metrics"]))
    if len(run.domains) > 1:  # also if a path was cut short in its first part
        scores["per_domain"] = {name: per_domain[name] for name in shown}
    return scores


def _selection(plan: Plan) -> dict[str, Any]:
    """What of the data a plan is about."""
    return {
        "domains": plan.domains,
        "corrupted": bool(plan.corruptions),
        "corruption_preset": plan.corruption_preset,
        "source_data": plan.source,
    }
