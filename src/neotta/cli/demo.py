"""`neotta demo`: see within a minute what NEO and NEO-Stream do, without any data or download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    real: Annotated[
        bool,
        typer.Option("--real", help="Show the real shift with every method."),
    ] = False,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of images per domain. Default: all.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write. Default: neotta-demo.html, or neotta-demo-real.html."),
    ] = None,
) -> None:
    """Show what adapting recovers: a real shift, a camera that sees one class, 15 corruptions. Under a minute.

    Examples:
      neotta demo
      neotta demo --real -o page.html
    """
    import time

    import torch
    from rich.text import Text

    from neotta._files import write_file
    from neotta.cli.compare import render
    from neotta.cli.console import Console, next_step
    from neotta.cli.watch import watching
    from neotta.errors import OptionError
    from neotta.models._timm import guard_torchvision
    from neotta.report.demo import WHICH, demo_page, headline, one_digit, real_page, run, sheet

    output = output or Path("neotta-demo-real.html" if real else "neotta-demo.html")
    if output.is_dir():
        raise OptionError(f"{output} is a folder: name the file to write, such as -o {output / 'demo.html'}")
    start, console, sentences = time.perf_counter(), Console(highlight=False), list[str]()
    torch.set_num_threads(1)  # on a model this small more threads only wait for each other
    with watching(Console(stderr=True)) as watcher:
        if real:
            numbers, page = real_page(samples, watcher)
        else:
            found = run(samples, watcher)
            numbers, page = sheet(found), demo_page(found, time.perf_counter() - start)
            sentences = [headline(found), one_digit(found), WHICH, ""]
    write_file(output, page)
    for part in (*sentences, render(numbers, console.width), ""):
        console.print(part)
    console.print(Text.assemble("The page with pictures: ", (str(output), "bold")), soft_wrap=True)
    console.print(Text.assemble("Your own model, in one line: ", ("model = neotta.adapt(model)", "bold cyan")))
    next_step("neotta judge MODEL IMAGES   whether it helps on your own")
    if guard_torchvision():
        print(f"`import timm` fails: torchvision does not fit torch {torch.__version__}, take both from the same index")
