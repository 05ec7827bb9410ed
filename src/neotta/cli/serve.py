"""`neotta serve`: an adaptive classifier over HTTP."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from neotta.cli import shared_options as shared
from neotta.cli.values import model_options, pairs
from neotta.errors import OptionError

MODEL, STATE, LIMITS, SAFETY = "The model", "State", "Limits", "Who may use it"
WATCH = "Watching"


def serve(
    model: Annotated[
        str, typer.Argument(help="As `neotta models` lists them, a packaged file, or an ONNX file of neotta export.")
    ] = "digits",
    host: Annotated[str, typer.Option(help="Address to listen on; others than this machine need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.", min=0, max=65535)] = 8000,
    rule: Annotated[
        str | None,
        typer.Option(
            help="neo-stream (default), neo, neo-continual, neo-mse; none: no adapting.", rich_help_panel=MODEL
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Of the rule; may be repeated.", rich_help_panel=MODEL
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="A file of neotta.save that new cameras start from.", rich_help_panel=MODEL)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Names of the classes, one per line.", rich_help_panel=MODEL)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model in addresses.", rich_help_panel=MODEL)] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A .safetensors file with the model's weights.", rich_help_panel=MODEL)
    ] = None,
    num_classes: Annotated[int | None, typer.Option(help="Of the model.", rich_help_panel=MODEL)] = None,
    model_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another option of the model; may be repeated.", rich_help_panel=MODEL),
    ] = None,
    device: shared.Device = None,
    allow_code: shared.AllowCode = False,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow", help="Answer with the plain model; adapt beside it and report.", rich_help_panel=MODEL
        ),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            help="Folder of what cameras taught, redis://HOST:PORT/DB, or memory. Default: a folder of the user's.",
            rich_help_panel=STATE,
        ),
    ] = None,
    durable: Annotated[
        str,
        typer.Option(
            help="batch: what an answer taught is on disk before it is sent. SECONDS: a crash loses at most that.",
            rich_help_panel=STATE,
        ),
    ] = "1",
    max_rows: Annotated[int, typer.Option(help="Images of a batch.", rich_help_panel=LIMITS)] = 64,
    max_wait: Annotated[float, typer.Option(help="Milliseconds to wait for a batch.", rich_help_panel=LIMITS)] = 5.0,
    max_queue: Annotated[int, typer.Option(help="Requests that wait, then 429.", rich_help_panel=LIMITS)] = 256,
    max_body: Annotated[float, typer.Option(help="MiB of a request.", rich_help_panel=LIMITS)] = 64.0,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image file.", rich_help_panel=LIMITS)] = 25_000_000,
    max_cameras: Annotated[int, typer.Option(help="Cameras that are known.", rich_help_panel=LIMITS)] = 10_000,
    timeout: Annotated[float, typer.Option(help="Seconds for a request.", rich_help_panel=LIMITS)] = 30.0,
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key; or set NEOTTA_KEY.", rich_help_panel=SAFETY)
    ] = None,
    read_key_file: Annotated[
        Path | None,
        typer.Option(help="File with a key that may only look; or set NEOTTA_READ_KEY.", rich_help_panel=SAFETY),
    ] = None,
    rollback: Annotated[
        str,
        typer.Option(
            help="Where the evidence says that adapting hurts: off, warn, or act (go back and freeze).",
            rich_help_panel=WATCH,
        ),
    ] = "warn",
    clean: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Clean images in folders named after the classes: better estimates of accuracy.",
            rich_help_panel=WATCH,
        ),
    ] = None,
    images: Annotated[
        int,
        typer.Option(help="Recent images kept in memory for the dashboard, per camera.", min=0, rich_help_panel=WATCH),
    ] = 0,
    webhook: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Where alarms are sent; signed with NEOTTA_WEBHOOK_KEY.", rich_help_panel=WATCH
        ),
    ] = None,
    metric_cameras: Annotated[
        int, typer.Option(help="Cameras with metrics of their own.", min=0, rich_help_panel=WATCH)
    ] = 100,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    check: Annotated[
        bool, typer.Option("--check", help="Open everything, answer one blank image, print what is served, and exit.")
    ] = False,
) -> None:
    """Serve a classifier that adapts to each camera, with a dashboard at /."""
    from neotta._extras import need

    for package in ("starlette", "uvicorn", "python_multipart"):
        need(package, "neotta serve")
    from neotta.deploy.serve.settings import Limits, Settings, durability, model_name

    if log_level not in ("debug", "info", "warning", "error"):
        raise OptionError(f"--log-level is {log_level!r}: expected debug, info, warning or error")
    settings = Settings(
        name=name or model_name(model),
        shadow=shadow,
        durable=durability(durable),
        limits=Limits(max_rows, max_wait / 1000, max_queue, round(max_body * 2**20), max_pixels, max_cameras, timeout),
        key=_key("NEOTTA_KEY", key_file),
        read_key=_key("NEOTTA_READ_KEY", read_key_file),
        images=images,
        rollback=rollback,
        webhook=webhook,
        webhook_key=os.environ.get("NEOTTA_WEBHOOK_KEY") or None,
        metric_cameras=metric_cameras,
    )
    loading: dict[str, Any] = model_options(checkpoint, num_classes, model_option, allow_code=allow_code)
    if device is not None:
        loading["device"] = device
    opening = {
        "clean": clean,
        "rule": rule,
        "options": pairs("option", option) or {},
        "state": state,
        "labels": _lines(labels),
    }
    _run(model, opening, loading, settings, store, host, port, log_level, check)


def _run(
    model: str,
    opening: dict[str, Any],
    loading: dict[str, Any],
    settings: Any,
    store: str | None,
    host: str,
    port: int,
    log_level: str,
    check: bool,
) -> None:
    from neotta.deploy.serve.checking import checked
    from neotta.deploy.serve.guard import check_exposure
    from neotta.deploy.serve.opening import open_service
    from neotta.deploy.serve.server import listening, make_server

    check_exposure(host, settings)
    place = _place(store, settings.name)
    socket = None if check else listening(host, port)
    service = open_service(model, settings, store=place, **opening, **loading)
    if socket is None:
        for line in checked(service):
            typer.echo(line)
        return
    found = socket.getsockname()[1]
    where = f"http://{f'[{host}]' if ':' in host else host}:{found}"
    typer.echo(f"neotta serve: {settings.name} with {service.engine.rule}, {service.engine.classes} classes", err=True)
    typer.echo(f"  dashboard {where}/   routes {where}/docs   state {place or 'in memory'}", err=True)
    server = make_server(service, host, found, log_level=log_level)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has ended in order
        server.run(sockets=[socket])
    if not server.started:
        raise typer.Exit(1)


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
        return path.read_text(encoding="utf-8").splitlines()
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
