"""The demonstration as a table with bars for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neotta.evaluate.demo import Demo
from neotta.report.demo import title

WITHOUT, NEO, LOST = "bright_black", "cyan", "red"
VERDICTS = {1: "bold cyan", -1: "bold red", 0: ""}
_COLUMNS = 54  # what stands beside the bars


def demo_table(demo: Demo, console: Console) -> Table:
    """Make the table of accuracies: one row per domain, the mean over the corruptions at the end."""
    width = min(40, max(10, console.width - _COLUMNS))
    ascii_only = console.options.ascii_only
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=False)
    table.add_column("Domain", no_wrap=True)
    for heading in ("Without", "NEO", "Difference"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(_header(width), no_wrap=True)
    for domain in demo.domains:
        style = VERDICTS[domain.verdict]
        _add(table, title(domain.name), domain.accuracy_without, domain.accuracy_neo, style, width, ascii_only)
    table.add_section()
    style = VERDICTS[demo.verdict]
    _add(table, f"Mean of {len(demo.corrupted)}", demo.mean_without, demo.mean_neo, style, width, ascii_only)
    return table


def legend(console: Console) -> Text:
    """Explain the bars."""
    full, won, lost = _blocks(console.options.ascii_only)
    return Text.assemble(
        "Accuracy in percent. ",
        (full, WITHOUT),
        " reached without and with NEO, ",
        (won, NEO),
        " gained by NEO, ",
        (lost, LOST),
        " lost by NEO. Differences are coloured where chance does not explain them.",
    )


def bar(without: float, neo: float, width: int, ascii_only: bool = False) -> Text:
    """Draw two accuracies in 0..1 as one bar: what both reach, and what NEO gains or loses."""
    full, won, lost = _blocks(ascii_only)
    low, high = sorted((round(without * width), round(neo * width)))
    block, style = (won, NEO) if neo > without else (lost, LOST)
    return Text.assemble((full * low, WITHOUT), (block * (high - low), style), " " * (width - high))


def _blocks(ascii_only: bool) -> tuple[str, str, str]:
    return ("=", "+", "-") if ascii_only else ("█", "▓", "░")


def _header(width: int) -> Text:
    return Text("0" + "100".rjust(width - 1), style="bold")


def _add(table: Table, name: str, without: float, neo: float, style: str, width: int, ascii_only: bool) -> None:
    table.add_row(
        name,
        f"{without:.1%}".rstrip("%"),
        f"{neo:.1%}".rstrip("%"),
        Text(f"{100 * (neo - without):+.1f}", style=style),
        bar(without, neo, width, ascii_only),
    )
