"""`neotta export`: a classifier as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta._words import printable
from neotta.cli import shared_options as shared
from neotta.cli.values import model_options, pairs
from neotta.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from neotta.neo.stream_ids import StreamId


def export(
    model: Annotated[str, typer.Argument(help="A model by name, as of `neotta models`, or a packaged file.")],
    out: Annotated[Path | None, typer.Argument(help="The ONNX file to write; omit it with --triton.")] = None,
    form: Annotated[
        str, typer.Option(help="folded: an ordinary model with the adapted bias; adaptive: goes on adapting.")
    ] = "folded",
    state: Annotated[Path | None, typer.Option(help="What the model has learnt: a file of neotta.save.")] = None,
    stream: Annotated[
        str | None, typer.Option(help="Which stream, if the state holds many: see neotta.streams.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="neo-stream (default), neo, neo-continual or neo-mse, for the adaptive form without --state."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="NAME=VALUE", help="Of the method, as alpha=0.1; may be repeated."),
    ] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Weights of your own, .safetensors.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="If it is not the architecture's own.")] = None,
    model_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Another option of the model, as norm_eps=1e-12 or preprocess.resize=256; may be repeated.",
        ),
    ] = None,
    triton: Annotated[
        Path | None,
        typer.Option(help="Write a Triton model repository into this folder; its sequences are adapted one by one."),
    ] = None,
    labels: Annotated[Path | None, typer.Option(help="Names of the classes, one per line.")] = None,
    opset: Annotated[int, typer.Option(help="Version of the ONNX operators, 18 or later.")] = 18,
    verify: Annotated[bool, typer.Option(help="Compare with torch to 1e-4 before the file is written.")] = True,
    allow_code: shared.AllowCode = False,
) -> None:
    """Write a classifier as an ONNX file, with its adaptation folded in or adapting wherever it runs."""
    if state is not None and (method is not None or option):
        raise OptionError("--state says how the model is adapted: leave out --method and --option")
    if form == "folded" and triton is None and (method is not None or option):
        raise OptionError(
            "--method and --option are for --form adaptive and --triton: a folded file has what --state says"
        )
    if stream is not None and state is None:
        raise OptionError("--stream names one of the streams that --state holds: give both")
    target = out or triton
    if target is None or (out is not None and triton is not None):
        raise OptionError("name the file to write, or a folder with --triton, one of the two")
    if triton is not None:
        if form != "folded":
            raise OptionError("--triton has a form of its own: omit --form")
        form = "triton"
    if target.is_dir() and form != "triton":
        raise OptionError(f"{target} is a folder: name the file to write, such as {target / 'model.onnx'}")
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
    if form == "triton":
        typer.echo(f"{target}: a model repository; start Triton with --model-repository={target}")
        return
    checked = "checked against torch" if verify and form in ("folded", "adaptive") else "not checked"
    kind = form if form == "adaptive" or state is not None else "the plain model (no --state to fold in)"
    typer.echo(f"{printable(out)}: {kind}, {target.stat().st_size / 2**20:.1f} MiB, {checked}")


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
