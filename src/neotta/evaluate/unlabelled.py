"""What can be known of adaptation without labels: how far the data shifted, and what a method changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

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


@dataclass(frozen=True)
class PredictionChange:
    """What a method changes on a domain, compared with no adaptation on the same samples.

    `rows` has one row for each sample: `id`, and `prediction`, `confidence` and `entropy` with the endings `_before`
    and `_after`.
    """

    method: str
    domain: str
    rows: pandas.DataFrame

    @property
    def samples(self) -> int:
        return len(self.rows)

    @property
    def changed(self) -> int:
        return int((self.rows["prediction_before"] != self.rows["prediction_after"]).sum())

    def mean(self, name: str) -> float:
        return float(self.rows[name].mean())

    def classes(self, count: int = 5) -> list[tuple[int, int, int]]:
        """The classes predicted more or less often than before, the largest changes first: (class, before, after)."""
        before, after = (self.rows[f"prediction_{when}"].value_counts().to_dict() for when in ("before", "after"))
        both = [(each, before.get(each, 0), after.get(each, 0)) for each in sorted({*before, *after})]
        moved = [(each, first, then) for each, first, then in both if first != then]
        return sorted(moved, key=lambda entry: -abs(entry[2] - entry[1]))[:count]

    def most_frequent(self) -> tuple[int, float]:
        """The class that is predicted most often without the method, and its share."""
        counts = self.rows["prediction_before"].value_counts(normalize=True).sort_index()
        return int(counts.idxmax()), float(counts.max())


class Shift(NamedTuple):
    """How far the mean of some embeddings is from zero."""

    samples: int
    norm: float  # norm of their mean, which is what NEO removes
    spread: float  # root of their total variance s^2: the distance of a typical embedding from the mean
    noise: float  # sqrt(s^2 / n): the norm that the mean of n samples has by chance if the true mean is zero

    @classmethod
    def of(cls, embeddings: Tensor) -> Shift:
        """Measure it on embeddings, (n, d); rows with NaN or Inf are left out."""
        wide = embeddings.double()
        wide = wide[wide.isfinite().all(dim=1)]
        count = len(wide)
        if count == 0:
            return cls(0, math.nan, math.nan, math.nan)
        mean = wide.mean(dim=0)
        variance = float((wide - mean).square().sum()) / (count - 1) if count > 1 else math.nan
        return cls(count, float(mean.norm()), math.sqrt(variance), math.sqrt(variance / count))

    @property
    def relative(self) -> float:
        return self.norm / self.spread if self.spread else math.nan

    @property
    def beyond_chance(self) -> float:
        """The norm divided by the sampling noise: about 1 if the true mean is zero."""
        return self.norm / self.noise if self.noise else math.nan


@dataclass
class UnlabelledReport:
    setting: str  # the setting of the runs that the report is about, in words
    classes: int
    names: tuple[str, ...] | None = None
    shifts: dict[str, Shift] = field(default_factory=dict)
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # ids of samples that could not be read, by domain
    changes: list[PredictionChange] = field(default_factory=list)  # one per method and domain
    failed: dict[str, str] = field(default_factory=dict)


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


def unlabelled_report(
    bench: Bench, runs: Sequence[Run], results: dict[str, RunResult] | None = None, failed: Iterable[Record] = ()
) -> UnlabelledReport:
    """Report what can be known without labels of runs that `reported_runs` chose; the rest is as in `predictions`."""
    first = runs[0]
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    report = UnlabelledReport(
        f"{first.order}, seed {first.seed}, {many}, batch size {first.batch_size}",
        bench.data.classes or 0,
        class_names(bench, first),
    )
    frame, report.failed = predictions(bench, runs, results, failed)
    plain = frame[frame["method"] == BASELINE]
    _describe_data(report, bench, [run for run in runs if run.method == BASELINE], plain)
    for method, mine in frame[frame["method"] != BASELINE].groupby("method", sort=False):
        both = plain.merge(mine, on=["domain", "id"], suffixes=("_before", "_after"))
        report.changes += [
            PredictionChange(method, domain, rows) for domain, rows in both.groupby("domain", sort=False)
        ]
    return report


def class_names(bench: Bench, run: Run) -> tuple[str, ...] | None:
    known, outputs, groups = bench.loaded.labels, bench.data.class_indices, bench.data.class_groups
    if groups is not None:
        return groups.names
    if known is not None and outputs is not None:
        known = tuple(known[index] for index in outputs)
    known = known or bench.data.dataset(run.domains[0]).classes
    return tuple(known) if known is not None and len(known) == bench.data.classes else None


def _describe_data(report: UnlabelledReport, bench: Bench, runs: Iterable[Run], plain: pandas.DataFrame) -> None:
    read = set(zip(plain["domain"], plain["id"], strict=True))
    entries: dict[str, dict[str, int]] = {}
    for run in runs:
        order = bench.orders(run)[-1]
        for domain, name, index in zip(order.domain, order.ids, order.index.tolist(), strict=True):
            entries.setdefault(order.domains[domain], {})[name] = index
    for domain, samples in entries.items():
        report.unreadable[domain] = [name for name in samples if (domain, name) not in read]
        readable = [index for name, index in samples.items() if (domain, name) in read]
        if readable:
            embeddings, _ = bench.embeddings.get(bench.data.dataset(domain), readable)
            report.shifts[domain] = Shift.of(embeddings)
