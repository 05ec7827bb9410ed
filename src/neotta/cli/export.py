"""`neotta export`: a classifier as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from neotta._words import printable
from neotta.cli import export_options as options
from neotta.cli import shared_options as shared
from neotta.cli.values import model_options, pairs
from neotta.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from neotta.neo.stream_ids import StreamId


def export(
    model: options.Model,
    out: options.Out = None,
    form: options.Form = "folded",
    state: options.State = None,
    stream: options.Stream = None,
    method: options.Method = None,
    option: options.Option = None,
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    model_option: options.ModelOption = None,
    triton: options.Triton = None,
    labels: options.Labels = None,
    opset: options.Opset = 18,
    verify: options.Verify = True,
    allow_code: shared.AllowCode = False,
) -> None:
    """Write a classifier as an ONNX file, with its adaptation folded in or adapting wherever it runs."""
    _check(form, triton, state, stream, method, option)
    form, target = _target(form, out, triton)
    names = None if labels is None else _lines(labels)

    from neotta.deploy.exporters import export as write
    from neotta.models.load import load_model
    from neotta.neo.adapt import adapt
    from neotta.neo.state import load

    loaded = load_model(
        model, labels=names, **model_options(checkpoint, num_classes, model_option, allow_code=allow_code)
    )
    if state is not None:
        load(loaded.model, state)
    elif form in ("adaptive", "triton"):
        adapt(loaded.model, method or "neo-stream", **(pairs("option", option) or {}))
    chosen = None if stream is None else _stream(loaded.model, stream)
    write(loaded, target, form=form, stream=chosen, opset=opset, verify=verify)
    _tell(form, target, state, verify)


def _check(
    form: str, triton: Path | None, state: Path | None, stream: str | None, method: str | None, option: list[str] | None
) -> None:
    """Refuse options that contradict each other."""
    if state is not None and (method is not None or option):
        raise OptionError("--state says how the model is adapted: leave out --method and --option")
    if form == "folded" and triton is None and (method is not None or option):
        raise OptionError(
            "--method and --option are for --form adaptive and --triton: a folded file has what --state says"
        )
    if stream is not None and state is None:
        raise OptionError("--stream names one of the streams that --state holds: give both")


def _target(form: str, out: Path | None, triton: Path | None) -> tuple[str, Path]:
    """What to write, and where."""
    target = out or triton
    if target is None or (out is not None and triton is not None):
        raise OptionError("name the file to write, or a folder with --triton, one of the two")
    if triton is not None:
        if form != "folded":
            raise OptionError("--triton has a form of its own: omit --form")
        form = "triton"
    if target.is_dir() and form != "triton":
        raise OptionError(f"{target} is a folder: name the file to write, such as {target / 'model.onnx'}")
    return form, target


def _tell(form: str, target: Path, state: Path | None, verify: bool) -> None:
    if form == "triton":
        shown = printable(target)
        typer.echo(f"{shown}: a model repository; start Triton with --model-repository={shown}")
        return
    checked = "checked against torch" if verify and form in ("folded", "adaptive") else "not checked"
    kind = form if form == "adaptive" or state is not None else "the plain model (no --state to fold in)"
    typer.echo(f"{printable(target)}: {kind}, {target.stat().st_size / 2**20:.1f} MiB, {checked}")


def _stream(model: nn.Module, text: str) -> StreamId:
    """The id that is meant: ids are strings or whole numbers."""
    from neotta.neo.surgery import heads

    known = next(iter(heads(model).values())).streams.counts()
    number = int(text) if text.removeprefix("-").isdecimal() else text
    return number if number in known and text not in known else text


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the labels {path} cannot be read: {error}") from error
