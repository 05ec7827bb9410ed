"""What several items share: a comparison of methods as tables, and published beside measured numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from neotta.errors import DataError, OptionError
from neotta.evaluate.compare import compare
from neotta.evaluate.comparison import METRICS, Block, Comparison, Difference
from neotta.evaluate.metrics import Interval, interval, verdict
from neotta.evaluate.records import Record
from neotta.paper.item import Holds, Rows, Table
from neotta.report.grids import Entry, Grid, differences, number, values

NOTHING = Interval(math.nan, math.nan, 0)


def compared(records: Sequence[Record], metric: str = "top1", baseline: str = "none") -> Comparison | None:
    """A comparison of runs, or None if none succeeded or the baseline was not run."""
    try:
        return compare(records, metric, baseline=baseline) if records else None
    except (DataError, OptionError):
        return None


def fullest(comparison: Comparison | None) -> Block | None:
    """The block with the most methods, if there is any."""
    return max(comparison.blocks, key=lambda block: len(block.methods)) if comparison else None


def surest(comparison: Comparison, method: str) -> Block | None:
    """The block in which a method was compared with the unadapted model over the most seeds, if there is any."""
    found = [block for block in comparison.blocks if method in mean_gaps(block)]
    return max(found, key=lambda block: mean_gaps(block)[method].interval.runs) if found else None


def extent(block: Block) -> str:
    """`512 samples, 3 seeds`."""
    count = block.conditions.samples
    return f"{'all samples' if count < 0 else some(count, 'sample')}, {some(len(block.seeds), 'seed')}"


def extents(one: Block, other: Block) -> tuple[str, str]:
    """What to add on the samples and seeds of two blocks: nothing if they are the same."""
    return ("", "") if one is other else (f" ({extent(one)})", f" ({extent(other)})")


def tables(comparison: Comparison, title: str, gaps: bool = True) -> list[Table]:
    """The tables of a comparison: means, and differences to the unadapted model where there are any."""
    found = []
    for block in comparison.blocks:
        where = f"{title}, {block.title}" if block.title else title
        shown = values(block, comparison.metric)
        caption = f"{sentence(comparison.metric.title)}. Best in bold, second best underlined." + seeds(block)
        found.append(Table(where, shown, rows(block), caption))
        differing = differences(block, comparison.metric) if gaps else None
        if differing is not None:
            caption = f"Difference to {block.baseline} on the same samples, with what it says." + seeds(block)
            found.append(Table(f"{where}: difference to {block.baseline}", differing, gap_rows(block), caption))
    return found


def plain_notes(comparison: Comparison) -> list[str]:
    """The notes of a comparison whose differences are not shown: nothing about verdicts."""
    return [note for note in comparison.notes() if "verdict" not in note]


def seeds(block: Block) -> str:
    """A sentence that says what the ± means, or that there is none."""
    if len(block.seeds) < 2:
        return " One seed: no interval can be given."
    return f" ±: 95 % interval over {len(block.seeds)} seeds.{uneven(block)}"


def uneven(block: Block) -> str:
    """A sentence on methods that have fewer seeds than others, whose means are of other samples; empty without any."""
    few = [label for label in block.methods if 0 < len(seeds_of(block, label)) < len(block.seeds)]
    why = "their means are of fewer samples, so compare them by their differences to none"
    return f" With fewer seeds: {listed(few)}; {why}." if few else ""


def seeds_of(block: Block, label: str) -> set[int]:
    """The seeds that a method has in any domain."""
    return {seed for (_, name), cell in block.cells.items() if name == label for seed in cell.values}


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
    digits: int | None = None,
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
        digits: Another number of digits.
        sign: `"+"` for numbers that are changes.
        caption: How to read it.
    """
    metric = METRICS[unit] if digits is None else METRICS[unit]._replace(digits=digits)
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


def claim_of_gain(gap: Interval, least: float = 0.0) -> Holds:
    """Whether "it improves by more than `least`" holds: by the interval where there is one, else by nothing."""
    said = verdict(gap._replace(mean=gap.mean - least))
    return {"helps": "yes", "hurts": "no"}.get(said, "unclear")  # type: ignore[return-value]


def some(count: float, what: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{count:g} {what if count == 1 else plural(what)}"


def plural(word: str) -> str:
    """`samples`, `classes`."""
    return f"{word}es" if word.endswith("s") else f"{word}s"


def sentence(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def means(block: Block) -> dict[str, Interval]:
    """The mean of each method over the shifted domains; with a single domain, that of the domain."""
    if block.average:
        return block.average
    alone = _alone(block)
    return {label: cell.interval for (domain, label), cell in block.cells.items() if domain in alone and cell.values}


def mean_gaps(block: Block) -> dict[str, Difference]:
    """The differences to the baseline over the shifted domains; with a single domain, those on it."""
    if block.average_differences:
        return block.average_differences
    alone = _alone(block)
    return {label: gap for (domain, label), gap in block.differences.items() if domain in alone}


def _alone(block: Block) -> tuple[str, ...]:
    """The domain of a block that has one shifted domain, or only the clean one; none where domains are incomplete."""
    names = block.averaged or block.domains
    return names if len(names) == 1 else ()


def against(records: Sequence[Record], method: str, metric: str = "top1") -> dict[str, Difference]:
    """How all other methods differ from this one on the same samples, over the shifted domains."""
    block = fullest(compared(records, metric, method))
    return mean_gaps(block) if block else {}


def with_verdict(gaps: Mapping[str, Difference], said: str) -> list[str]:
    """The methods of whose difference this is said: `helps`, `hurts` or `can't tell`."""
    return [label for label, gap in gaps.items() if gap.verdict == said]


def rank(gaps: Mapping[str, Difference]) -> str:
    """`the best of 9 methods`: where a method stands by how the others differ from it, and what may be chance."""
    means = {label: gap.interval.mean for label, gap in gaps.items()}
    ahead = sorted((label for label in means if means[label] > 0), key=lambda label: -means[label])
    level = with_verdict(gaps, "can't tell")
    first = "first" if level else "the best"
    place = f"number {len(ahead) + 1}, after {listed(ahead)}," if ahead else first
    chance = f" (its difference to {listed(level)} may be chance)" if level else ""
    if len(level) == len(gaps) > 1:
        chance = " (all its differences may be chance)"
    return f"{place} of {len(gaps) + 1} methods{chance}"


def doubt(gap: Interval) -> str:
    """What has to be added to a difference that may be none."""
    if math.isnan(gap.half_width):
        return " (one seed: no interval)"
    return " (which may be chance)" if verdict(gap) == "can't tell" else ""


def together(parts: Sequence[Holds]) -> Holds:
    """One verdict for a claim of several parts: what is refuted outweighs what is unclear."""
    if len(set(parts)) == 1:
        return parts[0]
    return "partly" if "yes" in parts else "no" if "no" in parts else "unclear"


def file_name(*parts: str) -> str:
    """A name for a file: words in lower case, with hyphens between."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")
