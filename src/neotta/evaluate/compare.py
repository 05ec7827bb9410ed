"""From the frame of runs to one table: means with intervals, and differences to a baseline with verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from neotta._words import counted
from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from neotta.errors import DataError, OptionError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.estimates import METRICS, Difference, Metric, difference_of, differences_of, mean_of, means_of
from neotta.evaluate.frame import CONDITIONS, natural
from neotta.evaluate.metrics import NOTHING, Interval

if TYPE_CHECKING:
    import pandas

AVERAGE = "average"
"""The domain of rows that concern all domains but the clean one."""
ESTIMATES = (
    *("mean", "half_width", "seeds", "failed"),
    *("difference", "difference_low", "difference_high", "pvalue", "verdict"),
)
"""What is measured of a method in a domain."""


def compare(runs: pandas.DataFrame, metric: str = "top1", *, baseline: str = "none") -> pandas.DataFrame:
    """Compare methods that were run under the same conditions: a row for each of these, domain and method.

    Rows of the domain `average` are unweighted means over all domains but the clean one, then over seeds, of methods
    that have all of them. Intervals and verdicts in single domains are corrected for the number of domains.

    Beside the conditions and `ESTIMATES` there are:

    - `name`, the method without its options; `table`, a number for each set of conditions; `conditions`, these in
      words; `shared`, those of all tables, and `title`, the others;
    - `metric`, and `baseline`, the label that differences refer to, or None if it was not run there;
    - `low` and `high` of the mean, and `pairs`, the number of runs behind the difference;
    - `rank`, 1 for the best of the domain, by the mean over what all methods of the table were scored on;
    - `seen`, what was scored; `unknown`, the number of values without answers of each image, and `replaced`, of those
      that were measured again, on other samples or by another version; `errors` of runs that failed: seed, key and
      reason.
    """
    import pandas

    if metric not in METRICS:
        raise OptionError(f"metric is {metric!r}: choose one of {', '.join(METRICS)}")
    if not len(runs):
        raise DataError("there is no record of a run: make some with 'neotta run'")
    base, labels = _baseline(runs, baseline), list(runs["method"].cat.categories)
    several = [dict(zip(CONDITIONS, each, strict=True)) for each in _first_of_each(runs)]
    varied = _varied(several)
    unsaid = (*varied, "weights", "held_out_samples", "sequence")
    shared, found = _in_words(several[0], [name for name in CONDITIONS if name not in unsaid]), []
    for conditions, (number, group) in zip(several, runs.groupby("table", sort=True), strict=True):
        title = _in_words(conditions, varied)
        about = {**conditions, "table": number, "title": title, "shared": shared, "metric": metric}
        about["held_out"] = group["held_out"].iloc[0]
        about["conditions"] = ", ".join(filter(None, (shared, title)))
        about["baseline"] = base if base in set(group["method"]) else None
        found += [{**about, **row} for row in _rows(group, METRICS[metric], labels, base)]
    table = pandas.DataFrame(found).astype({"method": runs["method"].dtype})
    table.insert(0, "name", table["method"].map(_names(runs)).astype(str))
    if not table["seeds"].any() and not runs["failed"].all():
        raise DataError(f"no run has {metric!r}, which may need labels: try the metric 'entropy' or 'confidence'")
    return table


def cells_of(runs: pandas.DataFrame, metric: Metric) -> dict[tuple[str, str], dict[int, Any]]:
    """The rows of runs that were measured, by domain and method, then by seed: the last of each."""
    cells: dict[tuple[str, str], dict[int, Any]] = {}
    for row in runs.itertuples(index=False):
        cell = cells.setdefault((row.domain, row.method), {})
        if not row.failed and math.isfinite(getattr(row, metric.name)):
            cell[row.seed] = row
    return cells


def mean_in(row: Any) -> Interval:
    """The mean in a row of a comparison; of no runs if there is none."""
    return Interval.of(row.mean, row.low, row.high, row.seeds)


def difference_in(row: Any) -> Interval:
    """The difference in a row of a comparison; of no runs if there is none."""
    return Interval.of(row.difference, row.difference_low, row.difference_high, row.pairs)


def _first_of_each(runs: pandas.DataFrame) -> list[tuple[Any, ...]]:
    first = runs.drop_duplicates("table").sort_values("table")
    return list(first[list(CONDITIONS)].itertuples(index=False, name=None))


def _in_words(conditions: Mapping[str, Any], names: Iterable[str]) -> str:
    return ", ".join(filter(None, (CONDITIONS[name](conditions[name]) for name in names)))


def _varied(several: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [name for name in CONDITIONS if len({each[name] for each in several}) > 1]
    models = {each["model"] for each in several}
    if "weights" in names and len(models) == len({(each["model"], each["weights"]) for each in several}):
        names.remove("weights")  # the model says it already
    return names


def _baseline(runs: pandas.DataFrame, baseline: str) -> str | None:
    names = _names(runs)
    if baseline in names:
        return baseline
    labels = [label for label in runs["method"].cat.categories if names.get(label) == baseline]
    if len(labels) == 1:
        return str(labels[0])
    if labels:
        raise OptionError(f"there are several runs of {baseline!r}: choose the baseline among {_list(labels)}")
    if baseline == "none":
        return None
    raise OptionError(f"the baseline {baseline!r} was not run: there are {_list(names)}")


def _names(runs: pandas.DataFrame) -> dict[str, str]:
    pairs = runs[["method", "name"]].drop_duplicates().sort_values("method")  # in the order of the labels
    return dict(pairs.itertuples(index=False, name=None))


def _list(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


# ---- runs under the same conditions

Cells = Mapping[str, Mapping[int, Any]]
"""Rows of the frame by domain and seed."""


def _rows(runs: pandas.DataFrame, metric: Metric, labels: Sequence[str], base: str | None) -> Iterator[dict[str, Any]]:
    """A row for each domain and method, then the averages."""
    cells, failed = cells_of(runs, metric), dict[tuple[str, str], list[Any]]()
    measured, versions = {}, dict[tuple[str, str], set[Any]]()
    for row in runs.itertuples(index=False):
        place = row.domain, row.method
        if row.failed and row.seed not in cells[place]:  # a later success has another key
            failed.setdefault(place, []).append(row)
        elif not row.failed and math.isfinite(getattr(row, metric.name)):
            measured[(*place, row.seed, row.seen)] = row
            versions.setdefault(place, set()).add((row.seed, row.seen, row.key))
    # of a baseline without manifests nobody knows what it saw
    paired = {place[:1] + place[2:]: row for place, row in measured.items() if place[1] == base and len(row.seen) > 1}
    domains = sorted({domain for domain, _ in cells}, key=_domain_order)
    ran, found = {label for _, label in cells}, dict[str, dict[str, dict[str, Any]]]()
    for label in (label for label in labels if label in ran):
        of_domains = {domain: cells.get((domain, label), {}) for domain in domains}
        means, gaps = _estimates(of_domains, metric, paired, is_base=label == base)
        for name in (*(domain for domain in domains if (domain, label) in cells), *means.keys() - domains):
            cell, errors = of_domains.get(name, {}), failed.get((name, label), [])
            found.setdefault(name, {})[label] = {
                **{"domain": name, "method": label, **_numbers(means.get(name, NOTHING), gaps.get(name))},
                **{"failed": len(errors), "errors": tuple((row.seed, row.key, row.error) for row in errors)},
                **{"unknown": sum(row.answers is None for row in cell.values())},
                **{"replaced": len(versions[name, label]) - len(cell) if cell else 0, "rank": math.nan},
                "seen": frozenset((seed, row.seen) for seed, row in cell.items()),
            }
    for name in (*domains, AVERAGE):
        inside = [domain for domain in domains if domain != CLEAN] if name == AVERAGE else [name]
        rows = found.get(name, {})
        for label, row in rows.items():
            row["seen"] = frozenset((each, seen) for each in inside for seen in found[each][label]["seen"])
        of_methods = {label: {domain: cells.get((domain, label), {}) for domain in inside} for label in rows}
        ranks = _ranks(of_methods, metric)
        yield from ({**row, "rank": ranks.get(label, math.nan)} for label, row in rows.items())


def _estimates(
    cells: Cells, metric: Metric, paired: Mapping[tuple[Any, ...], Any], *, is_base: bool
) -> tuple[dict[str, Interval], dict[str, Difference]]:
    """Means and differences of a method by domain, and those over all domains."""
    pairs = {
        domain: {
            seed: (row, paired[domain, seed, row.seen])
            for seed, row in rows.items()
            if (domain, seed, row.seen) in paired
        }
        for domain, rows in cells.items()
    }
    means = means_of({domain: [[row] for row in rows.values()] for domain, rows in cells.items() if rows}, metric)
    shifted = [domain for domain in cells if domain != CLEAN]
    several = shifted if len(shifted) > 1 else []
    if runs := [[cells[domain][seed] for domain in several] for seed in _complete(cells, several)]:
        means[AVERAGE] = mean_of(runs, metric)
    if is_base:
        return means, {}
    given = {domain: [[pair] for pair in by_seed.values()] for domain, by_seed in pairs.items() if by_seed}
    gaps = differences_of(given, metric)
    if both := [[pairs[domain][seed] for domain in several] for seed in _complete(pairs, several)]:
        gaps[AVERAGE] = difference_of(both, metric)
    return means, gaps


def _numbers(mean: Interval, gap: Difference | None) -> dict[str, Any]:
    gap = gap or Difference(NOTHING, None)
    (low, high), ends = mean.ends, gap.interval.ends
    numbers = {"mean": mean.mean, "low": low, "high": high, "half_width": mean.half_width, "seeds": mean.runs}
    numbers |= {"difference": gap.interval.mean, "difference_low": ends[0], "difference_high": ends[1]}
    return {**numbers, "pairs": gap.interval.runs, "pvalue": gap.pvalue, "verdict": gap.verdict}


def _ranks(by_method: Mapping[str, Cells], metric: Metric) -> dict[str, int]:
    """The places of methods by what is printed of their means over the seeds and samples that all of them have."""
    having = {label: cells for label, cells in by_method.items() if any(cells.values())}
    runs = [
        {(seed, *(rows[seed].seen for rows in cells.values())): seed for seed in _complete(cells, list(cells))}
        for cells in having.values()
    ]
    shared = [seed for run, seed in runs[0].items() if all(run in others for others in runs)] if len(runs) > 1 else []
    if not shared or metric.better is None:
        return {}
    means = {
        label: round(
            fmean(fmean(getattr(rows[seed], metric.name) for rows in cells.values()) for seed in shared), metric.digits
        )
        for label, cells in having.items()
    }
    places = sorted(set(means.values()), reverse=metric.better == "higher")
    return {label: 1 + places.index(mean) for label, mean in means.items()}


def _complete(cells: Mapping[str, Mapping[int, Any]], domains: Sequence[str]) -> list[int]:
    return sorted(set.intersection(*(set(cells[domain]) for domain in domains))) if domains else []


def _domain_order(domain: str) -> tuple[Any, ...]:
    known = [CLEAN, *CORRUPTIONS, *EXTRA_CORRUPTIONS]
    kind = domain.split("/")[0]
    return (known.index(kind) if kind in known else len(known), natural(domain))


# ---- what has to be said beside a comparison


def failures(block: pandas.DataFrame) -> list[str]:
    """One line per method and error: what failed, how often, and why."""
    grouped: dict[tuple[str, str], dict[str, set[int]]] = {}
    for row in block.itertuples():
        for seed, _, error in row.errors:
            grouped.setdefault((row.method, error), {}).setdefault(row.domain, set()).add(seed)
    lines = []
    for (method, error), seeds in grouped.items():
        where = next(iter(seeds)) if len(seeds) == 1 else f"{len(seeds)} domains"
        listed = ", ".join(str(seed) for seed in sorted(set.union(*seeds.values())))
        lines.append(f"{method} failed on {where} (seeds {listed}): {error}")
    return lines


def notes(table: pandas.DataFrame) -> list[str]:
    """Sentences on what the numbers of a comparison are about, and on what is missing."""
    cells = table[table["domain"] != AVERAGE]
    lines = [*_about_seeds(cells), *_about_gaps(table, cells)]
    with_average = set(table["table"][table["domain"] == AVERAGE])
    if (table["table"].isin(with_average) & (table["domain"] == CLEAN)).any():
        lines.append("The average leaves the clean domain out.")
    return lines


def _about_seeds(cells: pandas.DataFrame) -> Iterator[str]:
    counts = cells["seeds"][cells["half_width"].notna()]
    held_out, paired = cells["held_out"], cells["pairs"] > 0
    if len(counts):
        few, many = counts.min(), counts.max()
        seeds = f" ({few} of them)" if few == many else f" ({few} to {many} of them)"
        yield f"± and [low, high]: 95 % interval over images{'' if many == 1 else f' and seeds{seeds}'}."
    if (held_out & (cells["pairs"] == 1)).any():
        yield (
            "No interval and no verdict where one state, of one seed, was scored on images that it did not adapt "
            "to: another seed has another state, and how much that changes is not known. Use several seeds."
        )
    if len(counts) and few == 1:
        yield (
            f"{'One seed' if many == 1 else 'Where there is one seed'}: the interval is about other images; how "
            "much a method depends on its own randomness and on the order of the samples is not in it."
        )
    if len(counts) and few == 2:
        yield (
            "Two seeds show in one domain hardly anything of how much runs vary: intervals there are several times "
            "wider than with three, and verdicts rare. Over many domains they are fine."
        )
    if (cells[paired].groupby("table")["domain"].nunique() > 1).any():
        yield (
            "Verdicts on single domains and the intervals of these differences are corrected for the number of "
            "domains of a method (Holm)."
        )
    if unknown := cells["unknown"].sum():
        yield (
            f"{unknown} values come from records that do not say which samples were right, as those of older versions: "
            "they have no interval and no verdict until they are measured again, to another file."
        )
    elif cells["metric"].iloc[0] != "top1" and (paired & cells["difference_low"].isna() & ~held_out).any():
        yield (
            "No verdict where there is one seed or all seeds see the same images: records do not have this metric "
            "image by image."
        )


def _about_gaps(table: pandas.DataFrame, cells: pandas.DataFrame) -> Iterator[str]:
    if failed := len({key for errors in cells["errors"] for _, key, _ in errors}):
        yield f"{counted(failed, 'run')} failed: their values are missing."
    if unmeasured := list(dict.fromkeys(cells["domain"][(cells["seeds"] == 0) & (cells["failed"] == 0)])):
        lacking = f"No {cells['metric'].iloc[0]!r} in {', '.join(unmeasured)}"
        yield f"{lacking}: the records there do not have it, as without labels."
    if cells["baseline"].isna().any():
        yield "Differences need runs of the baseline under the same conditions: some are missing."
    compared = cells[cells["baseline"].notna() & (cells["baseline"] != cells["method"])]
    if unpaired := (compared["seeds"] - compared["pairs"]).sum():
        yield f"{unpaired} runs are left out of the differences: the baseline was not run on the same samples."
    several, partial = False, False
    for _, block in cells[cells["domain"] != CLEAN].groupby("table"):
        seen = block[block["seeds"] > 0].groupby("method")["seen"].agg(lambda parts: frozenset().union(*parts))
        several |= seen.nunique() > 1
        average = table[(table["table"] == block["table"].iloc[0]) & (table["domain"] == AVERAGE)]
        partial |= block["domain"].nunique() > 1 and block["method"].nunique() > len(average)
    if several:
        yield (
            "Some methods were run on fewer seeds or other samples: best and second best are by what all were run on, "
            "and only the differences compare the same samples."
        )
    if partial:
        yield "An average is given only for methods that have a value for every domain."
    if replaced := cells["replaced"].sum():
        why = "on other samples or by another version"
        yield f"{replaced} values were measured again, {why}: the last ones are shown."
