"""`neotta export`: a classifier as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta._words import printable
from neotta.cli import options as shared
from neotta.cli.console import next_step
from neotta.cli.options import class_names, model_options
from neotta.errors import OptionError

if TYPE_CHECKING:
    from torch import nn

    from neotta.neo.stream_ids import StreamId


def export(
    model: shared.Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    form: Annotated[
        str, typer.Option(help="folded: what was learnt is fixed in the file; adaptive: it goes on adapting.")
    ] = "folded",
    state: Annotated[Path | None, typer.Option(help="What the model has learnt, as neotta.save writes it.")] = None,
    stream: Annotated[str | None, typer.Option(help="Which stream, if --state holds many.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="For --form adaptive without --state: neo-stream (default), neo, neo-continual:alpha=0.2."),
    ] = None,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
) -> None:
    """Write a classifier as an ONNX file, with its adaptation folded in or adapting wherever it runs.

    The file is compared with torch before it is written.

    Examples:
      neotta export digits --form adaptive -o digits.onnx
      neotta export timm:vit_base_patch16_224 --state fog.safetensors -o vit.onnx
    """
    if state is not None and method is not None:
        raise OptionError("--state says how the model is adapted: omit --method")
    if form == "folded" and method is not None:
        raise OptionError("--method is for --form adaptive: a folded file has what --state says")
    if stream is not None and state is None:
        raise OptionError("--stream names one of the streams that --state holds: give both")
    if output.is_dir():
        raise OptionError(f"{output} is a folder: name the file to write, such as {output / 'model.onnx'}")
    if form in ("folded", "adaptive") and output.suffix != ".onnx":
        raise OptionError(
            f"{str(output)!r}: the form {form!r} is an ONNX file, so name one such as "
            f"{str(output.with_suffix('.onnx'))!r}; "
            "convert that to other formats (TensorFlow Lite, Core ML, TensorRT) with their own tools"
        )
    names = class_names(labels)

    from neotta.deploy.onnx.export import export as write
    from neotta.evaluate.plan import MethodPlan
    from neotta.models.load import load_model
    from neotta.neo.adapt import adapt
    from neotta.neo.files import load

    loaded = load_model(model, labels=names, **model_options(model_option))
    if state is not None:
        load(loaded.model, state)
    elif form == "adaptive":
        plan = MethodPlan.parse(method or "neo-stream")
        adapt(loaded.model, plan.method, **plan.options)
    chosen = None if stream is None else _stream(loaded.model, stream)
    write(loaded, output, form=form, stream=chosen)
    checked = "checked against torch" if form in ("folded", "adaptive") else "not checked"
    kind = form if form == "adaptive" or state is not None else "the plain model (no --state to fold in)"
    typer.echo(f"{printable(output)}: {kind}, {output.stat().st_size / 2**20:.1f} MiB, {checked}")
    if form in ("folded", "adaptive"):
        next_step(f"neotta serve {output} --check   open the file and answer one image")


def _stream(model: nn.Module, text: str) -> StreamId:
    """The id that is meant: ids are strings or whole numbers."""
    from neotta.neo.surgery import heads

    known = next(iter(heads(model).values())).streams.counts()
    number = int(text) if text.removeprefix("-").isdecimal() else text
    return number if number in known and text not in known else text
