"""How few dimensions change most: the cumulative share of the most-changed dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.families import family, short_names
from neotta.paper.item import Finding, Holds, Item, Rows, Table
from neotta.paper.latent import dimensions_for, shifts, where_possible
from neotta.paper.study import Setting
from neotta.report.figures import FAINT, Figure, Series, legend, many_lines
from neotta.report.grids import Entry, Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Shifts = dict[str, dict[str, Any]]

LIMIT = 50 / 768
"""The paper: fewer than 50 of 768 dimensions account for 80 % of the samples."""
CONTRAST = 20 / 768
"""The paper: under contrast, fewer than 20 of 768 account for 95 % of the samples."""
SHOWN = 250 / 768
"""The part of the dimensions that the paper's figure shows."""


class Dimensions(Item):
    """Figure 3, left."""

    name = "figure-dimensions"
    title = "A shift changes a few dimensions most"
    place = "Figure 3, left"
    question = "In how many dimensions does a shift move embeddings most?"
    claim = (
        "Under every corruption, 80 % of the samples have their largest change in fewer than 50 of 768 dimensions; "
        "under contrast, 95 % of them in fewer than 20."
    )

    def find(self, evidence: Evidence) -> Finding:
        """Count the dimensions that account for 80 % and 95 % of the samples."""
        finding = Finding()
        for setting, found in where_possible(evidence, finding, shifts):
            finding.parts += [_figure(setting, found), _table(setting, found)]
            finding.say(_answer(setting, found), _holds(found))
            first = next(iter(found.values()))
            if first["samples"] < first["dimensions"]:
                finding.notes.append(
                    f"{setting.title}: {first['samples']} samples cannot have their largest change in more than as "
                    f"many of the {first['dimensions']} dimensions, so these counts are low."
                )
        return finding


def _shares(found: Shifts) -> dict[str, float]:
    """The part of the dimensions that accounts for 80 % of the samples, by domain."""
    return {domain: dimensions_for(shift, 0.8) / shift["dimensions"] for domain, shift in found.items()}


def _contrast(found: Shifts) -> tuple[int, int] | None:
    """The dimensions that account for 95 % of the samples under contrast, and all of them."""
    shift = next((shift for domain, shift in found.items() if domain.split("/")[0] == "contrast"), None)
    return None if shift is None else (dimensions_for(shift, 0.95), shift["dimensions"])


def _figure(setting: Setting, found: Shifts) -> Figure:
    domains = list(found)
    curves = {
        domain: Series(
            [0.0, *(100 * (place + 1) / shift["dimensions"] for place in range(len(shift["cumulative"])))],
            [0.0, *(100 * share for share in shift["cumulative"])],
        )
        for domain, shift in found.items()
    }

    def draw(canvas: Canvas) -> None:
        axes = canvas.subplots()
        many_lines(axes, curves, {domain: family(domain) for domain in domains}, short_names(domains))
        axes.axhline(80, color=FAINT, linewidth=1.2)
        axes.axvline(100 * LIMIT, color=FAINT, linewidth=1.2)
        axes.annotate("50 of 768", (100 * LIMIT, 3), xytext=(3, 0), textcoords="offset points", fontsize=8)
        axes.set_xlim(0, 100 * SHOWN)
        axes.set_ylim(0, 101)
        axes.set_xlabel("dimensions, the most frequent first (% of all)")
        axes.set_ylabel("samples (%)")
        legend(canvas, axes, beside=True)

    return Figure(
        comparing.file_name("dimensions", setting.title),
        f"{setting.title}: share of samples whose largest change is in the k most frequent dimensions",
        draw,
        [
            {"domain": domain, "dimensions": place + 1, "share": share}
            for domain, shift in found.items()
            for place, share in enumerate(shift["cumulative"])
        ],
        "A line that rises early: few dimensions carry the shift. Grey lines: the paper's 80 % and 50 of 768.",
        (7.0, 4.0),
    )


def _table(setting: Setting, found: Shifts) -> Table:
    shown, data = [], Rows()
    for domain, shift in found.items():
        every = shift["dimensions"]
        counts = [dimensions_for(shift, share) for share in (0.8, 0.95)]
        texts = [f"{count} ({100 * count / every:.1f} %)" for count in counts]
        shown.append((domain, tuple(Entry(text) for text in texts)))
        numbers = {"for_80_percent": counts[0], "for_95_percent": counts[1]}
        data.append({"domain": domain, **numbers, "dimensions": every, "samples": shift["samples"]})
    first = next(iter(found.values()))
    return Table(
        f"{setting.title}: dimensions that have the largest change",
        Grid("domain", ("of 80 % of samples", "of 95 % of samples"), tuple(shown)),
        data,
        f"Of {first['dimensions']} dimensions, from {first['samples']} samples. The paper, under every corruption: "
        f"fewer than 50 of 768 ({100 * LIMIT:.1f} %) for 80 %; under contrast fewer than 20 "
        f"({100 * CONTRAST:.1f} %) for 95 %.",
    )


def _answer(setting: Setting, found: Shifts) -> str:
    shares = _shares(found)
    worst = max(shares, key=lambda domain: shares[domain])
    count = dimensions_for(found[worst], 0.8)
    fewer = sum(share < LIMIT for share in shares.values())
    where = "under every shift" if fewer == len(shares) else f"under {fewer or 'none'} of the {len(shares)} shifts"
    return (
        f"On {setting.title}, 80 % of the samples have their largest change in fewer than {100 * LIMIT:.1f} % of the "
        f"dimensions (the paper's 50 of 768) {where}; at most, under {worst}, it takes {count} of "
        f"{found[worst]['dimensions']} ({100 * shares[worst]:.1f} %){_contrast_words(found)}."
    )


def _contrast_words(found: Shifts) -> str:
    counts = _contrast(found)
    if counts is None:
        return ""
    share = counts[0] / counts[1]
    fewer = "fewer" if share < CONTRAST else "not fewer"
    return (
        f"; under contrast, 95 % of the samples have it in {counts[0]} ({100 * share:.1f} %), {fewer} than the paper's "
        "20 of 768"
    )


def _holds(found: Shifts) -> Holds:
    fewer = [share < LIMIT for share in _shares(found).values()]
    if (counts := _contrast(found)) is not None:
        fewer.append(counts[0] / counts[1] < CONTRAST)
    return "yes" if all(fewer) else "partly" if any(fewer) else "no"
