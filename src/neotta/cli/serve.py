"""`neotta serve`: an adaptive classifier over HTTP."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._words import printable
from neotta.cli import options as shared
from neotta.cli.config import read_config
from neotta.cli.console import next_step
from neotta.cli.options import class_names, model_options
from neotta.errors import OptionError, StateFileError
from neotta.options import Options

if TYPE_CHECKING:
    from socket import socket as Socket

    from neotta.deploy.serve.engine import Engine
    from neotta.deploy.serve.service import Service

CONFIG = ("name", "pictures", "metric_streams", "log_level", "limits", "grace", "proxies", "history", "snapshots")
LOG_LEVELS = ("debug", "info", "warning", "error")


def serve(
    model: shared.ServedModel = "digits",
    host: Annotated[str, typer.Option(help="Address to listen on. Others than 127.0.0.1 need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.", min=0, max=65535)] = 8000,
    method: Annotated[
        str | None,
        typer.Option(help="How cameras adapt: neo-stream (default), neo, neo-continual:alpha=0.2, or none."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="What every new camera starts from, as neotta.save writes it.")
    ] = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow",
            help="Answer with the plain model, and report what the adapting one would have said.",
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(help="Where cameras are kept: a folder, or memory. Default: a folder in the user's data."),
    ] = None,
    durable: Annotated[
        str,
        typer.Option(
            help="batch: every answer is on disk before it is sent. SECONDS: a crash may lose that much.",
            metavar="batch|SECONDS",
        ),
    ] = "1",
    key_file: Annotated[Path | None, typer.Option(help="File with the key; or set NEOTTA_KEY.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file: name, pictures, metric_streams, log_level, limits."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Open everything, classify one blank image, and exit.")
    ] = False,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
) -> None:
    """Serve a classifier that adapts to each camera, with a dashboard at /.

    Examples:
      neotta serve digits --store memory
      neotta serve timm:vit_tiny_patch16_224 --durable batch --check
    """
    from neotta._extras import need

    for package in ("fastapi", "uvicorn"):
        need(package, "neotta serve")
    if shadow and method == "none":
        raise OptionError("--shadow adapts beside the plain model, but --method none adapts nothing: omit one of them")

    from platformdirs import user_data_path

    from neotta.deploy.serve.app import make_server
    from neotta.deploy.serve.auth import Keys, check_exposure
    from neotta.deploy.serve.history import History
    from neotta.deploy.serve.service import Service
    from neotta.deploy.serve.settings import Limits, Settings
    from neotta.evaluate.plan import MethodPlan

    entries = {"name": model_name(model), **({} if config is None else read_config(config, CONFIG))}
    entries["limits"] = {**entries.get("limits", {}), **_by_environment("NEOTTA_SERVE_LIMITS_", Limits)}
    entries |= _by_environment("NEOTTA_SERVE_", Settings)
    log_level = os.environ.get("NEOTTA_SERVE_LOG_LEVEL", entries.pop("log_level", "info"))
    if log_level not in LOG_LEVELS:
        raise OptionError(f"log_level is {log_level!r}: expected {', '.join(LOG_LEVELS)}")
    entries["limits"] = Limits.make("limits", entries["limits"], kind="the table")
    key = None if key_file else os.environ.get("NEOTTA_KEY") or None
    own = {"shadow": shadow, "durable": _seconds(durable), "key": key, "key_file": key_file}
    settings = Settings.make("serve", {**entries, **own}, kind="command")
    loading = model_options(model_option) | ({} if device is None else {"device": device})
    plan = None if method is None else MethodPlan.parse(method)
    check_exposure(host, Keys(settings.key, settings.key_file))
    usual = user_data_path("neotta", appauthor=False) / "serve" / settings.name
    place = None if store == "memory" else store or str(usual)
    socket = None if check else listening(host, port)
    engine = open_engine(
        model,
        folder=place,
        rule=None if plan is None else plan.method,
        options=None if plan is None else plan.options,
        state=state,
        labels=class_names(labels),
        capacity=max(4096, settings.limits.rows),
        **loading,
    )
    service = Service(engine, settings, History(place))
    if socket is None:
        for line in _checked(service):
            typer.echo(printable(line))
        next_step(f"neotta serve {model}   the same without --check")
        return
    port = socket.getsockname()[1]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    name = printable(settings.name)
    typer.echo(f"neotta serve: {name} with {service.engine.rule}, {service.engine.classes} classes", err=True)
    typer.echo(f"  dashboard {where}/   state {printable(place or 'in memory')}", err=True)
    next_step(f"curl --data-binary @photo.jpg {where}/classify")
    _log(log_level)
    server = make_server(service, host, port)
    gc.freeze()  # what is loaded stays: collecting it again and again stops all threads, and takes seconds at the end
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has ended in order
        server.run(sockets=[socket])
    if not server.started:
        raise typer.Exit(1)


def model_name(source: str) -> str:
    """A name for addresses from what a model was loaded by: `timm:vit_tiny` is `vit_tiny`."""
    last = re.split(r"[:/\\]", source.rstrip("/"))[-1].removesuffix(".safetensors").removesuffix(".onnx")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip(".-_")[:100] or "model"


def open_engine(
    model: str,
    *,
    rule: str | None = None,
    options: Mapping[str, Any] | None = None,
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
        folder: Folder of the streams' states; None to keep them in memory.
        labels: Names of the classes.
        state: A file of `neotta.save`: what every new stream starts from, and the rule.
        capacity: Most streams in memory, if there is a folder.
        **loading: Options of `neotta.load_model`.
    """
    from neotta.deploy.serve.engine import OnnxEngine, TorchEngine
    from neotta.models.load import load_model
    from neotta.neo.codec import StateFile

    start = None
    if state is not None:
        if rule is not None or options:
            raise OptionError("--state says which rule it belongs to: omit --method")
        start = StateFile.load(state)
        if start.many:
            raise OptionError(
                f"{os.fspath(state)!r} holds many streams: save one with neotta.save(model, path, stream=...)"
            )
        rule, options = start.method, start.options
    elif model.endswith(".safetensors") and Path(model).is_file() and _is_state(model):
        raise OptionError(
            f"{model!r} holds a state without its model: name the model too, neotta serve MODEL --state {model}"
        )
    place: dict[str, Any] = {"folder": folder, "capacity": capacity, **(options or {})}
    if not model.endswith(".onnx"):
        engine: Engine = TorchEngine(load_model(model, labels=labels, **loading), rule or "neo-stream", **place)
    elif loading:
        raise OptionError(f"{', '.join(loading)} cannot be changed for an ONNX file: it brings its own")
    else:
        engine = OnnxEngine(model, rule, labels=labels, **place)
    if start is not None:
        engine.begin_with(start, repr(os.fspath(state or "")))
    return engine


def _is_state(path: str) -> bool:
    from neotta.neo.statefile import read_arrays

    try:
        read_arrays(path)
    except StateFileError:
        return False
    return True


def listening(host: str, port: int) -> Socket:
    """A socket that listens, or a clear reason why not."""
    import socket

    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"cannot listen on {host}:{port}: {error.strerror or error} (choose another --port)"
        ) from None
    bound.listen(1024)
    return bound


def _seconds(durable: str) -> float:
    with contextlib.suppress(ValueError):
        if durable == "batch" or 0.01 <= float(durable) <= 3600:
            return 0.0 if durable == "batch" else float(durable)
    raise OptionError(f"--durable is {durable!r}: expected 'batch', or seconds from 0.01 to 3600")


def _by_environment(prefix: str, settings: type[Options]) -> dict[str, Any]:
    """Settings by environment: NEOTTA_SERVE_PICTURES=true, NEOTTA_SERVE_LIMITS_ROWS=8."""
    found: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        text = os.environ.get(f"{prefix}{name.upper()}")
        if text is not None:
            found[name] = text
            if field.annotation is not str:
                with contextlib.suppress(ValueError):
                    found[name] = json.loads(text)
    return found


def _checked(service: Service) -> Iterator[str]:
    """Answer one blank image without learning from it, and describe what would be served."""
    import numpy as np

    engine, settings = service.engine, service.settings
    started = time.perf_counter()
    engine.predict(np.zeros((1, 3, *engine.preprocess.size), np.float32), ["check"], adapt=False)
    taken = time.perf_counter() - started
    size = " x ".join(map(str, engine.preprocess.size))
    yield f"model     {settings.name}: {engine.classes} classes, {size} pixels, {taken * 1e3:.0f} ms an image"
    yield f"rule      {engine.rule}{' (in the shadow of the plain model)' if settings.shadow else ''}"
    where = "on disk" if engine.stored else "in memory: lost when the server ends"
    yield f"state     {where}; {len(service.streams)} streams known"
    yield "durable   " + ("every batch" if not settings.durable else f"every {settings.durable:g} s")
    yield "key       " + ("needed" if service.keys else "none: for this machine alone")
    yield "ok"


class JsonLines(logging.Formatter):
    """Formats a log record as one line of JSON: time, level, event and values."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "values", {}))
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _log(level: str) -> None:
    """Write the logs of the server and of uvicorn to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("neotta.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())
