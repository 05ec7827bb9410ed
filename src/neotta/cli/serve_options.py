"""The options of `neotta serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL, STATE, LIMITS, SAFETY, WATCH = "The model", "State", "Limits", "Who may use it", "Watching"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """An option in a panel of the help."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


Source = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model as `neotta models` lists them, a packaged .safetensors file, or an .onnx file of neotta export.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on. Any but loopback needs a key.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 chooses a free one.", min=0, max=65535)]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error; debug logs every request.")]
Check = Annotated[
    bool, typer.Option("--check", help="Open everything, classify one blank image, print what is served, and exit.")
]

Rule = Annotated[
    str | None,
    _option(MODEL, "How cameras adapt: neo-stream (default), neo, neo-continual or neo-mse. none: not at all."),
]
RuleOption = Annotated[
    list[str] | None,
    _option(MODEL, "An option of the rule, as gate=0.2; may be repeated.", "--option", "-o", metavar="NAME=VALUE"),
]
State = Annotated[Path | None, _option(MODEL, "Start every new camera from this file of neotta.save.")]
Labels = Annotated[Path | None, _option(MODEL, "Text file with the names of the classes, one per line.")]
Name = Annotated[str | None, _option(MODEL, "Name of the model in URLs. Default: from MODEL.")]
Checkpoint = Annotated[str | None, _option(MODEL, "A .safetensors file with the model's weights.")]
NumClasses = Annotated[int | None, _option(MODEL, "Number of classes, for models that are created with it.")]
ModelOption = Annotated[
    list[str] | None,
    _option(MODEL, "Another option of the model, as norm_eps=1e-12; may be repeated.", metavar="NAME=VALUE"),
]
Device = Annotated[str | None, _option(MODEL, "cpu, cuda, ... Default: a GPU if there is one.")]
AllowCode = Annotated[
    bool, _option(MODEL, "Run code that comes with a model (trust_remote_code). Read it first.", "--allow-code")
]
Shadow = Annotated[
    bool,
    _option(MODEL, "Answer with the plain model, adapt beside it, and report what it would have answered.", "--shadow"),
]

Store = Annotated[
    str | None,
    _option(
        STATE,
        "Where cameras are kept: a folder, redis://HOST:PORT/DB, or memory. Default: a folder in the user's data.",
    ),
]
Durable = Annotated[
    str,
    _option(
        STATE,
        "batch: what an answer taught is on disk before it is sent. SECONDS: a crash loses at most that much.",
        metavar="batch|SECONDS",
    ),
]

MaxRows = Annotated[int, _option(LIMITS, "Most images in a batch, and so in a request.")]
MaxWait = Annotated[float, _option(LIMITS, "Milliseconds that a request waits for others to join its batch.")]
MaxQueue = Annotated[int, _option(LIMITS, "Most images that wait; further requests are refused with 429.")]
MaxBody = Annotated[float, _option(LIMITS, "Largest request, in MiB.")]
MaxPixels = Annotated[int, _option(LIMITS, "Most pixels of an image file.")]
MaxCameras = Annotated[int, _option(LIMITS, "Most cameras that are known.")]
MaxConnections = Annotated[int, _option(LIMITS, "Most connections that are open at once.")]
Timeout = Annotated[float, _option(LIMITS, "Seconds to receive a request, and to answer it.")]

KeyFile = Annotated[Path | None, _option(SAFETY, "File with the key; or set NEOTTA_KEY.")]
ReadKeyFile = Annotated[
    Path | None, _option(SAFETY, "File with a second key that may only look; or set NEOTTA_READ_KEY.")
]

Rollback = Annotated[
    str,
    _option(WATCH, "If adapting hurts a camera: off, warn, or act (go back and freeze it).", metavar="off|warn|act"),
]
Clean = Annotated[
    str | None,
    _option(WATCH, "Clean images in folders named after the classes, to estimate accuracy better.", metavar="PATH"),
]
Images = Annotated[int, _option(WATCH, "Last images of each camera to show on the dashboard, in memory only.", min=0)]
Webhook = Annotated[
    str | None, _option(WATCH, "Send alarms to this address, signed with NEOTTA_WEBHOOK_KEY.", metavar="URL")
]
MetricCameras = Annotated[int, _option(WATCH, "Most cameras with metrics of their own in /metrics.", min=0)]
