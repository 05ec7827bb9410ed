"""Records as one tidy frame: a row for each run and domain, columns for its conditions and for what was measured."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neotta.adapters.registry import find, methods
from neotta.errors import NeottaError
from neotta.evaluate.answers import unpack
from neotta.evaluate.estimates import METRICS
from neotta.evaluate.plan import Run
from neotta.evaluate.records import UNKNOWN, Record

if TYPE_CHECKING:
    import pandas

CONDITIONS: dict[str, Callable[[Any], str]] = {
    "model": "model {}".format,
    "weights": lambda value: f"weights {value[:8]}",
    "data": "data {}".format,
    "source_domain": lambda value: f"state from {value}" if value else "",
    "sequence": lambda value: f"{len(value)} domains in a row" if value else "",
    "order": "order {}".format,
    "order_options": lambda value: ", ".join(f"{name}={entry}" for name, entry in json.loads(value).items()),
    "samples": lambda value: "all samples" if value < 0 else f"{value} samples",
    "held_out_samples": lambda value: f"{'all' if value < 0 else value} others scored" if value else "",
    "batch_size": "batch size {}".format,
}
"""The columns that say under which conditions a run took place, and how to say them in words."""
COLUMNS = (
    *("table", "method", "name", "domain", "seed", *CONDITIONS, "order_text"),
    *("failed", "error", "held_out", "seen", "key", *METRICS, "answers"),
)


def frame(records: Iterable[Record], *, answers: bool = True) -> pandas.DataFrame:
    """Make a frame of records of runs.

    Beside the conditions and metrics there are: `table`, a number for each set of conditions, in their order; `method`,
    a label with the options that are varied, and `name`, without them; `failed` and `error`; `held_out`, whether one
    state was scored on samples that it did not adapt to; `seen`, what was scored: only rows with the same are paired;
    `answers`, those of each image, if they are recorded and wanted.
    """
    import pandas

    runs = [record for record in records if record.failed or record.measured]
    names, weights, places = labels(runs), _weights(runs), list(methods())
    ordered = sorted({(label, run.method) for label, run in zip(names, runs, strict=True)},
                     key=lambda each: (_rank(each[1], places), natural(each[0])))  # fmt: skip
    rows = []
    for run, label in zip(runs, names, strict=True):
        about = _conditions(run, weights.get(run.model, UNKNOWN))
        about |= {"method": label, "name": run.method, "seed": run.seed, "key": run.key}
        about |= {"failed": run.failed, "error": run.error, "held_out": run.scores_others, "order_text": run.order_text}
        about["seen"] = (*run.manifests, run.count)
        given = unpack(run) if answers and not run.failed else None
        scores = {name: {} for name in run.domains or [run.domain]} if run.failed else run.by_domain
        for domain, measured in scores.items():
            mine = {name: measured.get(name) for name in METRICS}
            rows.append({**about, "domain": domain, **mine, "answers": given and given.of_domain(domain)})
    keys = [tuple(row[name] for name in CONDITIONS) for row in rows]
    numbers = {key: number for number, key in enumerate(sorted(set(keys), key=_place))}
    for row, key in zip(rows, keys, strict=True):
        row["table"] = numbers[key]
    made = pandas.DataFrame(rows, columns=list(COLUMNS))
    categories = pandas.CategoricalDtype(list(dict.fromkeys(label for label, _ in ordered)))
    return made.astype({**dict.fromkeys(METRICS, float), "method": categories})


def _conditions(run: Record, weights: str) -> dict[str, Any]:
    return {
        "model": run.model,
        "weights": run.weights or weights,
        "data": run.data,
        "source_domain": run.source_domain or "",
        "sequence": tuple(run.domains or ()) if len(run.domains or ()) > 1 else (),
        "order": run.order,
        "order_options": json.dumps(run.order_options or {}, sort_keys=True),
        "samples": run.samples,
        "held_out_samples": run.held_out_samples if run.scores_others else 0,
        "batch_size": run.batch_size,
    }


def _place(conditions: tuple[Any, ...]) -> tuple[Any, ...]:  # small numbers first, "all samples" last
    return tuple(
        math.inf if name in ("samples", "held_out_samples") and value < 0 else value
        for name, value in zip(CONDITIONS, conditions, strict=True)
    )


def _weights(runs: Sequence[Record]) -> dict[str, str]:  # a run that failed early does not know its own
    weightings: dict[str, set[str]] = {}
    for run in runs:
        if run.weights:
            weightings.setdefault(run.model, set()).add(run.weights)
    return {model: known.pop() for model, known in weightings.items() if len(known) == 1}


# ---- labels of methods


_Variant = tuple[str, tuple[tuple[str, str], ...]]
"""A method with all its options, defaults included."""


def labels(runs: Sequence[Record | Run]) -> list[str]:
    """Name the method of each run, with the options that differ from the default or that are varied."""
    variants: list[_Variant] = []
    for run in runs:
        options = {name: str(value) for name, value in (run.options or {}).items()}
        full = {**(defaults_of(run.method, run.preset or "paper") or {}), **options}
        variants.append((run.method, tuple(sorted(full.items()))))
    titles = {run.method: run.title or run.method for run in runs}
    names = {method: title if list(titles.values()).count(title) == 1 else method for method, title in titles.items()}
    presets: dict[_Variant, str] = {}
    for variant, run in zip(variants, runs, strict=True):
        presets.setdefault(variant, run.preset or "paper")
    named = {variant: _label(variant, names[variant[0]], preset, presets) for variant, preset in presets.items()}
    return [named[variant] for variant in variants]


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A key to sort by in which 0.05 comes before 0.1, and 5 before 10."""
    words = text.replace("=", " ").replace("/", " ").split()
    return tuple((0, float(word), "") if _NUMBER.fullmatch(word) else (1, 0.0, word) for word in words)


def _label(variant: _Variant, name: str, preset: str, presets: Mapping[_Variant, str]) -> str:
    (method, options), default = variant, defaults_of(variant[0], preset)
    if preset != "paper" and defaults_of(method, "paper") == dict(options):
        preset, default = "paper", dict(options)
    siblings = [dict(theirs) for (other, theirs), its in presets.items() if (other, its) == (method, preset)]
    shown = [
        f"{option}={value}"
        for option, value in options
        if (default is not None and default.get(option) != value)
        or any(other.get(option) != value for other in siblings)
    ]
    others = {its for (other, _), its in presets.items() if other == method}
    papers = preset == "paper" or (preset.startswith("paper-") and others == {preset})  # chosen by the data
    return " ".join([name if papers else f"{name}@{preset}", *shown])


def defaults_of(method: str, preset: str) -> dict[str, str] | None:
    """The options of a method as records write them, or None for a method that is not known here."""
    if "py:" in method:  # comparing records never runs code that they name
        return None
    try:
        return _known_defaults(method, preset)
    except NeottaError:  # records may come from somebody who has more methods
        return None


@functools.cache
def _known_defaults(method: str, preset: str) -> dict[str, str]:
    options = find(method).Options
    values = {name: field.get_default(call_default_factory=True) for name, field in options.model_fields.items()}
    return {name: str(value) for name, value in {**values, **options.presets.get(preset, {})}.items()}


def _rank(method: str, places: list[str]) -> tuple[int, int, str]:
    first = method.split("+")[0]
    return (places.index(first) if first in places else len(places), method.count("+"), method)
