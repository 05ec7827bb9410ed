"""Carrying out runs: a model and data opened once, every run of a plan executed on them."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import AnyAdapter, code_hash, create, find
from neotta.data.drawing import Indices
from neotta.errors import NeottaError, StorageError
from neotta.evaluate.batches import TOGETHER, Batches
from neotta.evaluate.domains import Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.machine import surroundings
from neotta.evaluate.outputs import Outputs, Part
from neotta.evaluate.phases import Phase, Phases, stream_key
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.scores import score
from neotta.evaluate.trail import Trail, full_batches
from neotta.models.identity import identity
from neotta.models.load import load_model
from neotta.neo.split import split

Progress = Callable[[str, int], None]


class Workbench:
    """A model and data, opened once, on which the runs of a plan are carried out.

    Args:
        plan: What to measure.
        cache: A folder for embeddings; None keeps them in memory.
        cached: Whether methods that need only embeddings run from the cache.
        workers: Of the loaders; None chooses.
        device: Where the model runs; by default a GPU if there is one.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        cache: str | os.PathLike[str] | None = None,
        cached: bool = True,
        workers: int | None = None,
        device: str | None = None,
    ) -> None:
        self.plan, self.cached = plan, cached
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with torch.random.fork_rng():
            torch.manual_seed(0)  # a model with random weights is the same one in every process
            self.loaded = load_model(plan.model, device=device, **plan.model_options)
        self.model = self.loaded.model
        self.data = Domains(plan, self.loaded.labels, self.loaded.preprocess)
        encoder, self.head = split(self.model)
        self.embeddings = EmbeddingCache(encoder, self.data.preprocess, self.weights, cache, workers=workers)
        self._phases = Phases(self.data)
        self._batches = Batches(self.data, self.embeddings, self.data.preprocess, self.head.weight, workers)
        self._adapters: dict[str, AnyAdapter] = {}
        self._filled: set[str] = set()
        self._trail: Trail | None = None

    @cached_property
    def weights(self) -> str:
        """A hash of the model: its weights, and how it is built."""
        return identity(self.model)

    @cached_property
    def _preprocess(self) -> dict[str, Any]:
        return self.data.preprocess.to_dict()

    def runs(self) -> list[Run]:
        """All runs of the plan."""
        return self.plan.runs(self.data.names)

    # ---- one run

    def key(self, run: Run) -> str:
        """What the result of a run depends on, as a hash."""
        return content_key(self._content(run))

    def _content(self, run: Run) -> dict[str, Any]:
        phases = zip(self._phases.hashes(run), self.phases(run), strict=True)
        code = code_hash(run.method)
        return {
            **({"code": code} if code else {}),
            "weights": self.weights,
            "preprocess": self._preprocess,
            "classes": None if self.data.kept is None else [int(index) for index in self.data.kept],
            "manifests": [(manifest, phase.adapt, phase.scored) for manifest, phase in phases],
            "protocol": run.protocol,
            "samples": run.samples,
            "seed": run.seed,
            "method": run.method,
            "options": self._options(run),
        }

    def _options(self, run: Run) -> dict[str, Any]:
        """All options of a run as records write them, without those that follow from the model and the data."""
        needed = self._needed(run)
        chosen = _find(run.method).Options.make(run.method, {**needed, **run.options}, run.preset)
        kept = {name: value for name, value in chosen.given().items() if name not in needed}
        return {name: str(value) for name, value in kept.items() if not isinstance(value, Tensor)}

    def phases(self, run: Run) -> list[Phase]:
        """The streams of a run."""
        return self._phases.of(run)

    def check(self, run: Run) -> None:
        """See to it that the method of a run exists and takes its options.

        Raises:
            UnknownMethodError: There is no such method.
            OptionError: An option or preset is unknown or wrong.
        """
        self._options(run)

    def adapter(self, run: Run) -> AnyAdapter:
        """The method of a run, at its start."""
        key = content_key({"method": run.method, "options": self._options(run)})
        found = self._adapters.get(key)
        if found is None:
            options = {**self._needed(run), **run.options}
            found = create(run.method, self.model, preset=run.preset, classes=self.data.kept, **options)
            self._adapters = {key: found}  # one at a time: some hold copies of the whole network
        found.reset()
        return found

    def _needed(self, run: Run) -> dict[str, Any]:
        """Options that follow from the model and the data, unless the run gives them."""
        return _find(run.method).declaration.data_options(self.facts, run.options)

    @cached_property
    def facts(self) -> DataFacts:
        """What methods can ask of the data."""
        preprocess, source = self.data.preprocess, functools.cache(self.data.source_images)
        return DataFacts(mean=preprocess.mean, std=preprocess.std, source=source)

    def predict(self, run: Run, progress: Progress | None = None, *, logits: bool = True) -> Outputs:
        """Carry a run out and return what it predicted.

        Args:
            run: The run.
            progress: Is told the method and the number of samples after each batch.
            logits: Whether to keep all logits; what the scores need of them is a thousandth as large.
        """
        self.fill([run])
        with one_thread() if self._uses_cache(run) else contextlib.nullcontext():
            return self._predict(run, progress, logits)

    def _predict(self, run: Run, progress: Progress | None, logits: bool) -> Outputs:
        phases = self.phases(run)
        key = content_key({**run.model_dump(mode="json", exclude={"samples"}), "logits": logits})
        trail, self._trail = self._trail, None
        if trail is not None and trail.leads_to(key, phases[0].stream):
            (adapter, part), start = trail.take_up(), trail.stop
        else:
            adapter, part, start = self.adapter(run), Part(), 0
        outputs = Outputs()
        for phase in phases:
            if phase is phases[0] and len(self.plan.samples) > 1:
                stop = full_batches(phase.stream)
                self._advance(adapter, phase, part, start, stop, logits, progress)
                self._trail, start = Trail.at(key, phase.stream, stop, part, adapter), stop
            self._advance(adapter, phase, part, start, len(phase.stream), logits, progress)
            outputs.add(phase.stream, part)
            part, start = Part(), 0
        outputs.not_adapted = adapter.skipped
        return outputs

    def execute(self, run: Run, progress: Progress | None = None) -> Record:
        """Carry a run out and return its record; a run that fails gives a record that says so.

        Raises:
            StorageError: The cache cannot be written to, which would be so for every other run.
        """
        try:
            outputs = self.predict(run, progress, logits=False)
            return {**self._about(run), "status": "ok", **score(outputs), "seconds": outputs.seconds, **surroundings()}
        except StorageError:
            raise
        except Exception as error:  # whatever a method may raise: it is its run that fails, not the sweep
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
            return self.failure(run, f"{type(error).__name__}: {error}{where}")

    def failure(self, run: Run, error: str) -> Record:
        """The record of a run that failed."""
        return {**self._about(run), "status": "failed", "error": error}

    def _about(self, run: Run) -> Record:
        """What is known of a run before it is carried out."""
        about = {**run.model_dump(mode="json"), "domain": run.domain, "model": self.plan.model, "data": self.plan.data}
        about["weights"] = self.weights
        try:
            content = self._content(run)
        except NeottaError:  # without its streams, or with wrong options, a run is known by what was asked for
            return {**about, "key": content_key({"run": about})}
        manifests = [manifest for manifest, _, _ in content["manifests"]]
        return {**about, "key": content_key(content), "options": content["options"], "manifests": manifests}

    # ---- batches

    def fill(self, runs: Iterable[Run], progress: Callable[[int], None] | None = None) -> None:
        """Let the encoder see, once, every image that runs from the cache will ask for."""
        fresh = {key: run for run in runs if (key := stream_key(run)) not in self._filled and self._uses_cache(run)}
        for name, indices in self.wanted(fresh.values()).items():
            self.embeddings.fill(self.data.dataset(name), indices, progress)
        self._filled.update(fresh)

    def _uses_cache(self, run: Run) -> bool:
        return self.cached and _find(run.method).declaration.needs == "embeddings"

    def wanted(self, runs: Iterable[Run]) -> dict[str, Indices]:
        """The samples that runs from the cache ask for and the encoder has not seen, by domain."""
        asked: dict[str, list[Indices]] = {}
        seen: set[str] = set()
        for run in runs:
            if not self._uses_cache(run) or stream_key(run) in seen:
                continue
            seen.add(stream_key(run))
            for stream, _, _ in self.phases(run):
                for number, name in enumerate(stream.domains):
                    asked.setdefault(name, []).append(stream.index[stream.domain == number])
        return {
            name: self.embeddings.missing(self.data.dataset(name), np.concatenate(indices))
            for name, indices in asked.items()
        }

    def _advance(
        self,
        adapter: AnyAdapter,
        phase: Phase,
        part: Part,
        start: int,
        stop: int,
        keep_logits: bool,
        progress: Progress | None,
    ) -> None:
        """Let an adapter go through the entries of a phase from `start` to `stop`, both borders of batches."""
        began = time.perf_counter()
        from_cache = self.cached and isinstance(adapter, EmbeddingAdapter)
        batches = self._batches.embeddings if from_cache else self._batches.images
        labels = functools.partial(self._batches.labels, phase.stream)
        waiting = 0
        for inputs, entries, unreadable in batches(phase.stream, start, stop):
            part.unreadable += unreadable
            if len(entries) == 0:
                continue
            if from_cache and isinstance(adapter, EmbeddingAdapter):
                logits = adapter.predict_embeddings(inputs, adapt=phase.adapt)
            else:
                logits = adapter(inputs, adapt=phase.adapt)
            if phase.scored:
                part.fresh.append((entries, logits.cpu()))
                waiting += len(entries)
                if waiting >= TOGETHER:
                    part.look_at(labels, keep_logits)
                    waiting = 0
            if progress is not None:
                progress(adapter.name, len(entries))
        part.seconds += time.perf_counter() - began
        part.look_at(labels, keep_logits)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: what is done with a batch of embeddings is too little to be shared out.

    The results then do not depend on the number of cores either.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _find(method: str) -> type[AnyAdapter]:
    return find(method)
