"""The command that measures again what records say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from neotta._words import printable
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.labels import defaults_of
from neotta.evaluate.plan import SCORES_OTHERS
from neotta.evaluate.records import Record


def reproducing_command(records: Sequence[Record], output: str = "check.jsonl") -> str:
    """A `neotta run` that repeats the runs of one method behind records of several domains and seeds.

    Records of older versions do not say how model and data were opened; what can be read off their names is taken.

    Args:
        records: Of the same method, model and data; not empty.
        output: The file that the command adds its results to.
    """
    first = records[0]
    opened = first.get("opened") or {}
    seeds = list(dict.fromkeys(int(record["seed"]) for record in records))
    found = [
        *("neotta", "run", "--model", first["model"], *_model(opened.get("model_options") or {})),
        *("--data", first["data"], *_domains(records, opened)),
        *("--methods", _method(first), "--protocol", first.get("protocol", "online")),
        *("--order", first.get("stream", "iid")),
    ]
    for name, value in (first.get("stream_options") or {}).items():
        found += ["--order-option", f"{name}={_value(value)}"]
    found += ["--samples", first["samples"], "--seeds", ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")]
    if first.get("protocol") in SCORES_OTHERS and int(first.get("evaluate", -1)) >= 0:
        found += ["--held-out-samples", first["evaluate"]]
    found += ["--batch-sizes", first["batch_size"], "-o", output]
    return shlex.join(printable(str(word)) for word in found)


def _model(options: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in options.items():
        if name in ("checkpoint", "num_classes"):
            found += [f"--{name.replace('_', '-')}", _value(value)]
        elif isinstance(value, Mapping):
            for entry, inner in value.items():
                found += ["--model-option", f"{name}.{entry}={_value(inner)}"]
        else:
            found += ["--model-option", f"{name}={_value(value)}"]
    return found


def _domains(records: Sequence[Record], opened: Mapping[str, Any]) -> list[str]:
    """The options that choose the domains: corruptions that are made, or domains that the data has."""
    names = list(dict.fromkeys(name for record in records for name in _named(record)))
    kinds, levels = _unique(name.rpartition("/")[0] or name for name in names), set[str]()
    levels = {name.rpartition("/")[2] for name in names if "/" in name}
    corrupted = opened.get("corrupted", records[0]["data"] == "digits")
    source = ["--source-data", str(opened["source_data"])] if opened.get("source_data") else []
    if not corrupted:
        return ["--domains", ",".join(names), *source]
    found = ["--corruptions", ",".join(kinds)]
    if levels and kinds != [CLEAN]:
        found += ["--severities", ",".join(sorted(levels))]
    if opened.get("domains"):
        found += ["--domains", ",".join(opened["domains"])]
    if opened.get("corruption_preset"):
        found += ["--corruption-preset", str(opened["corruption_preset"])]
    return [*found, *source]


def _named(record: Record) -> list[str]:
    source = [record["source_domain"]] if record.get("source_domain") else []
    return [*source, *(record.get("domains") or [record["domain"]])]


def _method(record: Record) -> str:
    """`sar@original:lr=0.01`: with the options that differ from those of its preset."""
    method, preset = str(record["method"]), str(record.get("preset") or "paper")
    default = defaults_of(method, preset) or {}
    changed = {name: value for name, value in (record.get("options") or {}).items() if default.get(name) != str(value)}
    name = method if preset == "paper" else f"{method}@{preset}"
    options = ",".join(f"{option}={_value(value)}" for option, value in changed.items())
    return f"{name}:{options}" if options else name


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value).replace("null", "none")


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
