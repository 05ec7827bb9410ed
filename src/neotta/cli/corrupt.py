"""`neotta corrupt`: a corrupted copy of a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neotta._words import counted, printable
from neotta.cli.options import numbers, words


def corrupt(
    data: Annotated[Path, typer.Argument(help="Folder of images, usually with one subfolder per class.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the copy; files that exist are kept as they are."
        ),
    ],
    corruptions: Annotated[
        str, typer.Option(help="As fog,snow; all for the 15 of ImageNet-C, extra for the other four.")
    ] = "all",
    severities: Annotated[str, typer.Option(help="Severities from 1 to 5, as 3,5.")] = "1,2,3,4,5",
    preset: Annotated[
        str, typer.Option(help="Parameters and image size: imagenet (224), tiny (64) or cifar (32).")
    ] = "imagenet",
    keep_size: Annotated[bool, typer.Option("--keep-size", help="Do not resize and crop the images.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Number of images at a time. Default: one per core.")] = None,
) -> None:
    """Write a corrupted copy of a folder in the layout of ImageNet-C.

    An interrupted run is completed by the same command; other options need another folder.

    Examples:
      neotta corrupt photos/ -o photos-c/
      neotta corrupt photos/ --corruptions fog,snow --severities 5 --keep-size -o photos-c/
    """
    from neotta.cli.console import Console, next_step, progress_bar
    from neotta.data.corrupted import corrupt_folder
    from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS

    groups = {"all": CORRUPTIONS, "extra": EXTRA_CORRUPTIONS}
    names = [name for word in words(corruptions) or [] for name in groups.get(word, (word,))]
    chosen = numbers("severities", severities) or []
    with progress_bar(Console(stderr=True)) as bar:
        result = corrupt_folder(
            data,
            output,
            names,
            chosen if isinstance(chosen, list) else [chosen],
            preset,
            keep_size=keep_size,
            jobs=jobs,
            progress=lambda done, total: bar("images", done, total),
        )
    unreadable = counted(len(result.unreadable), "image")
    typer.echo(
        printable(
            f"{counted(result.written, 'picture')} written, {result.kept:,} kept, {unreadable} unreadable: {output}"
        )
    )
    next_step(f"neotta run MODEL {output}")
