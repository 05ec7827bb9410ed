"""Draws what NEO and the default, NEO-Stream, do on shifts and on streams, from the records of the results.

    python scripts/draw_first_picture.py docs/results/figures

Two files are written, for light and for dark pages; both are transparent. What is drawn is also printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from neotta.cli.config import read_config
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.frame import frame
from neotta.evaluate.records import Records
from neotta.evaluate.stream_harm import gains
from neotta.paper.study import Study
from neotta.report.figures import FAINT, INK, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

RESULTS = Path(__file__).parent.parent / "docs" / "results"
PLAIN, RULE, OTHER = "none", "neo-stream", "neo"
GREY, GAIN, HARM, MARK = "#8a8f98", "#8a63c9", "#c2410c", "#0b7fab"
PAGE = {f"var(--ink, {INK})": INK, f"var(--line, {FAINT})": FAINT}
DARK = {INK: "#e6edf3", FAINT: "#484f58", GAIN: "#b794f4", HARM: "#fb923c", MARK: "#4cc3f0"}
"""Colours of texts, lines and methods on a dark page."""
SETS = {
    "all": "other people's digits",
    "edges": "line drawings",
    "silhouettes": "silhouettes",
    "cue-conflict": "cue conflict",
}
"""What the domains of natural shifts are called, in the order of their rows."""
KINDS = {
    "iid": "all classes, mixed",
    "bursts:length=100": "bursts of 100 of a class",
    "by-class": "sorted by class",
    "mixed-then-one": "mixed, then one class",
    "new-cameras:each=4": "a new camera every 4 images",
    "some-classes:classes=2": "two classes",
    "in-turn:classes=2": "two classes, in turn",
    "dominant:share=0.5": "one class in half of it",
    "dominant:share=0.9": "one class in nine tenths of it",
    "some-classes:classes=1": "one class",
}
"""The kinds of streams that are drawn."""
Row = dict[str, float]


def titles(study: str) -> dict[tuple[str, str], str]:
    """What a study calls its models, by model and data; the first of those with the same."""
    subjects = Study.make(read_config(RESULTS / study, tuple(Study.model_fields))).subjects
    return {(each.model, each.data): each.title for each in reversed(subjects)}


def accuracies(file: str, samples: int, batch_size: int) -> pandas.DataFrame:
    """Mean accuracy by model, data, domain and method on mixed streams of so many samples."""
    runs = frame((record for record in Records(RESULTS / file).read() if record.samples == samples), answers=False)
    mixed = runs[(runs["order"] == "iid") & (runs["batch_size"] == batch_size)]
    shown = mixed[mixed["method"].isin([PLAIN, RULE, OTHER])]
    return shown.pivot_table("top1", ["model", "data", "domain"], "method", observed=True)


def shifts() -> dict[str, dict[str, Row]]:
    """Accuracies by kind of shift and model: photographs and drawings as they are, then the mean of all corruptions."""
    found, names = accuracies("natural.parquet", -1, 16), titles("natural.toml")
    by_set: dict[str, dict[str, Row]] = {title: {} for title in SETS.values()}
    for (model, data, domain), row in found.iterrows():
        by_set[SETS[domain]][names[model, data]] = dict(row)
    every = accuracies("records-0.3.parquet", 512, 64)
    corrupted = every[every.index.get_level_values("domain") != CLEAN].groupby(["model", "data"]).mean()
    studied = titles("study.toml")
    by_model = {title: dict(corrupted.loc[key]) for key, title in reversed(studied.items()) if key in corrupted.index}
    return {**by_set, "corruptions": by_model}


def streams() -> dict[str, Row]:
    """By kind of stream the mean gains over all models, each counted alike, and the worst of the default's streams."""
    every = gains(Records(RESULTS / "streams.parquet").read())
    rows = {}
    for kind, title in KINDS.items():
        mine = every[every["kind"] == kind]
        means = mine.groupby(["method", "model"], observed=True)["gain"].mean().groupby("method", observed=True).mean()
        ruled = mine[mine["method"] == RULE]["gain"]
        rows[title] = {OTHER: means[OTHER], RULE: means[RULE], "low": ruled.quantile(0.05), "worst": ruled.min()}
    return rows


def draw(by_shift: dict[str, dict[str, Row]], by_kind: dict[str, Row], canvas: Canvas) -> None:
    """Both panels and what their marks are."""
    left, right = canvas.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_shifts(by_shift, left)
    _draw_streams(by_kind, right)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
    handles = [
        left.scatter([], [], s=22, color=GREY, label="plain"),
        left.scatter([], [], s=30, color=GAIN, label="the default: gain"),
        left.scatter([], [], s=30, color=HARM, label="the default: loss"),
        left.scatter([], [], s=44, marker="|", color=MARK, label="NEO"),
        right.scatter([], [], s=22, marker="x", color=HARM, label="the default's worst stream"),
    ]
    canvas.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8)


def _draw_shifts(by_shift: dict[str, dict[str, Row]], axes: Axes) -> None:
    labels: list[str] = []
    for shift, by_model in by_shift.items():
        where = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
        axes.text(-0.015, len(labels), shift, weight="bold", fontsize=8, **where)
        labels.append("")
        for model, row in by_model.items():
            place, gain = len(labels), row[RULE] - row[PLAIN]
            color = GAIN if gain >= 0 else HARM
            axes.plot([row[PLAIN], row[RULE]], [place, place], color=color, linewidth=2.4)
            axes.scatter(row[PLAIN], place, s=22, color=GREY, zorder=2)
            axes.scatter(row[RULE], place, s=30, color=color, zorder=3)
            axes.scatter(row[OTHER], place, s=44, marker="|", color=MARK, zorder=4)
            axes.text(max(row.values()) + 2, place, f"{gain:+.1f}", color=color, va="center", fontsize=7.5)
            labels.append(model)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy in %; beside it, the change by the default")


def _draw_streams(by_kind: dict[str, Row], axes: Axes) -> None:
    for place, row in enumerate(by_kind.values()):
        color = GAIN if row[RULE] >= 0 else HARM
        axes.plot([row["worst"], row[RULE]], [place, place], color=FAINT, linewidth=1)
        axes.plot([row["low"], row[RULE]], [place, place], color=color, linewidth=2.4)
        axes.scatter(row["worst"], place, s=22, marker="x", color=HARM, zorder=3)
        axes.scatter(row[OTHER], place, s=60, marker="|", color=MARK, zorder=4)
        axes.scatter(row[RULE], place, s=30, color=color, zorder=3)
        axes.text(12, place, f"{row[RULE]:+.1f}", color=color, va="center", fontsize=7.5)
    axes.axvline(0, color=GREY, linewidth=1, zorder=1)
    axes.set_yticks(range(len(by_kind)), by_kind)
    axes.set_ylim(len(by_kind) - 0.5, -0.5)
    axes.set_xlim(-60, 20)
    axes.set_xlabel("change in points, mean of the models")


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
    by_shift, by_kind = shifts(), streams()
    figure = Figure("shifts-and-streams", "", lambda canvas: draw(by_shift, by_kind, canvas), [], size=(9.6, 4.8))
    light = replaced(figure.svg(), PAGE)
    for end, svg in (("", light), ("-dark", replaced(light, DARK))):
        path = folder / f"{figure.name}{end}.svg"
        path.write_text(svg, encoding="utf-8")
        print(path)
    for title, rows in {**by_shift, "streams": by_kind}.items():
        for name, row in rows.items():
            print(f"{title:22}{name:32}", *(f"{what} {value:.1f}" for what, value in row.items()), sep="  ")


if __name__ == "__main__":
    main()
