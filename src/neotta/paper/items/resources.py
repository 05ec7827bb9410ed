"""Time and memory of the methods: on this machine, and on any other whose measurements are merged in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from neotta.evaluate.records import Record
from neotta.paper import costing
from neotta.paper.evidence import Evidence
from neotta.paper.finding import Holds
from neotta.paper.item import Case, item
from neotta.paper.study import METHODS
from neotta.paper.tables import NOTHING, Rows, beside, single
from neotta.paper.words import file_name, listed, some
from neotta.report.charts import Ranking, ranking_chart
from neotta.report.figures import Figure
from neotta.report.grids import Table

PUBLISHED = {"time": -63.0, "memory": -9.0}
"""Change in percent against the other methods, on a Raspberry Pi 4B and a Jetson Orin Nano."""
KEPT = ("seconds_per_image", "plain_seconds_per_image", "forward_passes", "backward_passes", "peak_memory")


class Measured(NamedTuple):
    """What methods cost on one device, under the same conditions."""

    title: str
    conditions: str
    costs: dict[str, Record]


@item(
    order=13,
    name="resources",
    title="Time and memory of every method",
    place="Figure 7; for the Raspberry Pi in the appendix",
    question="What does each method cost in time and memory?",
    claim="NEO alone adds neither time nor memory to the unadapted model.",
    costs=lambda setting: setting.names,
    once=True,
)
def show(case: Case) -> None:
    """Draw the costs on each device, and put NEO beside the others."""
    for measured in _all_measured(case.evidence):
        case.finding.say(*_judge(measured))
        case.add(_figure(measured), *_beside(measured))
    case.note(
        costing.SAME,
        "For another device, such as a Raspberry Pi or a Jetson, run there: neotta bench --model "
        f"{case.setting.subject.model} --methods {','.join(case.setting.names)} --batch-size 8 -o pi.jsonl; then, with "
        f"that file here: neotta paper {case.item.name} --merge pi.jsonl",
    )


def _all_measured(evidence: Evidence) -> Iterator[Measured]:
    """The costs of this machine, each model once, then those of the others."""
    here: dict[str, dict[str, Record]] = {}
    for setting in evidence.settings:
        costs = evidence.costs(setting, setting.names)
        if costs:
            here.setdefault(setting.weights, {}).update(costs)
    known = {cost["key"] for costs in here.values() for cost in costs.values()}
    there: dict[tuple[str, str], dict[str, Record]] = {}
    for cost in evidence.other_costs():
        if cost["key"] not in known:
            there.setdefault((costing.device(cost), _conditions(cost)), {})[cost["method"]] = cost
    for costs in [*here.values(), *there.values()]:
        first = next(iter(costs.values()))
        ordered = sorted(costs, key=lambda name: METHODS.index(name) if name in METHODS else len(METHODS))
        yield Measured(costing.device(first), _conditions(first), {name: costs[name] for name in ordered})


def _conditions(cost: Record) -> str:
    """Model, batch size, threads and, if unusual, type: what has to be the same for costs to compare."""
    given: Mapping[str, object] = cost.get("conditions") or {}
    parts = [str(given.get("model") or cost.get("model") or "an unknown model")]
    parts += [f"batches of {given['batch_size']}"] if "batch_size" in given else []
    parts += [some(cost["threads"], "thread")] if "threads" in cost else []
    parts += [str(given["dtype"])] if given.get("dtype", "float32") != "float32" else []
    return ", ".join(parts)


def _judge(measured: Measured) -> tuple[str, Holds]:
    """One sentence on NEO beside the unadapted model, and whether it alone costs nothing."""
    costs, where = measured.costs, f"On {measured.title} ({measured.conditions})"
    if "neo" not in costs or "none" not in costs:
        return f"{where}, NEO and no adaptation are needed to compare, and one is missing.", "unclear"
    plain = costs["none"]
    dearer = {name: costing.faster(plain, cost) or costing.leaner(plain, cost) for name, cost in costs.items()}
    free = [name for name in costs if name != "none" and not dearer[name]]
    factors = {name: costing.slowdown(cost) for name, cost in costs.items()}
    more = costing.mebibytes(costs["neo"]) - costing.mebibytes(plain)
    memory = "" if math.isnan(more) else f" and {more:+.0f} MiB"
    slowest = max((name for name in costs if name not in ("none", "neo")), key=lambda name: factors[name], default=None)
    other = f", the slowest other method ({slowest}) {factors[slowest]:.1f} times" if slowest else ""
    answer = (
        f"{where}, NEO takes {factors['neo']:.2f} times the time of the unadapted model{memory}{other}; without extra "
        f"time and memory: {listed(free)}."
    )
    if busy := costing.busy(plain):
        return answer + busy, "unclear"
    return answer, "no" if "neo" not in free else "yes" if free == ["neo"] else "partly"


def _beside(measured: Measured) -> list[Table]:
    """By how much NEO is below the mean of the other methods, in the paper and here."""
    others = [name for name in measured.costs if name not in ("neo", "none")]
    if "neo" not in measured.costs or not others:
        return []
    found = {}
    for what, read in (("time", costing.slowdown), ("memory", costing.mebibytes)):
        mean = statistics.fmean(read(measured.costs[name]) for name in others)
        change = 100 * (read(measured.costs["neo"]) / mean - 1)
        found[what] = NOTHING if math.isnan(change) else single(change)
    title = f"{measured.title}, {measured.conditions}: NEO against the mean of the others"
    caption = (
        f"Change in percent, against {len(others)} other methods. Published: Raspberry Pi and Jetson, with ViT-Base; "
        "how the others are averaged is not said."
    )
    return [beside(title, PUBLISHED, found, corner="resource", sign="+", caption=caption)]


def _figure(measured: Measured) -> Figure:
    times = costing.milliseconds(measured.costs)
    peaks = {name: costing.mebibytes(cost) for name, cost in measured.costs.items()}
    digits = max(0, min(3, 1 - math.floor(math.log10(min(times.values())))))  # tells the smallest from others
    rankings = [Ranking({name: (time, math.nan) for name, time in times.items()}, "time per image in ms", digits)]
    if not all(math.isnan(peak) for peak in peaks.values()):
        rankings.append(Ranking({name: (peak, math.nan) for name, peak in peaks.items()}, "peak memory in MiB", 0))
    about = {"device": measured.title, "conditions": measured.conditions}
    data: Rows = [
        {**about, "method": name} | {field: cost.get(field) for field in KEPT} for name, cost in measured.costs.items()
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
