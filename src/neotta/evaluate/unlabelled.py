"""What can be known of adaptation without labels: how far the data shifted, and what a method changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from neotta.errors import NeottaError, OptionError
from neotta.evaluate.labels import Variant, labels
from neotta.evaluate.metrics import score
from neotta.evaluate.plan import Run
from neotta.evaluate.predictions import UNKNOWN, RunResult
from neotta.evaluate.records import Record
from neotta.evaluate.session import Session

BASELINE = "none"
EXAMPLES = 10


class ChangedSample(NamedTuple):
    """A sample whose prediction changed: classes and confidences without the method and with it."""

    id: str
    before: int
    after: int
    confidence_before: float
    confidence_after: float


@dataclass(frozen=True)
class PredictionChange:
    """What a method changes on a domain, compared with no adaptation on the same samples.

    Attributes:
        method: Label of the method.
        domain: The domain.
        samples: Number of samples that both predicted.
        changed: Number of predictions that differ.
        before: Metrics without it: entropy and confidence, and with labels the others.
        after: Metrics with it.
        histogram_before: How often each class is predicted without it, (C,).
        histogram_after: How often with it, (C,).
        examples: The changed samples where both predictions are most confident.
        fixed: Number of predictions that became right; None if unlabelled.
        broken: Number of predictions that became wrong; None if unlabelled.
    """

    method: str
    domain: str
    samples: int
    changed: int
    before: dict[str, Any]
    after: dict[str, Any]
    histogram_before: NDArray[np.int64]
    histogram_after: NDArray[np.int64]
    examples: tuple[ChangedSample, ...]
    fixed: int | None
    broken: int | None

    def classes(self, count: int = 5) -> list[tuple[int, int, int]]:
        """The classes predicted more or less often than before, the largest changes first: (class, before, after)."""
        change = self.histogram_after - self.histogram_before
        order = [int(index) for index in np.argsort(-np.abs(change), kind="stable") if change[index]]
        return [(index, int(self.histogram_before[index]), int(self.histogram_after[index])) for index in order[:count]]


def changes(
    predictions: Mapping[str, RunResult], measured: Mapping[tuple[str, str], dict[str, Any]]
) -> list[PredictionChange]:
    """Compare every method with `none`, domain by domain."""
    plain = predictions[BASELINE]
    changed = []
    for method, adapted in predictions.items():
        if method == BASELINE:
            continue
        rows = adapted.rows()
        both: dict[str, list[tuple[int, int]]] = {}
        for (domain, name), row in plain.rows().items():
            if (domain, name) in rows:
                both.setdefault(domain, []).append((row, rows[domain, name]))
        for domain, pairs in both.items():
            metrics = measured[domain, BASELINE], measured[domain, method]
            changed.append(_change(method, domain, plain, adapted, np.array(pairs), metrics))
    return changed


def _change(
    method: str,
    domain: str,
    plain: RunResult,
    adapted: RunResult,
    rows: NDArray[np.int64],
    metrics: tuple[dict[str, Any], dict[str, Any]],
) -> PredictionChange:
    one, other = rows.T
    old, new = plain.stats.predicted.numpy()[one], adapted.stats.predicted.numpy()[other]
    sure_before, sure_after = plain.stats.confidence.numpy()[one], adapted.stats.confidence.numpy()[other]
    truth = plain.stats.labels.numpy()[one]
    changed = np.flatnonzero(old != new)
    surest = changed[np.argsort(-np.minimum(sure_before, sure_after)[changed], kind="stable")][:EXAMPLES]
    labelled = bool((truth != UNKNOWN).any())
    return PredictionChange(
        method=method,
        domain=domain,
        samples=len(rows),
        changed=len(changed),
        before=metrics[0],
        after=metrics[1],
        histogram_before=np.bincount(old, minlength=plain.classes),
        histogram_after=np.bincount(new, minlength=plain.classes),
        examples=tuple(
            ChangedSample(
                plain.ids[one[row]], int(old[row]), int(new[row]), float(sure_before[row]), float(sure_after[row])
            )
            for row in surest
        ),
        fixed=int(((old != truth) & (new == truth)).sum()) if labelled else None,
        broken=int(((old == truth) & (new != truth)).sum()) if labelled else None,
    )


class Shift(NamedTuple):
    """How far the mean of some embeddings is from zero.

    Attributes:
        samples: Number of embeddings, n.
        norm: Norm of their mean, which is what NEO removes.
        spread: Root of their total variance s^2: the distance of a typical embedding from the mean.
        noise: sqrt(s^2 / n): the norm that the mean of n samples has by chance if the true mean is zero.
    """

    samples: int
    norm: float
    spread: float
    noise: float

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
        """The norm divided by the spread."""
        return self.norm / self.spread if self.spread else math.nan

    @property
    def beyond_chance(self) -> float:
        """The norm divided by the sampling noise: about 1 if the true mean is zero."""
        return self.norm / self.noise if self.noise else math.nan


@dataclass
class UnlabelledReport:
    """What is known of some data and what methods do to it.

    Attributes:
        setting: The setting of the runs that the report is about, in words.
        names: The class names, or None.
        shifts: By domain.
        unreadable: Ids of samples that could not be read, by domain.
        changes: One per method and domain.
        predictions: By method, `none` first.
        failed: Methods that failed, and why.
    """

    setting: str
    names: tuple[str, ...] | None = None
    shifts: dict[str, Shift] = field(default_factory=dict)
    unreadable: dict[str, list[str]] = field(default_factory=dict)
    changes: list[PredictionChange] = field(default_factory=list)
    predictions: dict[str, RunResult] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether any label is known."""
        return any(change.fixed is not None for change in self.changes)


def reported_runs(runs: Sequence[Run], *, every_seed: bool = False) -> list[Run]:
    """The runs that a report is about: those of one setting, and `none` if it is missing.

    The setting is the seed and batch size of the first run and the largest number of samples.
    """
    if not runs:
        raise OptionError("a report needs at least one run")
    first = max(runs, key=lambda run: math.inf if run.samples < 0 else run.samples)
    chosen = [run for run in runs if _setting(run) == _setting(first)]
    plain = {
        run.domains: run.model_copy(update={"method": BASELINE, "preset": "paper", "options": {}}) for run in chosen
    }
    reported = [*plain.values(), *(run for run in chosen if run.method != BASELINE)]
    others = list(dict.fromkeys(run.seed for run in runs if run.seed != first.seed)) if every_seed else []
    return [*reported, *(run.model_copy(update={"seed": seed}) for seed in others for run in reported)]


def unlabelled_report(
    bench: Session,
    runs: Sequence[Run],
    results: dict[str, RunResult] | None = None,
    failed: Iterable[Record] = (),
) -> UnlabelledReport:
    """Report what can be known without labels; with labels also what they tell."""
    first = runs[0]
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    report = UnlabelledReport(f"{first.protocol}, seed {first.seed}, {many}, batch size {first.batch_size}")
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    for label, outcome in _by_method(bench, runs, {} if results is None else results, failed).items():
        if isinstance(outcome, str):
            report.failed[label] = outcome
            continue
        together = report.predictions[label] = RunResult()
        for result in outcome:
            measured.update({(domain, label): metrics for domain, metrics in _metrics(result).items()})
            together.extend(result)
    report.names = class_names(bench, first)
    _describe_data(report, bench, [run for run in runs if run.method == BASELINE])
    report.changes = changes(report.predictions, measured)
    return report


def predictions_by_seed(
    bench: Session,
    runs: Sequence[Run],
    results: dict[str, RunResult] | None = None,
    failed: Iterable[Record] = (),
) -> dict[int, dict[str, RunResult]]:
    """What each method predicts, by seed; `write_predictions` takes it. A method that failed is left out.

    Takes what `unlabelled_report` does, with the runs of several seeds.
    """
    failures = list(failed)
    by_seed: dict[int, dict[str, RunResult]] = {}
    for seed in dict.fromkeys(run.seed for run in runs):
        mine = [run for run in runs if run.seed == seed]
        for label, parts in _by_method(bench, mine, {} if results is None else results, failures).items():
            if isinstance(parts, str):
                continue
            together = by_seed.setdefault(seed, {})[label] = RunResult()
            for part in parts:
                together.extend(part)
    return by_seed


def _by_method(
    bench: Session, runs: Sequence[Run], known: dict[str, RunResult], failed: Iterable[Record]
) -> dict[str, list[RunResult] | str]:
    errors = {record.key: record.error or "" for record in failed}
    named = labels(runs)
    by_method: dict[str, list[RunResult] | str] = {}
    for variant, label in named.items():
        mine = [run for run in runs if Variant.of(run) == variant]
        try:
            by_method[label] = [_result(bench, run, known, errors) for run in mine]
        except (NeottaError, RuntimeError, ArithmeticError) as error:
            if label == BASELINE:
                raise
            by_method[label] = str(error) if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"
    return by_method


class _Failed(RuntimeError):
    """A run is known to fail."""


def _result(bench: Session, run: Run, known: dict[str, RunResult], errors: Mapping[str, str]) -> RunResult:
    key = bench.key(run)
    if key in errors:
        raise _Failed(errors[key])
    if key not in known:
        known[key] = bench.predict(run)
    return known[key]


def _setting(run: Run) -> tuple[Any, ...]:
    return run.seed, run.samples, run.batch_size, run.source_domain, run.protocol, run.order, run.held_out_samples


def _metrics(result: RunResult) -> dict[str, dict[str, Any]]:
    if not result.ids:
        return {}
    scores = score(result)
    return dict(scores.get("per_domain") or {result.domains[0]: scores["metrics"]})


def class_names(bench: Session, run: Run) -> tuple[str, ...] | None:
    """The names of the classes that a run predicts, if they are known."""
    known, outputs = bench.loaded.labels, bench.data.class_indices
    if known is not None and outputs is not None:
        known = tuple(known[index] for index in outputs)
    known = known or bench.data.dataset(run.domains[0]).classes
    classes = bench.head.out_features if outputs is None else len(outputs)
    return tuple(known) if known is not None and len(known) == classes else None


def _describe_data(report: UnlabelledReport, bench: Session, runs: Iterable[Run]) -> None:
    read = set(report.predictions[BASELINE].rows())
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
