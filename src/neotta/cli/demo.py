"""`neotta demo`: see within a minute what NEO does, without any data or download."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

Report = Callable[[str, int, int], None]


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("neotta-demo.html"),
    severity: Annotated[int, typer.Option(min=1, max=5, help="Of the corruptions, 1 (slight) to 5.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="For the order of the images and the noise.")] = 0,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of test images. Default: all.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
) -> None:
    """Show what 15 corruptions do to a small model, and what NEO wins back."""
    import time

    from rich.text import Text

    from neotta._files import atomic
    from neotta.cli.console import Console
    from neotta.errors import OptionError

    if output.is_dir():
        raise OptionError(f"{output} is a folder: name the file to write, such as --output {output / 'demo.html'}")
    start = time.perf_counter()
    console = Console()
    with _progress(Console(stderr=True)) as on_domain:
        import torch

        from neotta.evaluate.demo import run

        torch.set_num_threads(1)  # on a model this small more threads only wait for each other
        results = run(severity, seed, samples, on_domain)

    from neotta.report.demo import demo_page, measured, summary
    from neotta.report.terminal import demo_table, legend

    page = demo_page(results, time.perf_counter() - start)
    try:
        with atomic(output) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{error.strerror or error}: choose another place with --output") from error

    for part in (measured(results), "", demo_table(results, console), "", legend(console), summary(results), ""):
        console.print(part, highlight=False)
    console.print(Text.assemble("The page with pictures: ", (str(output), "bold")), soft_wrap=True)
    console.print(Text.assemble("Your own model, in one line: ", ("model = neotta.adapt(model)", "bold cyan")))
    if open_page:
        typer.launch(str(output.resolve()))


@contextmanager
def _progress(console: Console) -> Iterator[Report]:
    """Show how far the work is: a moving bar on a terminal, one line per domain elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not console.is_terminal:
        yield lambda name, done, total: console.print(f"{done + 1} of {total}: {name}", highlight=False)
        return
    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading the model", total=None)
        yield lambda name, done, total: progress.update(task, description=name, completed=done, total=total)
