"""Carrying out a run: an adapter goes through its orders, batch by batch, and what it predicts becomes a record."""

from __future__ import annotations

import contextlib
import functools
import json
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import AnyAdapter, find, own_title, revision_of
from neotta.adapters.registry import names as parts_of
from neotta.data.drawing import Indices
from neotta.data.loading import Loader
from neotta.data.order import Order
from neotta.errors import DataError, NeottaError, StorageError
from neotta.evaluate.answers import UNKNOWN, RunResult, pack
from neotta.evaluate.bench import Bench, data_entries
from neotta.evaluate.key import content
from neotta.evaluate.metrics import score
from neotta.evaluate.plan import Run
from neotta.evaluate.provenance import surroundings
from neotta.evaluate.records import Record, content_key

Batch = tuple[Tensor, Indices, int]
"""Images or embeddings of a batch, their entries in the order, and the number of samples that could not be read."""
TOGETHER = 4096
"""Number of embeddings that are gathered, and of predictions that are scored, at once."""


def execute(bench: Bench, run: Run, keep: Collection[str] = ()) -> tuple[Record, RunResult | None]:
    """The record of a run, and its predictions if its key is to be kept; a run that fails has a record that says so."""
    try:
        result = predict(bench, run)
        answers = pack(result, bench.orders(run)[-1], bench.data.dataset, bench.data.groups)
        took = "seconds_without_encoder" if bench.uses_cache(run) else "seconds"
        scores = {**score(result, run.domains), **answers, took: round(result.seconds, 4)}
        record = Record.make({**about(bench, run), "status": "ok", **scores, **surroundings()})
        return record, result if record.key in keep else None
    except StorageError:  # it would be so for every other run
        raise
    except Exception as error:  # whatever a method may raise: it is its run that fails, not the sweep
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, NeottaError) else f" ({Path(last.filename).name}:{last.lineno})"
        return failure(bench, run, f"{type(error).__name__}: {error}{where}"), None


def failure(bench: Bench, run: Run, error: str) -> Record:
    return Record.make({**about(bench, run), "status": "failed", "error": error})


def about(bench: Bench, run: Run) -> dict[str, Any]:
    """What a record says of a run before it is carried out."""
    plan, asked = bench.plan, run.model_dump(mode="json", exclude={"at_most"}, exclude_none=True)
    known = {**asked, "domain": run.domain, **titles(plan.model, plan.data), "weights": bench.weights}
    known |= {"method_title": "+".join(find(part).title for part in parts_of(run.method))}
    if title := own_title(run.method):
        known["title"] = title
    chosen = {"model_options": plan.model_options, **data_entries(plan)}
    chosen = {name: value for name, value in chosen.items() if name != "data" and value not in (None, [], {})}
    known["opened"] = json.loads(json.dumps(chosen, default=str))  # tells how to repeat the run
    try:
        everything = content(bench, run)
        facts = {name: bench.data.facts(name) for name in run.domains}
    except NeottaError:  # without its orders, or with wrong options, a run is known by what was asked for
        return {**known, "key": content_key({"run": known}), "revision": revision_of(run.method)}
    return {
        **known,
        "key": content_key(everything),
        "manifests": [manifest for manifest, _, _ in everything["manifests"]],
        **{name: everything[name] for name in ("options", "preprocess", "revision")},
        "classes": bench.data.classes,
        "sizes": {name: size for name, (size, _) in facts.items()},
        "fewest": {name: fewest for name, (_, fewest) in facts.items()},
    }


def titles(model: str, data: str) -> dict[str, str]:
    """Model and data, and what pages call them."""
    return {
        **{"model": model, "model_title": Path(model.split(":")[-1]).name},
        **{"data": data, "data_title": Path(data.split("=")[0]).name},
    }


# ---- predictions


def predict(bench: Bench, run: Run) -> RunResult:
    """Let an adapter go through the orders of a run: adapt to the first, and score the last, which may be the same."""
    orders, cached, result = bench.orders(run), bench.uses_cache(run), RunResult()
    if not len(orders[-1]):
        raise DataError(f"{run.domain!r} has no sample left to score: adapt to fewer than {len(orders[0])}")
    bench.fill([run])
    adapter = bench.adapter(run)
    states = CameraStates(adapter) if run.separate_states else None
    step: Callable[..., Tensor] = adapter
    if cached and isinstance(adapter, EmbeddingAdapter):
        step = adapter.predict_embeddings
    with one_thread() if cached else contextlib.nullcontext():
        for place, order in enumerate(orders):
            adapting, scored = functools.partial(step, adapt=place == 0), place == len(orders) - 1
            _advance(bench, order, result, adapting, states, cached, scored=scored)
    result.not_adapted = adapter.skipped
    return result


def _advance(
    bench: Bench,
    order: Order,
    result: RunResult,
    step: Callable[[Tensor], Tensor],
    states: CameraStates | None,
    from_cache: bool,
    *,
    scored: bool,
) -> None:
    began = time.perf_counter()
    waiting: list[tuple[Indices, Tensor]] = []  # scored many batches at a time: much faster than one by one
    samples = 0
    for inputs, entries, unreadable in (_embeddings if from_cache else _images)(bench, order):
        result.unreadable += unreadable
        if len(entries):
            if states is None or order.camera is None:
                logits = step(inputs)
            else:
                logits = states.predict(inputs, order.camera[entries], step)
            if scored:
                waiting.append((entries, logits.cpu()))
                samples += len(entries)
            if samples >= TOGETHER:
                _score(bench, result, order, waiting)
                waiting, samples = [], 0
    result.seconds += time.perf_counter() - began
    _score(bench, result, order, waiting)


def _embeddings(bench: Bench, order: Order) -> Iterator[Batch]:
    batches = order.batches()
    several = max(1, TOGETHER // order.batch_size)
    for first in range(0, len(batches), several):
        here = batches[first : first + several]
        embeddings, entries = _gather(bench, order, here[0].start, here[-1].stop)
        borders = np.searchsorted(entries, [here[0].start, *(batch.stop for batch in here)]).tolist()
        for batch, low, high in zip(here, borders, borders[1:], strict=False):
            yield embeddings[low:high], entries[low:high], batch.stop - batch.start - (high - low)


def _gather(bench: Bench, order: Order, start: int, stop: int) -> tuple[Tensor, Indices]:
    entries = np.arange(start, stop)
    rows, places = [], []
    for domain in np.unique(order.domain[start:stop]):
        here = entries[order.domain[start:stop] == domain]
        part, readable = bench.embeddings.get(bench.data.dataset(order.domains[domain]), order.index[here])
        rows.append(part)
        places.append(here[readable])
    place = np.argsort(np.concatenate(places))
    embeddings = torch.cat(rows)[torch.from_numpy(place)] if len(rows) > 1 else rows[0]
    return embeddings.to(bench.head.weight.device, bench.head.weight.dtype), np.concatenate(places)[place]


def _images(bench: Bench, order: Order) -> Iterator[Batch]:
    datasets = {name: bench.data.dataset(name) for name in order.domains}
    loader = Loader(datasets, order, bench.data.preprocess, workers=bench.workers, device=bench.head.weight.device)
    place = {
        (order.domains[domain], name): entry
        for entry, (domain, name) in enumerate(zip(order.domain, order.ids, strict=True))
    }
    seen = 0
    for batch in loader:
        entries = [place[domain, name] for domain, name in zip(batch.domains, batch.ids, strict=True)]
        skipped = len(loader.skipped) - seen
        seen = len(loader.skipped)
        yield batch.images.to(bench.head.weight.dtype), np.array(entries, dtype=np.int64), skipped
    if len(loader.skipped) > seen:  # nothing of the last batches could be read
        yield bench.head.weight.new_empty(0), np.empty(0, dtype=np.int64), len(loader.skipped) - seen


def _score(bench: Bench, result: RunResult, order: Order, waiting: list[tuple[Indices, Tensor]]) -> None:
    if not waiting:
        return
    entries = np.concatenate([entries for entries, _ in waiting])
    labels = np.full(len(entries), UNKNOWN, dtype=np.int64)
    for number, name in enumerate(order.domains):
        known = bench.data.dataset(name).labels
        if known is not None:
            here = order.domain[entries] == number
            labels[here] = known[order.index[entries[here]]]
    logits, groups = torch.cat([logits for _, logits in waiting]), bench.data.class_groups
    result.add(order, entries, logits if groups is None else groups.scores(logits), torch.from_numpy(labels))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: a batch of embeddings is too little work to be shared.

    The results then do not depend on the number of cores either.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class CameraStates:
    """Keeps the cameras of an order apart: the rows of a batch are predicted camera by camera, each with its own state.

    This works with every method, since a state can be put aside and taken up again at any time.
    """

    def __init__(self, adapter: AnyAdapter) -> None:
        self._adapter, self._start = adapter, adapter.state_dict()
        self._states: dict[int, dict[str, Tensor]] = {}
        self._current: int | None = None

    def predict(self, inputs: Tensor, cameras: Indices, step: Callable[[Tensor], Tensor]) -> Tensor:
        rows, parts = [], []
        for camera in np.unique(cameras).tolist():
            here = np.flatnonzero(cameras == camera)
            if camera != self._current:
                if self._current is not None:
                    self._states[self._current] = self._adapter.state_dict()
                self._adapter.load_state_dict(self._states.get(camera, self._start))
                self._current = camera
            parts.append(step(inputs[torch.from_numpy(here)]))
            rows.append(here)
        place = np.argsort(np.concatenate(rows))
        return torch.cat(parts)[torch.from_numpy(place)]
