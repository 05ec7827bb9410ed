"""Options of `neotta export` alone; others are in `shared_options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="A model by name, as of `neotta models`, or a packaged file.")]
Out = Annotated[Path | None, typer.Argument(help="The ONNX file to write; omit it with --triton.")]
Form = Annotated[str, typer.Option(help="folded: an ordinary model with the adapted bias; adaptive: goes on adapting.")]
State = Annotated[Path | None, typer.Option(help="What the model has learnt: a file of neotta.save.")]
Stream = Annotated[str | None, typer.Option(help="Which stream, if the state holds many: see neotta.streams.")]
Method = Annotated[
    str | None,
    typer.Option(help="neo-stream (default), neo, neo-continual or neo-mse, for the adaptive form without --state."),
]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Of the method, as alpha=0.1; may be repeated."),
]
Checkpoint = Annotated[str | None, typer.Option(help="Weights of your own, .safetensors.")]
NumClasses = Annotated[int | None, typer.Option(help="If it is not the architecture's own.")]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Another option of the model, as norm_eps=1e-12 or preprocess.resize=256; may be repeated.",
    ),
]
Triton = Annotated[
    Path | None,
    typer.Option(help="Write a Triton model repository into this folder; its sequences are adapted one by one."),
]
Labels = Annotated[Path | None, typer.Option(help="Names of the classes, one per line.")]
Opset = Annotated[int, typer.Option(help="Version of the ONNX operators, 18 or later.")]
Verify = Annotated[bool, typer.Option(help="Compare with torch to 1e-4 before the file is written.")]
