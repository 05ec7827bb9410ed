"""`neotta serve`: an adaptive classifier over HTTP."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from neotta._words import printable
from neotta.cli import serve_options as options
from neotta.cli.values import model_options, pairs
from neotta.errors import OptionError

if TYPE_CHECKING:
    from neotta.deploy.serve.settings import Settings


def serve(
    model: options.Source = "digits",
    host: options.Host = "127.0.0.1",
    port: options.Port = 8000,
    rule: options.Rule = None,
    option: options.RuleOption = None,
    state: options.State = None,
    labels: options.Labels = None,
    name: options.Name = None,
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    model_option: options.ModelOption = None,
    device: options.Device = None,
    allow_code: options.AllowCode = False,
    shadow: options.Shadow = False,
    store: options.Store = None,
    durable: options.Durable = "1",
    max_rows: options.MaxRows = 64,
    max_wait: options.MaxWait = 5.0,
    max_queue: options.MaxQueue = 256,
    max_body: options.MaxBody = 64.0,
    max_pixels: options.MaxPixels = 25_000_000,
    max_cameras: options.MaxCameras = 10_000,
    max_connections: options.MaxConnections = 1000,
    timeout: options.Timeout = 30.0,
    key_file: options.KeyFile = None,
    read_key_file: options.ReadKeyFile = None,
    rollback: options.Rollback = "warn",
    clean: options.Clean = None,
    images: options.Images = 0,
    webhook: options.Webhook = None,
    metric_cameras: options.MetricCameras = 100,
    log_level: options.LogLevel = "info",
    check: options.Check = False,
) -> None:
    """Serve a classifier that adapts to each camera, with a dashboard at /."""
    given = dict(locals())  # every option by its name
    from neotta._extras import need

    for package in ("starlette", "uvicorn", "httptools", "python_multipart"):
        need(package, "neotta serve")
    if log_level not in ("debug", "info", "warning", "error"):
        raise OptionError(f"--log-level is {log_level!r}: expected debug, info, warning or error")
    if shadow and rule == "none":
        raise OptionError("--shadow adapts beside the plain model, but --rule none adapts nothing: omit one of them")
    _run(given, _settings(given), _opening(given))


def _settings(given: dict[str, Any]) -> Settings:
    """How the model is served."""
    from neotta.deploy.serve.settings import Limits, Settings, durability, model_name

    limits = Limits(
        rows=given["max_rows"],
        wait=given["max_wait"] / 1000,
        queue=given["max_queue"],
        body=round(given["max_body"] * 2**20),
        pixels=given["max_pixels"],
        cameras=given["max_cameras"],
        connections=given["max_connections"],
        timeout=given["timeout"],
    )
    return Settings(
        name=given["name"] or model_name(given["model"]),
        durable=durability(given["durable"]),
        limits=limits,
        key=_key("NEOTTA_KEY", given["key_file"]),
        read_key=_key("NEOTTA_READ_KEY", given["read_key_file"]),
        webhook_key=os.environ.get("NEOTTA_WEBHOOK_KEY") or None,
        **{name: given[name] for name in ("shadow", "images", "rollback", "webhook", "metric_cameras")},
    )


def _opening(given: dict[str, Any]) -> dict[str, Any]:
    """The options of `open_service`: the model, its rule, and what it starts from."""
    loading = model_options(
        given["checkpoint"], given["num_classes"], given["model_option"], allow_code=given["allow_code"]
    )
    if given["device"] is not None:
        loading["device"] = given["device"]
    return {
        **loading,
        **{name: given[name] for name in ("clean", "rule", "state")},
        "options": pairs("option", given["option"]) or {},
        "labels": _lines(given["labels"]),
    }


def _run(given: dict[str, Any], settings: Settings, opening: dict[str, Any]) -> None:
    """Open the model, and serve or check it."""
    from neotta.deploy.serve.checking import checked
    from neotta.deploy.serve.guard import check_exposure
    from neotta.deploy.serve.opening import open_service
    from neotta.deploy.serve.server import listening, make_server

    host = given["host"]
    check_exposure(host, settings)
    place = _place(given["store"], settings.name)
    socket = None if given["check"] else listening(host, given["port"])
    service = open_service(given["model"], settings, store=place, **opening)
    if socket is None:
        for line in checked(service):
            typer.echo(printable(line))
        return
    port = socket.getsockname()[1]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    name = printable(settings.name)
    typer.echo(f"neotta serve: {name} with {service.engine.rule}, {service.engine.classes} classes", err=True)
    typer.echo(f"  dashboard {where}/   routes {where}/docs   state {printable(_shown(place))}", err=True)
    server = make_server(service, host, port, log_level=given["log_level"])
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has ended in order
        server.run(sockets=[socket])
    if not server.started:
        raise typer.Exit(1)


def _shown(place: str | None) -> str:
    """Where states are kept, without the password of Redis."""
    return "in memory" if place is None else place.rpartition("@")[2] if "://" in place else place


def _key(variable: str, path: Path | None) -> str | None:
    """A key from a file or from the environment."""
    if path is None:
        return os.environ.get(variable) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the key in {str(path)!r} cannot be read: {error}") from error
    if not key:
        raise OptionError(f"{str(path)!r} is empty: it must hold the key")
    return key


def _lines(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the labels {path} cannot be read: {error}") from error


def _place(store: str | None, name: str) -> str | None:
    """Where states are kept: a folder, an address of Redis, or None for memory."""
    if store == "memory":
        return None
    if store is not None:
        return store
    from platformdirs import user_data_path

    return str(user_data_path("neotta", appauthor=False) / "serve" / name)
