"""What methods need, their time and memory on this machine and on others, and what accuracy they buy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from neotta.adapters import registry
from neotta.evaluate.metrics import CANNOT_TELL, NOTHING, Interval, verdict
from neotta.evaluate.records import Record
from neotta.paper.claims import Holds, at_once, called, file_name, listed, some
from neotta.paper.evidence import Evidence
from neotta.paper.item import Report, item, need
from neotta.paper.measured import Gaps, ahead, with_verdict
from neotta.paper.study import RIVALS, in_paper_order, method_of
from neotta.paper.tables import Rows, beside, known, plain, single
from neotta.report.charts import Ranking, SizedPoint, ranking_chart, scatter_chart
from neotta.report.figures import Figure
from neotta.report.grids import Entry, Table, grid

MIB = 2**20
SAME_TIME = 1.1
"""Times that differ by less than this factor are the same."""
SAME_MEMORY, NOISE = 1.05, 8 * MIB
"""Peaks that differ by less than this factor, or by less than so many bytes, are the same."""

SAME = (
    f"Times within a factor of {SAME_TIME} count as the same, and so do peaks within a factor of {SAME_MEMORY} or "
    f"{NOISE // MIB} MiB."
)


def slowdown(cost: Record) -> float:
    """Time as a multiple of the unadapted model's, measured in the same process: that is what can be compared."""
    return (cost.seconds_per_image or math.nan) / (cost.plain_seconds_per_image or math.nan)


def milliseconds(costs: Mapping[str, Record]) -> dict[str, float]:
    """Time for an image by method, as if the unadapted model had taken the same time beside each of them."""
    plain = statistics.median(cost.plain_seconds_per_image or math.nan for cost in costs.values())
    return {name: 1e3 * plain * slowdown(cost) for name, cost in costs.items()}


def mebibytes(cost: Record) -> float:
    """Peak memory; NaN where the system does not tell."""
    return math.nan if cost.peak_memory is None else cost.peak_memory / MIB


def faster(one: Record, other: Record) -> bool:
    return slowdown(one) * SAME_TIME < slowdown(other)


def leaner(one: Record, other: Record) -> bool:
    """Whether a method clearly needs less memory than another; never where that is not known."""
    mine, theirs = mebibytes(one), mebibytes(other)
    return mine * SAME_MEMORY < theirs and mine + NOISE / MIB < theirs


def busy(plain: Record) -> str:
    """A sentence that the machine had other work, empty if it had not: times say little then."""
    factor = max(slowdown(plain), 1 / slowdown(plain))
    if factor <= SAME_TIME:
        return ""
    return f" But the same model, measured twice, differs by a factor of {factor:.2f}: the machine was busy."


def device(cost: Record) -> str:
    gpu = cost.machine.get("gpu") if not str(cost.conditions.get("device", "cpu")).startswith("cpu") else None
    return str(gpu or cost.machine.get("processor") or "an unknown device")


PUBLISHED = {"time": -63.0, "memory": -9.0}
"""Change in percent against the other methods, on a Raspberry Pi 4B and a Jetson Orin Nano."""
KEPT = ("seconds_per_image", "plain_seconds_per_image", "forward_passes", "backward_passes")


class Measured(NamedTuple):
    """What methods cost on one device, under the same conditions."""

    title: str
    conditions: str
    costs: dict[str, Record]


@item(
    title="Time and memory of every method",
    place="Figure 7; for the Raspberry Pi in the appendix",
    claim="NEO alone adds neither time nor memory to the unadapted model.",
    rivals=RIVALS,
    costs=lambda setting: setting.names,
    once=True,
)
def resources(report: Report) -> None:
    """What does each method cost in time and memory?"""
    for measured in _all_measured(report.evidence):
        report.say_all(*_free(measured), measured.costs)
        report.add(_figure(measured), *_beside(measured))
    report.note(
        SAME,
        "For another device, such as a Raspberry Pi or a Jetson, run there: neotta bench "
        f"{report.setting.subject.model} --methods {','.join(report.setting.names)} --batch-size 8 -o pi.jsonl; then, "
        'with that file here, write merge = ["pi.jsonl"] into the study file.',
    )


def _all_measured(evidence: Evidence) -> Iterator[Measured]:
    here: dict[str, dict[str, Record]] = {}
    for setting in evidence.settings:
        costs = evidence.costs(setting, setting.names)
        if costs:
            here.setdefault(setting.weights, {}).update(costs)
    known = {cost.key for costs in here.values() for cost in costs.values()}
    there: dict[tuple[str, str], dict[str, Record]] = {}
    for cost in evidence.other_costs():
        if cost.key not in known:
            there.setdefault((device(cost), _conditions(cost)), {})[cost.method] = cost
    for costs in [*here.values(), *there.values()]:
        first = next(iter(costs.values()))
        yield Measured(device(first), _conditions(first), {name: costs[name] for name in in_paper_order(costs)})


def _conditions(cost: Record) -> str:
    conditions = cost.conditions
    parts = [str(conditions.get("model") or cost.model)]
    parts += [f"batches of {conditions['batch_size']}"] if "batch_size" in conditions else []
    parts += [some(cost.threads, "thread")] if cost.threads is not None else []
    parts += [str(conditions["dtype"])] if conditions.get("dtype", "float32") != "float32" else []
    return ", ".join(parts)


def _free(measured: Measured) -> tuple[str, Holds]:
    costs, where = measured.costs, f"On {measured.title} ({measured.conditions})"
    if "neo" not in costs or "none" not in costs:
        return f"{where}, NEO and no adaptation are needed to compare, and one is missing.", "unclear"
    plain = costs["none"]
    dearer = {name: faster(plain, cost) or leaner(plain, cost) for name, cost in costs.items()}
    free = [name for name in costs if name != "none" and not dearer[name]]
    factors = {name: slowdown(cost) for name, cost in costs.items()}
    more = mebibytes(costs["neo"]) - mebibytes(plain)
    memory = "" if math.isnan(more) else f" and {more:+.0f} MiB"
    slowest = max((name for name in costs if name not in ("none", "neo")), key=lambda name: factors[name], default=None)
    other = f", the slowest other method ({called(slowest)}) {factors[slowest]:.1f} times" if slowest else ""
    answer = (
        f"{where}, NEO takes {factors['neo']:.2f} times the time of the unadapted model{memory}{other}; without extra "
        f"time and memory: {listed(free)}."
    )
    if other_work := busy(plain):
        return answer + other_work, "unclear"
    return answer, "no" if "neo" not in free else "yes" if free == ["neo"] else "partly"


def _beside(measured: Measured) -> list[Table]:
    others = [name for name in measured.costs if name not in ("neo", "none")]
    if "neo" not in measured.costs or not others:
        return []
    changes = {}
    for what, read in (("time", slowdown), ("memory", mebibytes)):
        mean = statistics.fmean(read(measured.costs[name]) for name in others)
        change = 100 * (read(measured.costs["neo"]) / mean - 1)
        changes[what] = NOTHING if math.isnan(change) else single(change)
    title = f"{measured.title}, {measured.conditions}: NEO against the mean of the others"
    caption = (
        f"Change in percent, against {len(others)} other methods. Published: Raspberry Pi and Jetson, with ViT-Base; "
        "how the others are averaged is not said."
    )
    return [beside(title, PUBLISHED, changes, corner="resource", sign="+", caption=caption)]


def _figure(measured: Measured) -> Figure:
    times = milliseconds(measured.costs)
    peaks = {name: mebibytes(cost) for name, cost in measured.costs.items()}
    digits = max(0, min(3, 1 - math.floor(math.log10(min(times.values())))))  # tells the smallest from others
    rankings = [Ranking({name: single(time) for name, time in times.items()}, "time per image in ms", digits)]
    if not all(math.isnan(peak) for peak in peaks.values()):
        rankings.append(Ranking({name: single(peak) for name, peak in peaks.items()}, "peak memory in MiB", 0))
    about = {"device": measured.title, "conditions": measured.conditions}
    data: Rows = [
        {**about, "method": name, "milliseconds_per_image": times[name], "peak_mebibytes": known(peaks[name])}
        | {field: getattr(cost, field) for field in KEPT}
        for name, cost in measured.costs.items()
    ]
    return Figure(
        file_name("resources", measured.title, measured.conditions),
        f"Time and memory on {measured.title}",
        ranking_chart(*rankings),
        data,
        f"Measured with {measured.conditions}. Time: median over batches of random images, set against the unadapted "
        "model in the same process. Memory: the most that the process of a method takes, model and libraries included; "
        "on a GPU, the most on the device.",
        (7.0, 0.8 + 0.28 * len(times)),
    )


@item(
    title="Accuracy against time and memory",
    place="Figure 2b",
    claim="NEO is ahead of all other methods in accuracy, in time and in memory at once.",
    rivals=RIVALS,
    remarks=(
        "Time and memory are measured with random images, each method with default options in a process of its own. "
        + SAME,
    ),
    runs=lambda setting: setting.online(clean=True),
    costs=lambda setting: setting.names,
)
def tradeoff(report: Report) -> None:
    """Which method gives how much accuracy for how much time and memory?"""
    results = report.results()
    every = report.evidence.costs(report.setting, report.setting.names)
    costs = {label: every[method_of(label)] for label in results.means if method_of(label) in every}
    means, times = results.means, milliseconds(need(costs))
    points = [
        SizedPoint(label, times[label], mean, mebibytes(costs[label]))
        for label, mean in means.items()
        if label in costs
    ]
    conditions = f"{some(len(results.averaged) or 1, 'domain')}, {results.conditions.samples} samples each"
    report.figure(
        "tradeoff",
        "accuracy against time and memory",
        scatter_chart(points, x="time per image in ms", y="mean accuracy in %", sizes="peak memory", unit="MiB"),
        [
            {"method": point.name, **plain(means[point.name])}
            | {"milliseconds_per_image": point.x, "peak_mebibytes": known(point.size)}
            for point in points
        ],
        f"Accuracy: mean over the domains ({conditions}), with its 95 % interval over images and seeds. Time: median "
        f"on {device(next(iter(costs.values())))}, batches of {report.setting.study.batch_size}. The area of "
        f"a point is the peak memory of the process. Up and to the left is better.{results.uneven}",
        height=4.2,
    )
    gaps = report.against("neo")
    report.say(*_ahead_in_all(means, costs, gaps), costs.keys() & gaps.keys())
    unknown = [name for name in results.methods if name not in costs]
    report.note(*(f"{called(name)} has no point: its cost is not known." for name in unknown))


def _ahead_in_all(means: dict[str, Interval], costs: dict[str, Record], gaps: Gaps) -> tuple[str, Holds]:
    others = [label for label in costs if label not in ("neo", "none")]
    if "neo" not in costs or not others:
        return "NEO and another method are needed to compare, and one is missing", "unclear"
    gaps = {label: gaps[label] for label in others if label in gaps}
    said, parts = [f"more accurate: {listed(with_verdict(gaps, 'helps'))}"], [ahead(gaps)]
    for better, word, level in ((faster, "faster", "as fast"), (leaner, "leaner", "as lean")):
        first = [label for label in others if better(costs[label], costs["neo"])]
        tied = [label for label in others if label not in first and not better(costs["neo"], costs[label])]
        said.append(f"{word}: {listed(first)}" + (f" ({level}: {listed(tied)})" if tied else ""))
        parts.append("no" if first or tied else "yes")
    peak = mebibytes(costs["neo"])
    memory = "an unknown amount of memory" if math.isnan(peak) else f"{peak:.0f} MiB"
    unsure = [label for label in others if label not in gaps or verdict(gaps[label]) == CANNOT_TELL]
    chance = f"; it is unclear whether NEO is more accurate than {listed(unsure)}" if unsure else ""
    answer = (
        f"NEO reaches {means['neo'].mean:.1f} % in {milliseconds(costs)['neo']:.3g} ms per image with "
        f"{memory} at the peak; of the other {len(others)} methods, {'; '.join(said)}{chance}"
    )
    if "none" in costs and (other_work := busy(costs["none"])):
        return f"{answer}.{other_work.rstrip('.')}", "unclear"
    return answer, at_once(["unclear" if math.isnan(peak) else parts[2], *parts[:2]])


# ---- what methods declare

FIELDS = {
    "FTTA": "fully_test_time",
    "HPF": "hyperparameter_free",
    "OF": "optimization_free",
    "BI": "batch_size_independent",
    "BF": "backprop_free",
    "FP": "forward_passes",
}
"""The paper's columns, and what a declaration calls them."""

DECLARED = {
    "t3a": (True, False, True, False, True, 1),
    "sar": (True, False, False, False, False, 2),
    "lame": (True, True, False, False, True, 1),
    "tent": (True, False, False, False, False, 1),
    "cotta": (True, False, False, False, False, 35),
    "foa": (False, False, False, False, True, 2),
    "surgeon": (True, False, False, False, False, 3),
    "neo-continual": (True, False, True, False, True, 1),
    "neo": (True, True, True, True, True, 1),
}
"""What the paper prints, in the order of its columns."""
IDEAL = (True,) * 5 + (1,)


@item(
    title="What each method needs",
    place="Table 1",
    claim="Of the methods compared, only NEO does without all of these, and with a single forward pass.",
    remarks=("The declared forward passes are what the tests count with default options.",),
    once=True,
)
def methods(report: Report) -> None:
    """Which methods do without source data, hyperparameters, optimisation, large batches and backpropagation?"""
    shown, data, differing, ideal = dict[str, list[str]](), Rows(), list[str](), list[str]()
    known_methods = registry.methods()
    for name in dict.fromkeys([*DECLARED, *known_methods]):
        kind = known_methods[name]
        declared = {column: getattr(kind.declaration, field) for column, field in FIELDS.items()}
        printed = dict(zip(FIELDS, DECLARED.get(name, tuple(declared.values())), strict=True))
        changed = [column for column in FIELDS if declared[column] != printed[column]]
        paper = ", ".join(f"{column} {_mark(printed[column])}" for column in changed) or "the same"
        shown[kind.title] = [*map(_mark, declared.values()), paper if name in DECLARED else Entry().text]
        known = printed if name in DECLARED else dict.fromkeys(FIELDS)
        data.append({"method": name, **declared, **{f"published_{column}": known[column] for column in FIELDS}})
        differing += [
            f"{kind.title} ({column}: {_mark(declared[column])}, the paper prints {_mark(printed[column])})"
            for column in changed
        ]
        ideal += [kind.title] if name in DECLARED and tuple(declared.values()) == IDEAL else []
    caption = (
        "FTTA: fully test-time, without source data. HPF: free of hyperparameters. OF: free of optimisation. "
        "BI: independent of the batch size. BF: free of backpropagation. FP: forward passes for a batch, at most. "
        "Paper: what it prints where that differs; – for methods that its table does not have."
    )
    table = Table("Methods by what they declare", grid("method", (*FIELDS, "paper"), shown), data, caption)
    report.add(table)
    names = f"only {listed(ideal)}" if ideal else "none"
    but = f", apart from {listed(differing)}" if differing else ""
    report.say_all(
        f"Of the {len(DECLARED)} methods of the paper's table, {names} can do without all five, in one forward "
        f"pass; every entry is as the paper prints it{but}.",
        "yes" if ideal == [known_methods["neo"].title] else "no",
    )


def _mark(value: bool | int) -> str:
    return str(value) if not isinstance(value, bool) else "✓" if value else "✗"
