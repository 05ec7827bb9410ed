"""The demonstration as a table with bars for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from neotta.evaluate.demo import METHODS, Demo
from neotta.report.demo import title

WITHOUT, WON, LOST = "bright_black", "cyan", "red"
VERDICTS = {1: "bold cyan", -1: "bold red", 0: ""}
_COLUMNS = 61  # the width of the columns beside the bars


def demo_table(demo: Demo, console: Console) -> Table:
    """Make the table of accuracies: one row per domain, their mean, and cameras that see one digit only."""
    width = min(40, max(10, console.width - _COLUMNS))
    ascii_only = console.options.ascii_only
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=False)
    table.add_column("Domain", no_wrap=True)
    for heading in ("Without", "NEO", "NEO-Stream", "Gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(_header(width), no_wrap=True)

    def add(name: str, without: float, neo: float, stream: float, verdict: int = 0) -> None:
        gain = Text(f"{100 * (stream - without):+.1f}{'*' if verdict else ' '}", style=VERDICTS[verdict])
        shares = (f"{100 * share:.1f}" for share in (without, neo, stream))
        table.add_row(name, *shares, gain, bar(without, stream, width, ascii_only))

    for domain in demo.domains:
        shares = (domain.accuracy_without, domain.accuracy_neo, domain.accuracy_stream)
        add(title(domain.name), *shares, domain.verdict)
    table.add_section()
    name = f"Mean of {len(demo.corrupted)}"
    add(name, demo.mean_without, demo.mean_neo, demo.mean_stream, demo.verdict)
    table.add_section()
    for images, cameras in (("Clean", demo.clean.cameras), (name, demo.cameras)):
        without, neo, stream = (cameras.accuracy(method) for method in METHODS)
        add(f"{images}, one digit", without, neo, stream)
    return table


def legend(console: Console) -> Text:
    """Explain the bars."""
    full, won, lost = _blocks(console.options.ascii_only)
    return Text.assemble(
        "Accuracy in percent. ",
        (full, WITHOUT),
        " reached without and with NEO-Stream, ",
        (won, WON),
        " gained by NEO-Stream, ",
        (lost, LOST),
        " lost. * beyond chance. One digit: cameras that see only one digit.",
    )


def bar(without: float, adapted: float, width: int, ascii_only: bool = False) -> Text:
    """Draw two accuracies in 0..1 as one bar: what both reach, and what adapting gains or loses."""
    full, won, lost = _blocks(ascii_only)
    low, high = sorted((round(without * width), round(adapted * width)))
    block, style = (won, WON) if adapted > without else (lost, LOST)
    return Text.assemble((full * low, WITHOUT), (block * (high - low), style), " " * (width - high))


def _blocks(ascii_only: bool) -> tuple[str, str, str]:
    return ("=", "+", "-") if ascii_only else ("█", "▓", "░")


def _header(width: int) -> Text:
    return Text("0" + "100".rjust(width - 1), style="bold")
