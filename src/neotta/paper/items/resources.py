"""Time and memory of the methods: on this machine, and on any other whose measurements are merged in."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.paper import comparing, costing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Rows, Table
from neotta.paper.study import METHODS, Setting
from neotta.report.figures import Figure, ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PUBLISHED = {"time": -63.0, "memory": -9.0}
"""Change in percent against the other methods, on a Raspberry Pi 4B and a Jetson Orin Nano."""


class Measured(NamedTuple):
    """What methods cost on one device, under the same conditions."""

    title: str
    conditions: str
    costs: dict[str, Record]


class Resources(Item):
    """Figure 7, and its version for the Raspberry Pi in the appendix."""

    name = "figure-resources"
    title = "Time and memory of every method"
    place = "Figure 7; for the Raspberry Pi in the appendix"
    question = "What does each method cost in time and memory?"
    claim = "NEO alone adds neither time nor memory to the unadapted model."

    def costs(self, setting: Setting) -> list[str]:
        """Those of all methods."""
        return setting.names

    def find(self, evidence: Evidence) -> Finding:
        """Draw the costs on each device, and put NEO beside the others."""
        finding = Finding()
        for measured in _all_measured(evidence):
            finding.say(*_judge(measured))
            finding.parts.append(_figure(measured))
            finding.parts += _beside(measured)
        finding.notes = [
            f"Times within a factor of {costing.SAME_TIME} count as the same, and so do peaks within a factor of "
            f"{costing.SAME_MEMORY} or {costing.NOISE // costing.MIB} MiB.",
            _how_to_add(evidence),
        ]
        return finding


def _how_to_add(evidence: Evidence) -> str:
    first = evidence.settings[0]
    return (
        "For another device, such as a Raspberry Pi or a Jetson, run there: "
        f"neotta bench --model {first.subject.model} --methods {','.join(first.names)} --batch-size 8 -o pi.jsonl; "
        "then, with that file here: neotta paper figure-resources --merge pi.jsonl"
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
    parts += [f"{cost['threads']} {'thread' if cost['threads'] == 1 else 'threads'}"] if "threads" in cost else []
    parts += [str(given["dtype"])] if given.get("dtype", "float32") != "float32" else []
    return ", ".join(parts)


def _judge(measured: Measured) -> tuple[str, Holds]:
    """One sentence on NEO beside the unadapted model, and whether it alone costs nothing."""
    costs, where = measured.costs, f"On {measured.title} ({measured.conditions})"
    if "neo" not in costs or "none" not in costs:
        return f"{where}, NEO and no adaptation are needed to compare, and one is missing.", "unclear"
    free = [name for name in costs if name != "none" and not _dearer(costs[name], costs["none"])]
    factors = {name: costing.slowdown(cost) for name, cost in costs.items()}
    more = costing.mebibytes(costs["neo"]) - costing.mebibytes(costs["none"])
    memory = "" if math.isnan(more) else f" and {more:+.0f} MiB"
    slowest = max((name for name in costs if name not in ("none", "neo")), key=lambda name: factors[name], default=None)
    other = f", the slowest other method ({slowest}) {factors[slowest]:.1f} times" if slowest else ""
    answer = (
        f"{where}, NEO takes {factors['neo']:.2f} times the time of the unadapted model{memory}{other}; without extra "
        f"time and memory: {comparing.listed(free)}."
    )
    if busy := costing.busy(costs["none"]):
        return answer + busy, "unclear"
    return answer, "no" if "neo" not in free else "yes" if free == ["neo"] else "partly"


def _dearer(cost: Record, plain: Record) -> bool:
    """Whether a method clearly takes more time or memory."""
    return costing.faster(plain, cost) or costing.leaner(plain, cost)


def _beside(measured: Measured) -> list[Table]:
    """By how much NEO is below the mean of the other methods, in the paper and here."""
    others = [name for name in measured.costs if name not in ("neo", "none")]
    if "neo" not in measured.costs or not others:
        return []
    found = {}
    for what, read in (("time", costing.slowdown), ("memory", costing.mebibytes)):
        mean = math.fsum(read(measured.costs[name]) for name in others) / len(others)
        change = 100 * (read(measured.costs["neo"]) / mean - 1)
        found[what] = comparing.NOTHING if math.isnan(change) else Interval(change, math.nan, 1)
    return [
        comparing.beside(
            f"{measured.title}, {measured.conditions}: NEO against the mean of the others",
            PUBLISHED,
            found,
            corner="resource",
            sign="+",
            caption=f"Change in percent, against {len(others)} other methods. Published: Raspberry Pi and Jetson, with "
            "ViT-Base; how the others are averaged is not said.",
        )
    ]


def _figure(measured: Measured) -> Figure:
    names = list(measured.costs)
    times = costing.milliseconds(measured.costs)
    peaks = {name: costing.mebibytes(measured.costs[name]) for name in names}
    return Figure(
        comparing.file_name("resources", measured.title, measured.conditions),
        f"Time and memory on {measured.title}",
        functools.partial(_draw, times, peaks),
        _rows(measured),
        f"Measured with {measured.conditions}. Time: median over batches of random images, set against the unadapted "
        "model in the same process. Memory: the most that the process of a method takes, model and libraries included; "
        "on a GPU, the most on the device.",
        (7.0, 0.8 + 0.28 * len(names)),
    )


def _draw(times: Mapping[str, float], peaks: Mapping[str, float], canvas: Canvas) -> None:
    known = not all(math.isnan(peak) for peak in peaks.values())
    axes = canvas.subplots(1, 2 if known else 1, sharey=True, squeeze=False)[0]
    ranking(axes[0], times, {}, digits=_digits(list(times.values())))
    axes[0].set_xlabel("time per image in ms")
    if known:
        ranking(axes[1], peaks, {}, digits=0)
        axes[1].set_xlabel("peak memory in MiB")


def _digits(values: Sequence[float]) -> int:
    """So many that the smallest value is told from others."""
    return max(0, min(3, 1 - math.floor(math.log10(min(values)))))


def _rows(measured: Measured) -> Rows:
    kept = ("seconds_per_image", "plain_seconds_per_image", "forward_passes", "backward_passes", "peak_memory")
    return [
        {"device": measured.title, "conditions": measured.conditions, "method": name}
        | {field: cost.get(field) for field in kept}
        for name, cost in measured.costs.items()
    ]
