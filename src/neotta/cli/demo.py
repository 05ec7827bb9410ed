"""`neotta demo`: see within a minute what NEO and NEO-Stream do, without any data or download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from neotta.cli.console import Console, Show

    Shown = tuple[str, tuple[RenderableType, ...]]


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

    from rich.text import Text

    from neotta._files import write_file
    from neotta.cli.console import Console, next_step, progress_bar
    from neotta.errors import OptionError

    output = output or Path("neotta-demo-real.html" if real else "neotta-demo.html")
    if output.is_dir():
        raise OptionError(f"{output} is a folder: name the file to write, such as --output {output / 'demo.html'}")
    start = time.perf_counter()
    console = Console()
    with progress_bar(Console(stderr=True), every=0.0) as show:
        import torch

        torch.set_num_threads(1)  # on a model this small more threads only wait for each other
        measure = _real if real else _corrupted
        page, parts = measure(console, samples, start, lambda name, done, total: show(name, done + 1, total))
    write_file(output, page)
    for part in parts:
        console.print(part, highlight=False)
    console.print(Text.assemble("The page with pictures: ", (str(output), "bold")), soft_wrap=True)
    console.print(Text.assemble("Your own model, in one line: ", ("model = neotta.adapt(model)", "bold cyan")))
    next_step("neotta check MODEL --data CLEAN_IMAGES   what adapting would cost your own model")


def _corrupted(console: Console, samples: int | None, start: float, show: Show) -> Shown:
    import time

    from neotta.report.demo import WHICH, demo_page, demo_table, headline, legend, one_digit, run, summary

    results = run(samples, show)
    page = demo_page(results, time.perf_counter() - start)
    sentences = (headline(results), one_digit(results), WHICH)
    return page, (*sentences, "", demo_table(results, console), "", legend(console), summary(results), "")


def _real(console: Console, samples: int | None, start: float, show: Show) -> Shown:
    import time

    from neotta.report.real_demo import real_demo_page, real_demo_table, run

    results = run(samples, show)
    left_out = [f"{name} was left out: {reason}." for name, reason in results.left_out.items()]
    page = real_demo_page(results, time.perf_counter() - start)
    return page, (results.measured(), "", real_demo_table(results, console), "", *left_out, results.summary(), "")
