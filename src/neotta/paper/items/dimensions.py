"""How few dimensions change most: the cumulative share of the most-changed dimension."""

from __future__ import annotations

from typing import Any

from neotta.paper.finding import counted
from neotta.paper.item import Case, item
from neotta.paper.latent import dimensions_for, shifts
from neotta.paper.words import family, short_names
from neotta.report.charts import Series
from neotta.report.diagrams import share_chart
from neotta.report.grids import grid

Shifts = dict[str, dict[str, Any]]

LIMIT = 50 / 768
"""The paper: fewer than 50 of 768 dimensions account for 80 % of the samples."""
CONTRAST = 20 / 768
"""The paper: under contrast, fewer than 20 of 768 account for 95 % of the samples."""
SHOWN = 250 / 768
"""The part of the dimensions that the paper's figure shows."""


@item(
    order=3,
    name="dimensions",
    title="A shift changes a few dimensions most",
    place="Figure 3, left",
    question="In how many dimensions does a shift move embeddings most?",
    claim=(
        "Under every corruption, 80 % of the samples have their largest change in fewer than 50 of 768 dimensions; "
        "under contrast, 95 % of them in fewer than 20."
    ),
)
def show(case: Case) -> None:
    """Count the dimensions that account for 80 % and 95 % of the samples."""
    found = shifts(case.evidence, case.setting)
    first = next(iter(found.values()))
    _draw(case, found)
    counts = {domain: [dimensions_for(shift, share) for share in (0.8, 0.95)] for domain, shift in found.items()}
    shown = {
        domain: [f"{count} ({100 * count / found[domain]['dimensions']:.1f} %)" for count in both]
        for domain, both in counts.items()
    }
    case.table(
        "dimensions that have the largest change",
        grid("domain", ("of 80 % of samples", "of 95 % of samples"), shown),
        [
            {"domain": domain, "for_80_percent": both[0], "for_95_percent": both[1]}
            | {name: found[domain][name] for name in ("dimensions", "samples")}
            for domain, both in counts.items()
        ],
        f"Of {first['dimensions']} dimensions, from {first['samples']} samples. The paper, under every corruption: "
        f"fewer than 50 of 768 ({100 * LIMIT:.1f} %) for 80 %; under contrast fewer than 20 "
        f"({100 * CONTRAST:.1f} %) for 95 %.",
    )
    shares = {domain: both[0] / found[domain]["dimensions"] for domain, both in counts.items()}
    contrast = next((domain for domain in found if domain.split("/")[0] == "contrast"), None)
    facts = [share < LIMIT for share in shares.values()]
    worst = max(shares, key=lambda domain: shares[domain])
    where = "every shift" if all(facts) else f"{sum(facts) or 'none'} of the {len(facts)} shifts"
    answer = (
        f"80 % of the samples have their largest change in fewer than {100 * LIMIT:.1f} % of the dimensions (the "
        f"paper's 50 of 768) under {where}; at most, under {worst}, it takes {counts[worst][0]} of "
        f"{found[worst]['dimensions']} ({100 * shares[worst]:.1f} %)"
    )
    if contrast is not None:
        share = counts[contrast][1] / found[contrast]["dimensions"]
        facts.append(share < CONTRAST)
        answer += (
            f"; under contrast, 95 % of the samples have it in {counts[contrast][1]} ({100 * share:.1f} %), "
            f"{'fewer' if share < CONTRAST else 'not fewer'} than the paper's 20 of 768"
        )
    case.say(answer, counted(facts))
    if first["samples"] < first["dimensions"]:
        case.note(
            f"{case.title}: {first['samples']} samples cannot have their largest change in more than as many of "
            f"the {first['dimensions']} dimensions, so these counts are low."
        )


def _draw(case: Case, found: Shifts) -> None:
    names = short_names(list(found))
    series = {
        names[domain]: Series(
            [0.0, *(100 * (place + 1) / shift["dimensions"] for place in range(len(shift["cumulative"])))],
            [0.0, *(100 * share for share in shift["cumulative"])],
        )
        for domain, shift in found.items()
    }
    case.figure(
        "dimensions",
        "share of samples whose largest change is in the k most frequent dimensions",
        share_chart(
            series,
            {names[domain]: family(domain) for domain in found},
            x="dimensions, the most frequent first (% of all)",
            y="samples (%)",
            guide=(100 * LIMIT, 80.0, "50 of 768"),
            limit=100 * SHOWN,
        ),
        [
            {"domain": domain, "dimensions": place + 1, "share": share}
            for domain, shift in found.items()
            for place, share in enumerate(shift["cumulative"])
        ],
        "A line that rises early: few dimensions carry the shift. Grey lines: the paper's 80 % and 50 of 768.",
        height=4.0,
    )
