"""Options that several commands take, and what is written on the command line as values."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated, Any

import typer

from neotta.errors import OptionError

Model = Annotated[str, typer.Argument(help="A model as `neotta models` lists them.")]
ServedModel = Annotated[
    str, typer.Argument(help="A model as `neotta models` lists them, or an .onnx file that `neotta export` wrote.")
]
Seeds = Annotated[str | None, typer.Option(help="Number of seeds, or a list: 2020,1234. Default: 3.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Images in a batch.")]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="An option of the model, as num_classes=10 or preprocess.resize=256; may be repeated.",
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run code that the file of --config names. Read it first.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: a GPU if there is one.")]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Names of the model's classes, one per line; or, for run and check, lines FOLDER,CLASS.",
    ),
]


def words(text: str | None) -> list[str] | None:
    """`a,b` as a list."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def numbers(name: str, text: str | None) -> int | list[int] | None:
    """`3` is a number, `3,5` and `3,` are lists."""
    if text is None:
        return None
    try:
        return int(text) if "," not in text else [int(word) for word in words(text) or []]
    except ValueError:
        raise OptionError(f"--{name} takes whole numbers with commas between them, got {text!r}") from None


def model_options(texts: list[str] | None) -> dict[str, Any]:
    """The options of a model as NAME=VALUE; `preprocess.size=224,160` is a list in the table `preprocess`."""
    from neotta.evaluate.plan import parse_value

    options: dict[str, Any] = {}
    for text in texts or []:
        key, equals, word = text.partition("=")
        if not equals or not key:
            raise OptionError(f"--model-option takes NAME=VALUE, got {text!r}")
        value = parse_value(word)
        if isinstance(value, str) and "," in value:
            value = [parse_value(part) for part in value.split(",")]
        table, _, name = key.strip().rpartition(".")
        (options.setdefault(table, {}) if table else options)[name] = value
    return options


def user_cache() -> Path:
    """The folder for embeddings in the user's cache."""
    from platformdirs import user_cache_path

    return user_cache_path("neotta", appauthor=False) / "embeddings"


def read_labels(path: Path | None) -> tuple[list[str] | None, dict[str, str] | None]:
    """The names of the model's classes in a file, one per line; or the class of each folder, in lines FOLDER,CLASS."""
    if path is None:
        return None, None
    try:
        lines = path.read_text(encoding="utf-8").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"the labels {str(path)!r} cannot be read: {error}") from error
    rows = list(csv.reader(lines))
    if rows and all(len(row) == 2 for row in rows):
        return None, {folder.strip(): name.strip() for folder, name in rows}
    return [line.strip() for line in lines], None


def class_names(path: Path | None) -> list[str] | None:
    """The names of the model's classes in a file, one per line, for a command that needs no labels of folders."""
    names, folders = read_labels(path)
    if folders is not None:
        raise OptionError(f"the labels {str(path)!r} map folders to classes: name the model's classes, one per line")
    return names
