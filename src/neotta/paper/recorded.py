"""A study from its records alone: without the model, its packages or the images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from neotta.errors import DataError
from neotta.evaluate.domains import CLEAN, corruption
from neotta.evaluate.frame import defaults_of
from neotta.evaluate.plan import MethodPlan, Plan, Run
from neotta.evaluate.records import Record
from neotta.models.preprocess import Preprocess
from neotta.paper.study import Setting, Study, Subject


def setting_of(study: Study, subject: Subject, records: Iterable[Record]) -> Setting:
    """What can be asked of a subject whose records these are among.

    Raises:
        DataError: There is no record of its model on its data.
    """
    mine = [each for each in records if each.measured and (each.model, each.data) == (subject.model, subject.data)]
    sizes: dict[str, int] = {}
    for each in mine:  # of orders alone, without facts of the data, as much as was seen at once
        seen = dict.fromkeys(each.domains or (), each.count or 0) if len(each.domains or ()) == 1 else {}
        sizes |= {name: max(size, sizes.get(name, 0)) for name, size in (each.sizes or seen).items()}
    if not sizes:
        raise DataError(f"there is no record of {subject.model!r} on {subject.data!r}: omit --recorded to measure")
    subject = subject.complete(list(sizes), clean=CLEAN in sizes)
    kept = [name for name in subject.corruptions or [] if _named(name, subject.severity) in sizes]
    domains = subject.domains or ([] if kept else [name for name in sizes if name != CLEAN])
    subject = subject.model_copy(update={"corruptions": kept, "domains": domains})
    shifted = tuple(_named(name, subject.severity) for name in kept) or tuple(subject.domains)
    presets = {each.method: each.preset or "paper" for each in mine}
    first = next((each for each in mine if shifted and shifted[0] in (each.sizes or {})), mine[0])
    used = next((each.preprocess for each in mine if each.preprocess), None)
    return Setting(
        study,
        subject,
        shifted,
        images=min((sizes[name] for name in shifted if name in sizes), default=max(sizes.values())),
        classes=first.classes or 0,
        fewest=min((first.fewest or {"": 0}).values(), default=0),
        clean=bool(kept) and CLEAN in sizes,
        weights=first.weights or "",
        preprocess=Preprocess.from_dict(used) if used else None,
        preset=lambda method: presets.get(method, "paper"),
        why_not=lambda method: "" if MethodPlan.parse(method).method in presets else "it is not recorded",
    )


def answering(plan: Plan, setting: Setting, records: Sequence[Record]) -> tuple[list[str], int]:
    """The keys of the records of a plan's runs, and how many of its runs are not recorded."""
    known: dict[tuple[object, ...], list[Record]] = {}
    for each in records:
        if each.status == "ok" and (each.model, each.data) == (plan.model, plan.data):
            known.setdefault(_asked(each), []).append(each)
    names = [_named(name, setting.subject.severity) for name in plan.corruptions] or list(setting.domains)
    keys, missing = list[str](), 0
    for run in plan.runs(names):
        found = [each for each in known.get(_asked(run), []) if _same_options(each, run)]
        keys += [found[-1].key] if found else []
        missing += not found
    return keys, missing


def _named(name: str, severity: int) -> str:
    (kind,), level = corruption(name)
    return kind if kind == CLEAN else f"{kind}/{level or severity}"


def _asked(run: Run | Record) -> tuple[object, ...]:
    return (
        run.method,
        tuple(run.domains or ()),
        run.source_domain or "",
        run.order,
        repr(sorted((run.order_options or {}).items())),
        run.samples,
        run.held_out_samples,
        run.seed,
        run.batch_size,
    )


def _same_options(record: Record, run: Run) -> bool:
    preset, options = record.preset or "paper", record.options or {}
    if preset != run.preset and not preset.startswith(f"{run.preset}-"):  # chosen by the data
        return False
    wanted = {**(defaults_of(run.method, preset) or options), **run.options}
    return all(str(options.get(name, value)) == str(value) for name, value in wanted.items())
