"""`neotta demo`: see within a minute what NEO-Stream and NEO do, without any data or download."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Report = Callable[[str, int, int], None]


def demo(
    real: Annotated[
        bool,
        typer.Option("--real", help="Show a real shift instead: a model of MNIST on other digits, with all methods."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write. Default: neotta-demo.html, or neotta-demo-real.html."),
    ] = None,
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="Of the corruptions, 1 (slight) to 5, the default.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="For the order of the images and the noise.")] = 0,
    samples: Annotated[int | None, typer.Option(min=1, help="Number of test images. Default: all.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in the browser.")] = False,
) -> None:
    """Show what 15 corruptions do to a small model, and what NEO-Stream and NEO recover; --real: a real shift."""
    import time

    from rich.text import Text

    from neotta.cli.console import Console
    from neotta.errors import OptionError

    output = output or Path("neotta-demo-real.html" if real else "neotta-demo.html")
    if output.is_dir():
        raise OptionError(f"{output} is a folder: name the file to write, such as --output {output / 'demo.html'}")
    if real and severity is not None:
        raise OptionError("--severity is about corruptions, and --real has none: give one of them")
    start = time.perf_counter()
    console = Console()
    show = _real if real else _corrupted
    page, parts = show(console, severity, seed, samples, start)
    _write(output, page)
    for part in parts:
        console.print(part, highlight=False)
    console.print(Text.assemble("The page with pictures: ", (str(output), "bold")), soft_wrap=True)
    console.print(Text.assemble("Your own model, in one line: ", ("model = neotta.adapt(model)", "bold cyan")))
    if open_page:
        typer.launch(str(output.resolve()))


def _corrupted(
    console: Console, severity: int | None, seed: int, samples: int | None, start: float
) -> tuple[str, tuple[RenderableType, ...]]:
    """The page and what is printed, for corrupted digits."""
    import time

    from rich.console import Console as Terminal

    with _progress(Terminal(stderr=True)) as on_domain:
        import torch

        from neotta.evaluate.demo import SEVERITY, run

        torch.set_num_threads(1)  # on a model this small more threads only wait for each other
        results = run(SEVERITY if severity is None else severity, seed, samples, on_domain)

    from neotta.report.demo import demo_page, measured, one_digit, summary
    from neotta.report.terminal import demo_table, legend

    page = demo_page(results, time.perf_counter() - start)
    table, sentences = demo_table(results, console), (summary(results), one_digit(results))
    return page, (measured(results), "", table, "", legend(console), *sentences, "")


def _real(
    console: Console, severity: int | None, seed: int, samples: int | None, start: float
) -> tuple[str, tuple[RenderableType, ...]]:
    """The page and what is printed, for a real shift; there is no severity."""
    import time

    from rich.console import Console as Terminal

    with _progress(Terminal(stderr=True)) as on_method:
        import torch

        from neotta.evaluate.real_demo import run

        torch.set_num_threads(1)
        results = run(seed, samples, on_method)

    from neotta.report.real_demo import measured, real_demo_page, real_demo_table

    left_out = [f"{name} was left out: {reason}." for name, reason in results.left_out.items()]
    page = real_demo_page(results, time.perf_counter() - start)
    return page, (measured(results), "", real_demo_table(results, console), "", *left_out, results.summary(), "")


def _write(output: Path, page: str) -> None:
    from neotta._files import atomic
    from neotta.errors import OptionError

    try:
        with atomic(output) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{error.strerror or error}: choose another place with --output") from error


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
