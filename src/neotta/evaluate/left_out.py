"""Methods that cannot run on a model or data: they are left out of a plan with the reason, and nothing else stops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neotta.errors import ModelError
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record, content_key
from neotta.evaluate.workbench import Workbench


def suited(bench: Workbench, plan: Plan) -> tuple[Plan, dict[str, str]]:
    """The plan without methods that cannot run, and the reasons by method.

    Raises:
        ModelError: None of its methods can run.
    """
    reasons = [bench.why_not(method) for method in plan.methods]
    kept = [method for method, reason in zip(plan.methods, reasons, strict=True) if not reason]
    if not kept:
        raise ModelError("; ".join(dict.fromkeys(reasons)))
    left_out = {method.method: reason for method, reason in zip(plan.methods, reasons, strict=True) if reason}
    return plan.model_copy(update={"methods": kept}), left_out


def left_out_records(plan: Plan, left_out: Mapping[str, str]) -> list[Record]:
    """What is recorded of methods that were left out, so that tables can say so."""
    about = {"model": plan.model, "data": plan.data}
    found = [{**about, "method": method, "left_out": reason} for method, reason in left_out.items()]
    return [{**record, "key": content_key(record)} for record in found]


def left_out_lines(records: Iterable[Record]) -> list[str]:
    """One line for each method that was left out, and has no results on the same model and data."""
    records = list(records)
    measured = {_place(record) for record in records if "metrics" in record}
    lines = [_line(record) for record in records if "left_out" in record and _place(record) not in measured]
    return list(dict.fromkeys(lines))


def _place(record: Record) -> tuple[str, ...]:
    return tuple(str(record.get(name)) for name in ("model", "data", "method"))


def _line(record: Record) -> str:
    return f"{record['method']} was left out: {record['left_out']}."
