"""`neotta corrupt`: a corrupted copy of a folder of images."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from neotta._processes import interrupt_code
from neotta._words import counted
from neotta.cli.console import Console
from neotta.errors import OptionError


def corrupt(
    src: Annotated[Path, typer.Argument(help="Folder of images, usually with one subfolder per class.")],
    dst: Annotated[Path, typer.Argument(help="Where the copy goes: new, empty, or started by this command.")],
    all_: Annotated[bool, typer.Option("--all", help="All 15 corruptions of ImageNet-C.")] = False,
    extra: Annotated[bool, typer.Option("--extra", help="The four extra corruptions.")] = False,
    corruption: Annotated[
        list[str] | None, typer.Option("--corruption", "-c", help="One corruption; may be repeated.")
    ] = None,
    severity: Annotated[
        list[int] | None, typer.Option("--severity", "-s", help="1 to 5; may be repeated. Default: all.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="Parameters and image size: imagenet (224), tiny (64) or cifar (32).")
    ] = "imagenet",
    seed: Annotated[int, typer.Option(help="Another seed gives other noise.")] = 0,
    keep_size: Annotated[bool, typer.Option("--keep-size", help="Do not resize and crop the images.")] = False,
    png: Annotated[bool, typer.Option("--png", help="Write PNG, without loss (cifar: always).")] = False,
    quality: Annotated[int, typer.Option(help="Of JPEG files, 1 to 100.")] = 85,
    textures: Annotated[Path | None, typer.Option(help="Folder of frost pictures. Default: generated.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes. Default: one per core.")] = None,
) -> None:
    """Write a corrupted copy of a folder in the layout of ImageNet-C.

    An interrupted run is completed by the same command again.
    """
    from neotta.data.corrupted_copy import corrupt_folder
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES

    names = [*(CORRUPTIONS if all_ else ()), *(EXTRA_CORRUPTIONS if extra else ()), *(corruption or ())]
    if not names:
        raise OptionError(f"say which: --all, --extra or --corruption NAME ({', '.join(CORRUPTIONS)})")
    console = Console()
    try:
        with _progress(console) as progress, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="image .* is skipped")  # they are listed below
            result = corrupt_folder(
                src,
                dst,
                names,
                severity or SEVERITIES,
                preset,
                seed,
                keep_size=keep_size,
                file_kind="png" if png else None,
                quality=quality,
                textures=textures,
                workers=workers,
                progress=progress,
            )
    except KeyboardInterrupt as interrupt:
        console.print("interrupted; the same command completes the folder")
        raise typer.Exit(interrupt_code(interrupt)) from None
    for problem in result.unreadable.values():
        console.print(f"skipped: {problem}", markup=False, highlight=False, soft_wrap=True)
    unreadable = counted(len(result.unreadable), "image")
    console.print(
        f"{counted(result.written, 'picture')} written, {result.kept:,} kept, {unreadable} unreadable: {dst}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar in a terminal; a line per tenth elsewhere."""
    if not console.is_terminal:
        yield _tenths(console)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("corrupting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _tenths(console: Console) -> Callable[[int, int], None]:
    shown = 0

    def show(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // total
        if tenth > shown:
            shown = tenth
            console.print(f"{done} of {total} pictures", highlight=False)

    return show
