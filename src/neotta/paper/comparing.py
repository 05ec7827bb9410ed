"""What several items share: a comparison of methods as tables, and published beside measured numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from neotta.errors import DataError
from neotta.evaluate.compare import compare
from neotta.evaluate.comparison import METRICS, Block, Comparison
from neotta.evaluate.metrics import Interval, interval, verdict
from neotta.evaluate.records import Record
from neotta.paper.item import Holds, Rows, Table
from neotta.report.grids import Entry, Grid, differences, number, values

NOTHING = Interval(math.nan, math.nan, 0)


def compared(records: Sequence[Record], metric: str = "top1") -> Comparison | None:
    """A comparison of runs, or None if none succeeded."""
    try:
        return compare(records, metric) if records else None
    except DataError:
        return None


def tables(comparison: Comparison, title: str, gaps: bool = True) -> list[Table]:
    """The tables of a comparison: means, and differences to the unadapted model where there are any."""
    found = []
    for block in comparison.blocks:
        where = f"{title}, {block.title}" if block.title else title
        shown = values(block, comparison.metric)
        caption = f"{sentence(comparison.metric.title)}. Best in bold, second best underlined." + _seeds(block)
        found.append(Table(where, shown, rows(block), caption))
        differing = differences(block, comparison.metric) if gaps else None
        if differing is not None:
            caption = f"Difference to {block.baseline} on the same samples, with what it says." + _seeds(block)
            found.append(Table(f"{where}: difference to {block.baseline}", differing, gap_rows(block), caption))
    return found


def _seeds(block: Block) -> str:
    """What the ± means, or that there is none."""
    if len(block.seeds) < 2:
        return " One seed: no interval can be given."
    return f" ±: 95 % interval over {len(block.seeds)} seeds."


def rows(block: Block) -> Rows:
    """The cells of a block as plain numbers."""
    found: Rows = []
    for (domain, label), cell in block.cells.items():
        found.append({"domain": domain, "method": label, **plain(cell.interval), "failed": len(cell.failed)})
    found += [{"domain": "average", "method": label, **plain(mean)} for label, mean in block.average.items()]
    return found


def gap_rows(block: Block) -> Rows:
    """The differences of a block as plain numbers."""
    found: Rows = [
        {"domain": domain, "method": label, **plain(gap.interval), "verdict": gap.verdict}
        for (domain, label), gap in block.differences.items()
    ]
    for label, gap in block.average_differences.items():
        found.append({"domain": "average", "method": label, **plain(gap.interval), "verdict": gap.verdict})
    return found


def plain(found: Interval) -> dict[str, float | int | None]:
    """An interval for a row of data."""
    return {
        "mean": None if math.isnan(found.mean) else found.mean,
        "half_width": None if math.isnan(found.half_width) else found.half_width,
        "seeds": found.runs,
    }


def beside(
    title: str,
    published: Mapping[str, float],
    measured: Mapping[str, Interval],
    *,
    corner: str = "method",
    unit: str = "top1",
    sign: str = "",
    caption: str = "",
) -> Table:
    """Published and measured numbers side by side, with their difference.

    Args:
        title: Of the table.
        published: Printed numbers by name.
        measured: Measured ones by name; a name needs not be in both.
        corner: What the names are.
        unit: The metric, which says how many digits are shown.
        sign: `"+"` for numbers that are changes.
        caption: How to read it.
    """
    metric = METRICS[unit]
    shown, data = [], []
    for name in dict.fromkeys([*published, *measured]):
        printed, mine = published.get(name, math.nan), measured.get(name, NOTHING)
        gap = mine.mean - printed
        texts = (
            signed(printed, metric.digits, sign),
            number(mine, metric, sign),
            signed(gap, metric.digits, "+"),
        )
        shown.append((name, tuple(Entry(text) for text in texts)))
        data.append(
            {
                corner: name,
                "published": None if math.isnan(printed) else printed,
                **{f"measured_{key}": value for key, value in plain(mine).items()},
                "difference": None if math.isnan(gap) else gap,
            }
        )
    return Table(title, Grid(corner, ("published", "measured", "difference"), tuple(shown)), data, caption)


def signed(value: float, digits: int = 1, sign: str = "") -> str:
    """A number, a dash where there is none."""
    return Entry().text if math.isnan(value) else f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def gain_words(gap: Interval, unit: str = "points") -> str:
    """`+3.1 ± 0.4 points`, or that the sign is not certain."""
    text = f"{gap.mean:+.1f}" if math.isnan(gap.half_width) else f"{gap.mean:+.1f} ± {gap.half_width:.1f}"
    return f"{text} {unit}"


def gains(records: Sequence[Record], method: str, baseline: str = "none", metric: str = "top1") -> list[float]:
    """Differences between two methods on the same samples, one per domain, seed and number of samples."""
    found: dict[tuple[object, ...], dict[str, float]] = {}
    for record in records:
        if record.get("status") == "ok" and record["metrics"].get(metric) is not None:
            place = (*record["manifests"], record["seed"])
            found.setdefault(place, {})[record["method"]] = record["metrics"][metric]
    return [pair[method] - pair[baseline] for pair in found.values() if method in pair and baseline in pair]


def mean_over(records: Sequence[Record], metric: str = "top1") -> Interval:
    """The mean over domains for each seed, then the interval over seeds; seeds that miss a domain are left out."""
    by_seed: dict[int, dict[str, float]] = {}
    for record in records:
        value = record.get("metrics", {}).get(metric)
        if value is not None:
            by_seed.setdefault(record["seed"], {})[f"{record.get('source_domain')}>{record['domain']}"] = value
    most = max((len(values) for values in by_seed.values()), default=0)
    return interval([math.fsum(found.values()) / most for found in by_seed.values() if len(found) == most])


def claim_of_gain(gap: Interval) -> Holds:
    """Whether "it improves" holds: by the interval where there is one, else by nothing."""
    said = verdict(gap)
    return {"helps": "yes", "hurts": "no"}.get(said, "unclear")  # type: ignore[return-value]


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def means(block: Block) -> dict[str, Interval]:
    """The mean of each method over the domains; with a single domain, that of the domain."""
    if block.average:
        return block.average
    return {label: cell.interval for (_, label), cell in block.cells.items() if cell.values}


def all_hold(found: Sequence[Holds]) -> Holds:
    """One verdict for several subjects."""
    if not found:
        return "unclear"
    return found[0] if len(set(found)) == 1 else "partly"
