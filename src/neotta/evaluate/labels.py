"""Labels of what is compared: methods by the options that differ, blocks of runs by what was varied."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from neotta.adapters.registry import find, methods
from neotta.errors import NeottaError
from neotta.evaluate.plan import Run
from neotta.evaluate.records import UNKNOWN, Record


class Variant(NamedTuple):
    """A method with all its options, defaults included."""

    method: str
    options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, run: Record | Run) -> Variant:
        options = {name: str(value) for name, value in (run.options or {}).items()}
        full = {**(defaults_of(run.method, run.preset or "paper") or {}), **options}
        return cls(run.method, tuple(sorted(full.items())))


class Conditions(NamedTuple):
    """What the runs of one block share."""

    model: str
    weights: str
    data: str
    source_domain: str
    sequence: tuple[str, ...]
    order: str
    order_options: str
    samples: int
    held_out_samples: int | None
    batch_size: int

    @classmethod
    def of(cls, record: Record, weights: str = UNKNOWN) -> Conditions:
        """Read them off a record; `weights` is for records of runs that failed before theirs were known."""
        return cls(
            model=record.model,
            weights=record.weights or weights,
            data=record.data,
            source_domain=record.source_domain or "",
            sequence=tuple(record.domains or ()) if len(record.domains or ()) > 1 else (),
            order=record.order,
            order_options=json.dumps(record.order_options or {}, sort_keys=True),
            samples=record.samples,
            held_out_samples=record.held_out_samples if record.scores_others else None,
            batch_size=record.batch_size,
        )

    def place(self) -> tuple[Any, ...]:
        """A key to sort by: small numbers first, "all samples" last."""
        numbers = {"samples", "held_out_samples"}
        return tuple(
            float("inf") if name in numbers and (value is None or value < 0) else value
            for name, value in self._asdict().items()
        )

    def words(self, names: Iterable[str]) -> str:
        """Some of them in words: `64 samples, batch size 1`."""
        chosen = {name: value for name, value in self._asdict().items() if name in set(names)}
        return ", ".join(filter(None, (_WORDS.get(name, str)(value) for name, value in chosen.items())))


_WORDS: dict[str, Callable[[Any], str]] = {
    "model": "model {}".format,
    "weights": lambda value: f"weights {value[:8]}",
    "data": "data {}".format,
    "source_domain": lambda value: f"state from {value}" if value else "",
    "sequence": lambda value: f"{len(value)} domains in a row" if value else "",
    "order": "order {}".format,
    "order_options": lambda value: ", ".join(f"{name}={entry}" for name, entry in json.loads(value).items()),
    "samples": lambda value: "all samples" if value < 0 else f"{value} samples",
    "held_out_samples": lambda value: "" if value is None else f"{'all' if value < 0 else value} others scored",
    "batch_size": "batch size {}".format,
}


def differing(several: Sequence[Conditions]) -> list[str]:
    names = [name for name in Conditions._fields if len({getattr(each, name) for each in several}) > 1]
    if "weights" in names and len({each.model for each in several}) == len({each[:2] for each in several}):
        names.remove("weights")  # the model says it already
    return names


def labels(runs: Iterable[Record] | Iterable[Run]) -> dict[Variant, str]:
    """Name every variant by its method and the options that differ from the default or that are varied."""
    presets: dict[Variant, str] = {}
    titles: dict[str, str] = {}
    for run in runs:
        presets.setdefault(Variant.of(run), run.preset or "paper")
        titles[run.method] = run.title or run.method
    names = {method: title if list(titles.values()).count(title) == 1 else method for method, title in titles.items()}
    named = {variant: _label(variant, names[variant.method], preset, presets) for variant, preset in presets.items()}
    places = list(methods())
    return dict(sorted(named.items(), key=lambda entry: (_place(entry[0].method, places), natural(entry[1]))))


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """A key to sort by in which 0.05 comes before 0.1, and 5 before 10."""
    words = text.replace("=", " ").replace("/", " ").split()
    return tuple((0, float(word), "") if _is_number(word) else (1, 0.0, word) for word in words)


def _label(variant: Variant, name: str, preset: str, presets: Mapping[Variant, str]) -> str:
    default = defaults_of(variant.method, preset)
    if preset != "paper" and defaults_of(variant.method, "paper") == dict(variant.options):
        preset, default = "paper", dict(variant.options)
    siblings = [
        dict(other.options) for other, its in presets.items() if (other.method, its) == (variant.method, preset)
    ]
    shown = [
        f"{option}={value}"
        for option, value in variant.options
        if (default is not None and default.get(option) != value)
        or any(other.get(option) != value for other in siblings)
    ]
    others = {its for other, its in presets.items() if other.method == variant.method}
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


def _place(method: str, places: list[str]) -> tuple[int, int, str]:
    first = method.split("+")[0]
    return (places.index(first) if first in places else len(places), method.count("+"), method)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
