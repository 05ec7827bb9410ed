"""`neotta serve`: an adaptive classifier over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from neotta._words import printable
from neotta.cli import options as shared
from neotta.cli.console import next_step
from neotta.cli.options import class_names, model_options
from neotta.errors import OptionError, suggestion

CONFIG = ("name", "clean", "images", "metric_cameras", "log_level", "limits")
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
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key; or set NEOTTA_KEY (NEOTTA_READ_KEY: may only look).")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file: name, clean, images, metric_cameras, log_level, limits."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Open everything, classify one blank image, and exit.")
    ] = False,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
    allow_code: shared.AllowCode = False,
) -> None:
    """Serve a classifier that adapts to each camera, with a dashboard at /.

    Examples:
      neotta serve digits --store memory
      neotta serve timm:vit_tiny_patch16_224 --durable batch --check
    """
    from neotta._extras import need

    for package in ("starlette", "uvicorn", "python_multipart"):
        need(package, "neotta serve")
    if shadow and method == "none":
        raise OptionError("--shadow adapts beside the plain model, but --method none adapts nothing: omit one of them")

    from platformdirs import user_data_path

    from neotta.deploy.serve.app import listening, make_server
    from neotta.deploy.serve.guard import check_exposure
    from neotta.deploy.serve.opening import checked, open_service
    from neotta.deploy.serve.settings import Settings, durability, model_name
    from neotta.evaluate.plan import MethodPlan

    further = {"name": model_name(model), **_configured(config)}
    clean, log_level = further.pop("clean", None), further.pop("log_level", "info")
    settings = Settings(
        **further,
        shadow=shadow,
        durable=durability(durable),
        key=_key("NEOTTA_KEY", key_file),
        read_key=_key("NEOTTA_READ_KEY", None),
    )
    loading = model_options(model_option, allow_code=allow_code) | ({} if device is None else {"device": device})
    plan = None if method is None else MethodPlan.parse(method)
    check_exposure(host, settings)
    usual = user_data_path("neotta", appauthor=False) / "serve" / settings.name
    place = None if store == "memory" else store or str(usual)
    socket = None if check else listening(host, port)
    service = open_service(
        model,
        settings,
        store=place,
        clean=clean,
        rule=None if plan is None else plan.method,
        options=None if plan is None else plan.options,
        state=state,
        labels=class_names(labels),
        **loading,
    )
    if socket is None:
        for line in checked(service):
            typer.echo(printable(line))
        next_step(f"neotta serve {model}   the same without --check")
        return
    port = socket.getsockname()[1]
    where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    name = printable(settings.name)
    typer.echo(f"neotta serve: {name} with {service.engine.rule}, {service.engine.classes} classes", err=True)
    typer.echo(f"  dashboard {where}/   state {printable(place or 'in memory')}", err=True)
    next_step(f"curl --data-binary @photo.jpg {where}/classify")
    server = make_server(service, host, port, log_level=log_level)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after it has ended in order
        server.run(sockets=[socket])
    if not server.started:
        raise typer.Exit(1)


def _configured(path: Path | None) -> dict[str, Any]:
    from neotta.cli.config import read_config
    from neotta.deploy.serve.settings import Limits

    entries = {} if path is None else read_config(path, CONFIG)
    known = [field.name for field in dataclasses.fields(Limits)]
    for name in entries.get("limits", {}):
        if name not in known:
            raise OptionError(f"{str(path)!r} has the unknown limit {name!r}: {suggestion(name, known)}")
    if (level := entries.get("log_level", "info")) not in LOG_LEVELS:
        raise OptionError(f"log_level is {level!r}: expected {', '.join(LOG_LEVELS)}")
    return {**entries, "limits": Limits(**entries.get("limits", {}))}


def _key(variable: str, path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(variable) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the key in {str(path)!r} cannot be read: {error}") from error
    if not key:
        raise OptionError(f"{str(path)!r} is empty: it must hold the key")
    return key
