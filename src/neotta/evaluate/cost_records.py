"""Costs as records: what a method costs on which machine, to be kept, carried to another one, and compared."""

from __future__ import annotations

import dataclasses

from neotta.evaluate.costs import Cost
from neotta.evaluate.machine import surroundings
from neotta.evaluate.records import Record, content_key


def cost_record(cost: Cost) -> Record:
    """A cost as a record of the kind `"cost"`, with the machine that it was measured on, which is this one.

    Measured again under the same conditions on the same machine, it has the same key: the later record counts.
    """
    about, figures = surroundings(), dataclasses.asdict(cost)
    fixed = {name: figures[name] for name in ("method", "preset", "options", "conditions", "threads", "image_size")}
    key = content_key({"cost": fixed, "machine": about["machine"]})
    named = {"key": key, "kind": "cost", "status": "ok", "model": cost.conditions.model}
    return {**named, **figures, "slowdown": cost.slowdown, **about}
