"""Choosing the options of methods on domains that are not reported.

A plan with `tune` is carried out in two parts. First every combination of option values is run on the domains to tune
on, with records in a file of their own; then each method is run on the reported domains with the options that were best
there. What was chosen, among what and on what is part of every record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from neotta.data.corruptions import EXTRA_CORRUPTIONS
from neotta.errors import DataError, OptionError
from neotta.evaluate.bench import Bench
from neotta.evaluate.domains import corruption
from neotta.evaluate.key import run_key
from neotta.evaluate.plan import MethodPlan, Plan
from neotta.evaluate.records import Record, Records
from neotta.evaluate.sweep import sweep

EXTRA = "extra"
"""The four corruptions that are meant for choosing options."""


def tune(bench: Bench, plan: Plan, path: Path | None = None, **how: Any) -> Plan:
    trial = trial_plan(plan, bench.data.source.domains)
    here = bench if bench.suits(trial) else bench.other(trial)
    records = Records(None if path is None else path.with_name(f"{path.stem}.tuning.jsonl"))
    sweep(here, trial, records, **how)
    by_key = {record.key: record for record in records.read()}
    on = list(here.data.names(trial.corruptions, trial.severities))
    methods = [method if not _varied(method) else _best(here, method, trial, by_key, on) for method in plan.methods]
    return plan.model_copy(update={"methods": methods})


def trial_plan(plan: Plan, available: Sequence[str] = ()) -> Plan:
    """The runs that options are chosen by."""
    varied = [method for method in plan.methods if _varied(method)]
    if not varied:
        raise OptionError(
            "there is nothing to tune: give an option several values, as in --methods 'neo-continual:alpha=0.05|0.1'"
        )
    names, changes = _tuned_on(plan), {"methods": varied, "tune": []}
    if plan.corruptions:
        reported = {kind for each in plan.corruptions for kind in corruption(each)[0]}
        if both := [kind for name in names for kind in corruption(name)[0] if kind in reported]:
            raise _overlap(both)
        levels = {level for each in plan.corruptions if (level := corruption(each)[1]) is not None}
        severities = sorted(levels) or plan.severities
        return plan.model_copy(update={**changes, "corruptions": names, "severities": severities})
    for pattern in names:
        if both := sorted(name for name in set(available) if _same(name, pattern)):
            raise _overlap(both)
    return plan.model_copy(update={**changes, "domains": names})


def reported_plan(plan: Plan, available: Sequence[str]) -> Plan:
    """The plan without the domains that are tuned on, if it does not say which domains are reported."""
    if not plan.tune or plan.corruptions or plan.domains:
        return plan
    patterns = _tuned_on(plan)
    rest = [name for name in available if not any(_same(name, pattern) for pattern in patterns)]
    if not rest:
        raise OptionError(f"all domains of the data are tuned on ({', '.join(plan.tune)}): none is left to report")
    return plan.model_copy(update={"domains": rest})


def _tuned_on(plan: Plan) -> list[str]:
    return [name for each in plan.tune for name in (EXTRA_CORRUPTIONS if each == EXTRA else [each])]


def _overlap(both: Sequence[str]) -> OptionError:
    return OptionError(
        f"{', '.join(both)} would be tuned on and reported, too: options chosen on what is reported flatter it. "
        "Tune on 'extra' or on other domains"
    )


def _same(name: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    kind, _, level = name.rpartition("/")
    alike = bool(kind) and level.isdecimal() and kind == pattern.rpartition("/")[0]
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}/") or alike


def _varied(method: MethodPlan) -> bool:
    return any(isinstance(value, list) and len(value) > 1 for value in method.options.values())


def _best(bench: Bench, method: MethodPlan, trial: Plan, by_key: Mapping[str, Record], on: Sequence[str]) -> MethodPlan:
    scores = []
    for options in method.grid():
        one = method.model_copy(update={"options": options})
        records = [by_key.get(run_key(bench, run)) for run in bench.runs(trial.model_copy(update={"methods": [one]}))]
        measured = [None if record is None else record.metrics.get("top1") for record in records]
        accuracies = [math.nan if top1 is None else top1 for top1 in measured]
        scores.append((fmean(accuracies), options))
    known = [each for each in scores if not math.isnan(each[0])]
    if not known:
        raise DataError(f"{method.method} cannot be tuned: its runs failed, or the images have no labels")
    accuracy, options = max(known, key=lambda each: each[0])  # the first of equals
    tuned = {
        "on": list(on),
        "by": "top1",
        "among": {name: value for name, value in method.options.items() if isinstance(value, list)},
        "tried": [[options, None if math.isnan(value) else round(value, 3)] for value, options in scores],
        "accuracy": round(accuracy, 3),
        "seeds": trial.seeds,
        "samples": trial.samples,
    }
    return method.model_copy(update={"options": options, "tuned": json.loads(json.dumps(tuned))})


def tuning_lines(records: Iterable[Record]) -> list[str]:
    """One line for each method whose options were chosen: what, among what, and on what."""
    lines: dict[str, None] = {}
    for record in records:
        if tuned := record.tuned:
            chosen = ", ".join(f"{name}={(record.options or {}).get(name)}" for name in tuned.among)
            among = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in tuned.among.items())
            lines[
                f"{record.method} was tuned: {chosen} was the best of {len(tuned.tried)} settings ({among}) on "
                f"{', '.join(tuned.on)}, none of which is reported (mean accuracy {tuned.accuracy:.1f} % there)."
            ] = None
    return list(lines)
