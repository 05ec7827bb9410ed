"""Carrying out runs: a model and data opened once, every run of a plan executed on them."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import AnyAdapter, create, find
from neotta.data import streams
from neotta.data._stream import Stream, reorder
from neotta.data.base import ImageDataset
from neotta.data.loading import Loader
from neotta.errors import NeottaError, OptionError
from neotta.evaluate.domains import Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.machine import surroundings
from neotta.evaluate.plan import Plan, Run
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.scores import score
from neotta.models.load import load_model
from neotta.models.split import split
from neotta.statefile import fingerprint

Progress = Callable[[str, int], None]


@dataclass
class Outputs:
    """What a run predicted, in the order of its stream.

    Attributes:
        logits: (N, C).
        ids: The samples.
        domains: Where each comes from.
        labels: Their classes, (N,), or None where a label is not known.
        skipped: Samples that could not be read.
        not_adapted: Samples that were predicted but not adapted to.
    """

    logits: list[Tensor] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    skipped: int = 0
    not_adapted: int = 0

    def tensor(self) -> Tensor:
        """All logits, (N, C) float32."""
        return torch.cat(self.logits).float() if self.logits else torch.empty(0, 0)


class Phase:
    """A part of a run: a stream that is adapted to, or scored, or both."""

    def __init__(self, stream: Stream, adapt: bool, scored: bool) -> None:
        self.stream, self.adapt, self.scored = stream, adapt, scored


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
        self.plan, self.cached, self._workers = plan, cached, workers
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.loaded = load_model(plan.model, device=device, **plan.model_options)
        self.model = self.loaded.model
        self.data = Domains(plan, self.loaded.labels, self.loaded.preprocess)
        encoder, self.head = split(self.model)
        self.embeddings = EmbeddingCache(encoder, self.loaded.preprocess, self.weights, cache, workers=workers)
        self._adapters: dict[str, AnyAdapter] = {}

    @cached_property
    def weights(self) -> str:
        """A hash of the model's weights."""
        return fingerprint(self.model.state_dict())[:32]

    def runs(self) -> list[Run]:
        """All runs of the plan."""
        return self.plan.runs(self.data.names)

    # ---- one run

    def key(self, run: Run) -> str:
        """What the result of a run depends on, as a hash."""
        return content_key(self._content(run))

    def _content(self, run: Run) -> dict[str, Any]:
        phases = self.phases(run)
        return {
            "weights": self.weights,
            "preprocess": self.loaded.preprocess.to_dict(),
            "classes": None if self.data.kept is None else [int(index) for index in self.data.kept],
            "manifests": [(phase.stream.hash(), phase.adapt, phase.scored) for phase in phases],
            "method": run.method,
            "options": self._options(run),
        }

    def _options(self, run: Run) -> dict[str, Any]:
        kind = find(run.method)
        chosen = kind.Options.make(run.method, {**self._needed(run), **run.options}, run.preset)
        return {name: str(value) for name, value in chosen.given().items() if not isinstance(value, Tensor)}

    def phases(self, run: Run) -> list[Phase]:
        """The streams of a run."""
        common: dict[str, Any] = {"seed": run.seed, "batch_size": run.batch_size}
        targets = {name: self.data.dataset(name) for name in run.domains}
        if run.protocol == "continual":
            samples = {**run.stream_options, **common}
            return [Phase(streams.continual(targets, samples=run.samples, **samples), True, True)]
        one = {run.domains[0]: targets[run.domains[0]]}
        if run.protocol == "online":
            return [Phase(_stream(run, one), True, True)]
        if run.protocol == "cross-domain":
            source = str(run.source_domain)
            there = streams.few_samples({source: self.data.dataset(source)}, run.samples, **common).adapt
            return [Phase(there, True, False), Phase(_first(streams.iid(one, **common), run.evaluate), False, True)]
        if run.stream == "few-classes":
            held = streams.few_classes(one, samples=run.samples, **run.stream_options, **common)
        else:
            held = streams.few_samples(one, run.samples, **common)
        return [Phase(held.adapt, True, False), Phase(_first(held.validate, run.evaluate), False, True)]

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
        """Options that a method cannot do without: clean images for a method that is not fully test-time."""
        if find(run.method).declaration.fully_test_time or "source" in run.options:
            return {}
        return {"source": self.data.source_images(32)}

    def predict(self, run: Run, progress: Progress | None = None) -> Outputs:
        """Carry a run out and return what it predicted."""
        self.fill([run])
        adapter = self.adapter(run)
        outputs = Outputs()
        for phase in self.phases(run):
            from_cache = self.cached and isinstance(adapter, EmbeddingAdapter)
            batches = self._embedding_batches(phase.stream) if from_cache else self._image_batches(phase.stream)
            for inputs, entries, skipped in batches:
                outputs.skipped += skipped
                if len(entries) == 0:
                    continue
                if isinstance(adapter, EmbeddingAdapter) and from_cache:
                    logits = adapter.predict_embeddings(inputs, adapt=phase.adapt)
                else:
                    logits = adapter(inputs, adapt=phase.adapt)
                if phase.scored:
                    self._note(outputs, phase.stream, entries, logits)
                if progress is not None:
                    progress(run.method, len(entries))
        outputs.not_adapted = adapter.skipped
        return outputs

    def execute(self, run: Run, progress: Progress | None = None) -> Record:
        """Carry a run out and return its record; a run that fails gives a record that says so."""
        about = {**run.model_dump(mode="json"), "domain": run.domain, "model": self.plan.model, "data": self.plan.data}
        start = time.perf_counter()
        try:
            content = self._content(run)
            about = {**about, "key": content_key(content), "weights": self.weights, "options": content["options"]}
            about["manifests"] = [manifest for manifest, _, _ in content["manifests"]]
            outputs = self.predict(run, progress)
        except (NeottaError, RuntimeError, ArithmeticError, ValueError, OSError) as error:
            key = about.get("key") or content_key({"run": about})
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
            return {**about, "key": key, "status": "failed", "error": f"{type(error).__name__}: {error}{where}"}
        return {
            **about,
            "status": "ok",
            **score(outputs),
            "seconds": round(time.perf_counter() - start, 4),
            **surroundings(),
        }

    # ---- batches

    def fill(self, runs: Iterable[Run], progress: Callable[[int], None] | None = None) -> None:
        """Let the encoder see, once, every image that runs from the cache will ask for."""
        for name, indices in self.wanted(runs).items():
            self.embeddings.fill(self.data.dataset(name), indices, progress)

    def wanted(self, runs: Iterable[Run]) -> dict[str, list[int]]:
        """The samples that runs from the cache ask for and the encoder has not seen, by domain."""
        asked: dict[str, dict[int, None]] = {}
        seen: set[str] = set()
        for run in runs:
            if not self.cached or not issubclass(find(run.method), EmbeddingAdapter):
                continue
            streams_key = content_key({**run.model_dump(mode="json"), "method": "", "options": {}, "preset": ""})
            if streams_key in seen:
                continue
            seen.add(streams_key)
            for phase in self.phases(run):
                for domain, index in zip(phase.stream.domain, phase.stream.index, strict=True):
                    asked.setdefault(phase.stream.domains[domain], {})[int(index)] = None
        return {
            name: [int(index) for index in self.embeddings.missing(self.data.dataset(name), indices)]
            for name, indices in asked.items()
        }

    def _embedding_batches(self, stream: Stream) -> Iterable[tuple[Tensor, list[int], int]]:
        device, dtype = self.head.weight.device, self.head.weight.dtype
        for part in stream.batches():
            entries = np.arange(part.start, part.stop)
            rows, kept = [], []
            for domain in np.unique(stream.domain[part]):
                here = entries[stream.domain[part] == domain]
                dataset = self.data.dataset(stream.domains[domain])
                found, readable = self.embeddings.get(dataset, stream.index[here])
                rows.append(found)
                kept.append(here[readable])
            order = np.argsort(np.concatenate(kept))
            inputs = torch.cat(rows)[torch.from_numpy(order)] if len(rows) > 1 else rows[0]
            present = np.concatenate(kept)[order]
            yield inputs.to(device, dtype), present.tolist(), len(entries) - len(present)

    def _image_batches(self, stream: Stream) -> Iterable[tuple[Tensor, list[int], int]]:
        weight = self.head.weight
        datasets = {name: self.data.dataset(name) for name in stream.domains}
        loader = Loader(datasets, stream, self.loaded.preprocess, workers=self._workers, device=weight.device)
        place = {
            (stream.domains[domain], name): entry
            for entry, (domain, name) in enumerate(zip(stream.domain, stream.ids, strict=True))
        }
        seen = 0
        for batch in loader:
            entries = [place[domain, name] for domain, name in zip(batch.domains, batch.ids, strict=True)]
            skipped = len(loader.skipped) - seen
            seen = len(loader.skipped)
            yield batch.images.to(weight.dtype), entries, skipped

    def _note(self, outputs: Outputs, stream: Stream, entries: list[int], logits: Tensor) -> None:
        outputs.logits.append(logits.cpu())
        for entry in entries:
            name = stream.domains[stream.domain[entry]]
            known = self.data.dataset(name).labels
            outputs.ids.append(stream.ids[entry])
            outputs.domains.append(name)
            outputs.labels.append(None if known is None else int(known[stream.index[entry]]))


def _stream(run: Run, data: dict[str, ImageDataset]) -> Stream:
    common: dict[str, Any] = {"samples": run.samples, "seed": run.seed, "batch_size": run.batch_size}
    if run.stream == "iid":
        return streams.iid(data, **common)
    if run.stream == "imbalanced":
        return streams.imbalanced(data, **{"ratio": 10.0, **run.stream_options}, **common)
    if run.stream == "correlated":
        return streams.correlated(data, **run.stream_options, **common)
    raise OptionError(f"a stream of kind {run.stream!r} goes with the protocol 'hold-out', not {run.protocol!r}")


def _first(stream: Stream, count: int) -> Stream:
    """The first samples of a stream, all of them for -1."""
    return stream if count < 0 or count >= len(stream) else reorder(stream, np.arange(count))
