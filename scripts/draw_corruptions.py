"""Draws what NEO and NEO-Stream win back on DeiT-Tiny under every corruption, from the records of the results.

    python scripts/draw_corruptions.py docs/results/figures

Two files are written, for light and for dark pages; both are transparent. What is drawn is also printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from neotta.evaluate.compare import AVERAGE, RELATIVE, compare, difference_in
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.frame import frame
from neotta.evaluate.records import Records
from neotta.report.figures import FAINT, INK, Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

RECORDS = Path(__file__).parent.parent / "docs" / "results" / "records-0.3.parquet"
MODEL, SAMPLES = "timm:deit_tiny_patch16_224", 512
SHOWN = {"none": ("plain", "#8a8f98"), "neo-stream": ("NEO-Stream, the default", "#8a63c9"), "neo": ("NEO", "#0b7fab")}
PAGE = {f"var(--ink, {INK})": INK, f"var(--line, {FAINT})": FAINT}
DARK = {INK: "#e6edf3", FAINT: "#484f58", "#8a63c9": "#b794f4", "#0b7fab": "#4cc3f0"}
"""Colours of texts, lines and methods on a dark page."""


def measured() -> pandas.DataFrame:
    """Accuracies of all methods in all domains, and differences on the same samples."""
    runs = frame(record for record in Records(RECORDS).read() if (record.model, record.samples) == (MODEL, SAMPLES))
    return compare(runs[runs["order"] == "iid"])


def rows_of(table: pandas.DataFrame) -> dict[str, dict[str, float]]:
    """Accuracy by method for each corruption, the largest gain of NEO first; then the mean and clean images."""
    means = table.pivot_table("mean", "domain", "method", observed=True)[list(SHOWN)]
    corrupted = means.drop(index=[CLEAN, AVERAGE, RELATIVE])
    gained = corrupted.loc[(corrupted["none"] - corrupted["neo"]).sort_values(kind="stable").index]
    rows = {domain.partition("/")[0].replace("_", " "): dict(row) for domain, row in gained.iterrows()}
    return {**rows, "mean of the 15": dict(means.loc[AVERAGE]), "clean images": dict(means.loc[CLEAN])}


def draw(rows: dict[str, dict[str, float]], canvas: Canvas) -> None:
    """A line for each row, from the plain accuracy to that of NEO, and the gains beside it."""
    axes = canvas.subplots()
    for place, (name, values) in enumerate(rows.items()):
        ends = min(values.values()), max(values.values())
        axes.plot(ends, [place, place], color=FAINT, linewidth=3, zorder=1)
        gains = f"{values['neo'] - values['none']:+.1f} ({values['neo-stream'] - values['none']:+.1f})"
        weight = "bold" if "mean" in name else "normal"
        axes.text(ends[1] + 1.5, place, gains, va="center", fontsize=8, weight=weight)
    for method, (title, color) in SHOWN.items():
        accuracies = [values[method] for values in rows.values()]
        axes.scatter(accuracies, range(len(rows)), s=34, color=color, label=title, zorder=2)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.axhline(len(rows) - 2.5, color=FAINT, linewidth=1)
    axes.set_xlim(0, 80)
    axes.set_xlabel("accuracy in %; beside it, what NEO (NEO-Stream) gains in points")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    canvas.legend(loc="outside upper left", ncols=len(SHOWN), fontsize=8.5)


def replaced(text: str, words: dict[str, str]) -> str:
    """The text with some words replaced by others."""
    for word, other in words.items():
        text = text.replace(word, other)
    return text


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/results/figures"))
    folder = parser.parse_args().folder
    table = measured()
    rows = rows_of(table)
    figure = Figure("deit-tiny-corruptions", "", lambda canvas: draw(rows, canvas), [], size=(7.0, 4.6))
    light = replaced(figure.svg(), PAGE)
    for end, svg in (("", light), ("-dark", replaced(light, DARK))):
        path = folder / f"{figure.name}{end}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path)
    for name, values in rows.items():
        print(f"{name:18}", *(f"{SHOWN[method][0]} {value:.1f}" for method, value in values.items()), sep="  ")
    for row in table[(table["domain"] == AVERAGE) & (table["pairs"] > 0)].itertuples():
        print(f"{row.method}: {difference_in(row).text(1, '+')} points over the 15 corruptions, {row.verdict}")


if __name__ == "__main__":
    main()
