"""What can be known of adaptation without labels: which answers a method changes, and not whether they are better."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from neotta._words import counted
from neotta.errors import NeottaError
from neotta.evaluate.answers import RunResult
from neotta.evaluate.bench import Bench
from neotta.evaluate.execute import predict
from neotta.evaluate.frame import labels
from neotta.evaluate.key import run_key
from neotta.evaluate.plan import Run
from neotta.evaluate.records import Record

if TYPE_CHECKING:
    import pandas

BASELINE = "none"
LOPSIDED = 0.5
"""The share of one class in the plain answers from which there is a warning."""


class Unlabelled(NamedTuple):
    """What methods change on images without labels: a row for each method and domain, and sentences."""

    table: pandas.DataFrame
    notes: list[str]


def reported_runs(runs: Sequence[Run], *, every_seed: bool = False) -> list[Run]:
    """The runs that a report is about: those of one setting, and `none` if it is missing.

    The setting is the seed and batch size of the first run and the largest number of samples. The runs of this setting
    with all other seeds follow if they are asked for.
    """
    first = max(runs, key=lambda run: math.inf if run.samples < 0 else run.samples)
    chosen = [run for run in runs if _setting(run) == _setting(first)]
    as_it_is = {"method": BASELINE, "preset": "paper", "options": {}}
    plain = {run.domains: run.model_copy(update=as_it_is) for run in chosen}
    reported = [*plain.values(), *(run for run in chosen if run.method != BASELINE)]
    others = list(dict.fromkeys(run.seed for run in runs if run.seed != first.seed)) if every_seed else []
    return [*reported, *(run.model_copy(update={"seed": seed}) for seed in others for run in reported)]


def _setting(run: Run) -> tuple[Any, ...]:
    return run.seed, run.samples, run.batch_size, run.source_domain, run.order, run.held_out_samples


def predictions(
    bench: Bench, runs: Sequence[Run], results: dict[str, RunResult] | None = None, failed: Iterable[Record] = ()
) -> tuple[pandas.DataFrame, dict[str, str]]:
    """What each method predicts, a row for each run and sample; and why methods failed.

    `results` are predictions that are known already, by the key of the run; the others are made. `failed` are records
    of runs that are known to fail.
    """
    import pandas

    known, errors = results or {}, {record.key: record.error or "" for record in failed}
    failures, parts = dict[str, str](), []
    names = labels(runs)
    for label in dict.fromkeys(names):
        mine = []
        try:
            for run in (each for each, name in zip(runs, names, strict=True) if name == label):
                if (key := run_key(bench, run)) in errors:
                    failures[label] = errors[key]
                    break
                result = known[key] if key in known else predict(bench, run)
                mine.append(result.frame().assign(seed=run.seed, method=label))
        except (NeottaError, RuntimeError, ArithmeticError) as error:
            if label == BASELINE:
                raise
            failures[label] = f"{type(error).__name__}: {error}"
        parts += [] if label in failures else mine
    return pandas.concat(parts, ignore_index=True), failures


def frequent(answers: Sequence[object]) -> str:
    """The most frequent answers with their shares: `8 62%, 6 14%, 0 8%`."""
    return ", ".join(f"{name} {count / len(answers):.0%}" for name, count in Counter(answers).most_common(3))


def unlabelled_report(
    bench: Bench, runs: Sequence[Run], results: dict[str, RunResult] | None = None, failed: Iterable[Record] = ()
) -> Unlabelled:
    """Report what runs that `reported_runs` chose change, compared with no adaptation on the same samples.

    The rest is as in `predictions`.
    """
    import pandas

    first = runs[0]
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    notes = [f"Order {first.order}, seed {first.seed}, {many}, batch size {first.batch_size}."]
    frame, failures = predictions(bench, runs, results, failed)
    if (names := class_names(bench, first)) is not None:
        frame["prediction"] = [names[index] for index in frame["prediction"]]
    plain = frame[frame["method"] == BASELINE]
    notes += _unreadable(bench, [run for run in runs if run.method == BASELINE], plain)
    for domain, answers in plain.groupby("domain", sort=False)["prediction"]:
        (often, count), *_ = Counter(answers).most_common(1)
        if count > LOPSIDED * len(answers) and (bench.data.classes or 0) > 2:
            share = f"{count / len(answers):.0%} of the plain answers are class {often!r}"
            notes.append(f"{domain}: {share}. If the images really are that, NEO takes it for a shift.")
    rows = []
    for (method, domain), mine in frame[frame["method"] != BASELINE].groupby(["method", "domain"], sort=False):
        both = plain[plain["domain"] == domain].merge(mine, on="id", suffixes=("_before", "_after"))
        before, after = (both[f"prediction_{when}"].tolist() for when in ("before", "after"))
        changed = sum(one != other for one, other in zip(before, after, strict=True))
        counts = {"samples": len(both), "changed predictions": changed}
        often = {"most frequent before": frequent(before), "most frequent after": frequent(after)}
        rows.append({"method": method, "domain": domain, **counts, **often})
    notes += [f"{method} could not be run: {error}" for method, error in failures.items()]
    notes.append(
        "Without labels nobody can tell whether changed predictions are better: a method can make a model surer and "
        "wrong. To know, judge about thirty of them: neotta judge MODEL DATA"
    )
    return Unlabelled(pandas.DataFrame(rows), notes)


def class_names(bench: Bench, run: Run) -> tuple[str, ...] | None:
    known, outputs, groups = bench.loaded.labels, bench.data.class_indices, bench.data.class_groups
    if groups is not None:
        return groups.names
    if known is not None and outputs is not None:
        known = tuple(known[index] for index in outputs)
    known = known or bench.data.dataset(run.domains[0]).classes
    return tuple(known) if known is not None and len(known) == bench.data.classes else None


def _unreadable(bench: Bench, runs: Iterable[Run], plain: pandas.DataFrame) -> Iterator[str]:
    read = set(zip(plain["domain"], plain["id"], strict=True))
    shown: dict[str, dict[str, None]] = {}
    for run in runs:
        order = bench.orders(run)[-1]
        for domain, name in zip(order.domain, order.ids, strict=True):
            shown.setdefault(order.domains[domain], {})[name] = None
    for where, samples in shown.items():
        if missing := [name for name in samples if (where, name) not in read]:
            more = ", ..." if len(missing) > 1 else ""
            yield f"{where}: {counted(len(missing), 'image')} could not be read: {missing[0]}{more}"
