"""What several items say of time and memory. Both are noisy, so small differences do not count."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from neotta.evaluate.records import Record

MIB = 2**20
SAME_TIME = 1.1
"""Times that differ by less than this factor are the same."""
SAME_MEMORY, NOISE = 1.05, 8 * MIB
"""Peaks that differ by less than this factor, or by less than so many bytes, are the same."""

SAME = (
    f"Times within a factor of {SAME_TIME} count as the same, and so do peaks within a factor of {SAME_MEMORY} or "
    f"{NOISE // MIB} MiB."
)

Better = Callable[[Record, Record], bool]


def slowdown(cost: Record) -> float:
    """Time as a multiple of the unadapted model's, measured in the same process: that is what can be compared."""
    return float(cost["seconds_per_image"]) / float(cost["plain_seconds_per_image"])


def milliseconds(costs: Mapping[str, Record]) -> dict[str, float]:
    """Time for an image by method, as if the unadapted model had taken the same time beside each of them."""
    if not costs:
        return {}
    plain = statistics.median(float(cost["plain_seconds_per_image"]) for cost in costs.values())
    return {name: 1e3 * plain * slowdown(cost) for name, cost in costs.items()}


def mebibytes(cost: Record) -> float:
    """Peak memory; NaN where the system does not tell."""
    peak = cost.get("peak_memory")
    return math.nan if peak is None else peak / MIB


def faster(one: Record, other: Record) -> bool:
    """Whether a method is clearly faster than another."""
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


def ahead(costs: Mapping[str, Record], method: str, better: Better) -> list[str]:
    """The other methods that are better than this one; the unadapted model does not count."""
    return [name for name, cost in costs.items() if name not in (method, "none") and better(cost, costs[method])]


def memory_words(cost: Record) -> str:
    """`412 MiB`."""
    found = mebibytes(cost)
    return "an unknown amount of memory" if math.isnan(found) else f"{found:.0f} MiB"


def device(cost: Record) -> str:
    """What a cost was measured on."""
    machine: Mapping[str, Any] = cost.get("machine") or {}
    conditions: Mapping[str, Any] = cost.get("conditions") or {}
    gpu = machine.get("gpu") if not str(conditions.get("device", "cpu")).startswith("cpu") else None
    return str(gpu or machine.get("processor") or "an unknown device")
