"""From what a user names to a service, checked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from neotta.data.base import align
from neotta.data.opening import open_data
from neotta.deploy.serve.classifier import Job
from neotta.deploy.serve.engine import Engine, softmax
from neotta.deploy.serve.figures import learn_threshold
from neotta.deploy.serve.inputs import resizing
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import Settings
from neotta.errors import DataError, OptionError, StateFileError
from neotta.models.load import load_model

DEFAULT_RULE = "neo-stream"


def open_engine(
    model: str,
    *,
    rule: str | None = None,
    options: dict[str, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    labels: list[str] | None = None,
    state: str | os.PathLike[str] | None = None,
    capacity: int = 4096,
    **loading: Any,
) -> Engine:
    """Open a model to serve.

    Args:
        model: As `neotta.load_model` takes it, or an ONNX file of `neotta export`.
        rule: "neo-stream" by default; "none" to serve the plain model.
        options: Options of the rule.
        folder: Folder of the cameras' states; None to keep them in memory.
        labels: Names of the classes.
        state: A file of `neotta.save`: what every new camera starts from, and the rule.
        capacity: Most cameras in memory, if there is a folder.
        **loading: Options of `neotta.load_model`.
    """
    rule, options, start = _rule(model, rule, options, state)
    if model.endswith(".onnx"):
        from neotta.deploy.serve.onnx_engine import OnnxEngine

        if loading:
            raise OptionError(f"{', '.join(loading)} cannot be changed for an ONNX file: it brings its own")
        engine: Engine = OnnxEngine(model, rule, folder=folder, labels=labels, capacity=capacity, **options)
    else:
        from neotta.deploy.serve.torch_engine import TorchEngine

        loaded = load_model(model, labels=labels, **loading)
        engine = TorchEngine(loaded, rule or DEFAULT_RULE, folder=folder, capacity=capacity, **options)
    if start is not None:
        engine.begin_with(start[0], start[1], os.fspath(state or ""))
    return engine


def _rule(
    model: str, rule: str | None, options: dict[str, Any] | None, state: str | os.PathLike[str] | None
) -> tuple[str | None, dict[str, Any], Any]:
    """The rule and its options: as given, or as a state says."""
    if state is None:
        if model.endswith(".safetensors") and Path(model).is_file() and _is_state(model):
            raise OptionError(
                f"{model!r} holds a state without its model: name the model too, neotta serve MODEL --state {model}"
            )
        return rule, options or {}, None
    if rule is not None or options:
        raise OptionError("--state says which rule it belongs to: omit --method")
    from neotta.neo.files import check_about
    from neotta.neo.statefile import read_state

    start = read_state(state)
    check_about(start.about, repr(os.fspath(state)))
    if start.about.get("streams"):
        raise OptionError(
            f"{os.fspath(state)!r} holds many streams: save one with neotta.save(model, path, stream=...)"
        )
    return start.about["method"], start.about["options"], start


def _is_state(path: str) -> bool:
    from neotta.neo.statefile import read_arrays

    try:
        read_arrays(path)
    except StateFileError:
        return False
    return True


def open_service(
    model: str, settings: Settings, *, store: str | None = None, clean: str | None = None, **options: Any
) -> Service:
    """Open a model, its cameras' states and records.

    Args:
        model: See `open_engine`.
        settings: How it is served.
        store: Folder of states and records; None to keep them in memory.
        clean: Clean, labelled images for the estimate of accuracy, as `neotta.data.open_data` takes them.
        **options: See `open_engine`.
    """
    engine = open_engine(model, folder=store, capacity=max(4096, settings.limits.rows), **options)
    threshold = None if clean is None else clean_threshold(engine, clean)
    return Service(engine, settings, Records(store), threshold=threshold)


def clean_threshold(engine: Engine, spec: str, *, most: int = 1024, batch: int = 32) -> float:
    """Learn the threshold of the estimate of accuracy from clean images.

    Args:
        engine: The model.
        spec: What `neotta.data.open_data` takes: a folder of folders, one per class, or `LAYOUT=PATH`. Classes are
            those of the model by name, or by number if they have no names.
        most: Number of images that are used, spread evenly.
        batch: Number of images at a time.
    """
    dataset = open_data(spec).dataset()
    if dataset.labels is None:
        raise DataError(f"{spec!r} has no labels: expected folders named after the classes")
    if dataset.classes is not None:
        dataset = align(dataset, engine.labels)
    labels = np.asarray(dataset.labels)
    if labels.max() >= engine.classes:
        raise DataError(f"{spec!r} has a class {labels.max()}, but the model has only {engine.classes}")
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).astype(int))
    preprocess = resizing(engine.preprocess)
    sure, right = [], []
    for start in range(0, len(chosen), batch):
        rows = chosen[start : start + batch]
        logits = engine.forward(np.stack([preprocess.array(dataset.read(index)) for index in rows])).logits
        sure.append(softmax(logits).max(1))
        right.append(logits.argmax(1) == labels[rows])
    return learn_threshold(np.concatenate(sure), np.concatenate(right))


def checked(service: Service) -> Iterator[str]:
    """Answer one blank image without learning from it, and describe what would be served."""
    engine, settings = service.engine, service.settings
    blank = np.zeros((1, 3, *engine.preprocess.size), np.float32)
    started = time.perf_counter()
    service.classifier.run([Job(blank, "check", adapt=False)])
    taken = time.perf_counter() - started
    size = " x ".join(map(str, engine.preprocess.size))
    yield f"model     {settings.name}: {engine.classes} classes, {size} pixels, {taken * 1e3:.0f} ms an image"
    yield f"rule      {engine.rule}{' (in the shadow of the plain model)' if settings.shadow else ''}"
    where = "on disk" if engine.stored else "in memory: lost when the server ends"
    yield f"state     {where}; {len(service.known)} cameras known"
    yield "durable   " + ("every batch" if not settings.durable else f"every {settings.durable:g} s")
    yield "key       " + ("needed" if settings.key else "none: for this machine alone")
    yield "ok"
