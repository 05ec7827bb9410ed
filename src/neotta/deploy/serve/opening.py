"""From what a user names to an engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from neotta.deploy.serve.clean import clean_threshold
from neotta.deploy.serve.engine import Engine
from neotta.deploy.serve.records import Records
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import Settings
from neotta.errors import OptionError, StateFileError
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

    Raises:
        OptionError: Options contradict each other.
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
        raise OptionError("--state says which rule it belongs to: omit --rule and --option")
    from neotta.neo.state import check_about
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
        store: Folder of states and records; an address of Redis, for states that replicas share (records are then in
            memory); None to keep everything in memory.
        clean: Clean, labelled images for the estimate of accuracy, as `neotta.data.open_data` takes them.
        **options: See `open_engine`.
    """
    shared = store if store is not None and store.startswith(("redis://", "rediss://", "unix://")) else None
    folder = None if shared is not None else store
    engine = open_engine(model, folder=folder, capacity=max(4096, settings.limits.rows), **options)
    if shared is not None:
        engine.share(shared)
    threshold = None if clean is None else clean_threshold(engine, clean)
    return Service(engine, settings, Records(folder), threshold=threshold)
