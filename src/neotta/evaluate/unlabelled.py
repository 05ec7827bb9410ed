"""What can be known of adaptation without labels: how far the data shifted, and what a method changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from neotta.errors import NeottaError, OptionError
from neotta.evaluate.changes import BASELINE, PredictionChange, changes
from neotta.evaluate.labels import Variant, labels
from neotta.evaluate.metrics import score
from neotta.evaluate.plan import Run
from neotta.evaluate.predictions import RunResult
from neotta.evaluate.records import Record
from neotta.evaluate.workbench import Workbench


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
        predictions: By method, `none` first; `write_predictions` takes them.
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


def reported_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs that a report is about: those of one setting, and `none` if it is missing.

    The setting is the seed and batch size of the first run and the largest number of samples.

    Raises:
        OptionError: There are no runs.
    """
    if not runs:
        raise OptionError("a report needs at least one run")
    first = max(runs, key=lambda run: math.inf if run.samples < 0 else run.samples)
    chosen = [run for run in runs if _setting(run) == _setting(first)]
    plain = {
        run.domains: run.model_copy(update={"method": BASELINE, "preset": "paper", "options": {}}) for run in chosen
    }
    return [*plain.values(), *(run for run in chosen if run.method != BASELINE)]


def unlabelled_report(
    bench: Workbench,
    runs: Sequence[Run],
    results: Mapping[str, RunResult] | None = None,
    failed: Iterable[Record] = (),
) -> UnlabelledReport:
    """Report what can be known without labels; with labels also what they tell.

    Args:
        bench: The model and the data.
        runs: As `reported_runs` chose them.
        results: Predictions that are known already, by the key of the run; the others are made.
        failed: Records of runs that are known to fail.
    """
    known, errors = results or {}, {record["key"]: record["error"] for record in failed}
    named = labels(run.entries() for run in runs)
    first = runs[0]
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    report = UnlabelledReport(f"{first.protocol}, seed {first.seed}, {many}, batch size {first.batch_size}")
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    for variant, label in named.items():
        together = RunResult()
        try:
            for run in (run for run in runs if Variant.of(run.entries()) == variant):
                result = _result(bench, run, known, errors)
                measured.update({(domain, label): found for domain, found in _metrics(result).items()})
                together.extend(result)
        except (NeottaError, RuntimeError, ArithmeticError) as error:
            if label == BASELINE:
                raise
            report.failed[label] = str(error) if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"
            continue
        report.predictions[label] = together
    report.names = _names(bench, first.domains[0], report.predictions[BASELINE].classes)
    _describe_data(report, bench, [run for run in runs if run.method == BASELINE])
    report.changes = changes(report.predictions, measured)
    return report


class _Failed(RuntimeError):
    """A run is known to fail."""


def _result(bench: Workbench, run: Run, known: Mapping[str, RunResult], errors: Mapping[str, str]) -> RunResult:
    key = bench.key(run)
    if key in errors:
        raise _Failed(errors[key])
    return known[key] if key in known else bench.predict(run)


def _setting(run: Run) -> tuple[Any, ...]:
    return run.seed, run.samples, run.batch_size, run.source_domain, run.protocol, run.order, run.held_out_samples


def _metrics(result: RunResult) -> dict[str, dict[str, Any]]:
    """The metrics of each domain."""
    if not result.ids:
        return {}
    found = score(result)
    return dict(found.get("per_domain") or {result.domains[0]: found["metrics"]})


def _names(bench: Workbench, domain: str, classes: int) -> tuple[str, ...] | None:
    """The names of the columns of the logits."""
    known, kept = bench.loaded.labels, bench.data.kept
    if known is not None and kept is not None:
        known = tuple(known[index] for index in kept)
    known = known or bench.data.dataset(domain).classes
    return tuple(known) if known is not None and len(known) == classes else None


def _describe_data(report: UnlabelledReport, bench: Workbench, runs: Iterable[Run]) -> None:
    """Note what could not be read, and how far the embeddings of the rest are from zero."""
    read = set(report.predictions[BASELINE].rows())
    asked: dict[str, dict[str, int]] = {}
    for run in runs:
        order = bench.orders(run)[-1]
        for domain, name, index in zip(order.domain, order.ids, order.index.tolist(), strict=True):
            asked.setdefault(order.domains[domain], {})[name] = index
    for domain, samples in asked.items():
        report.unreadable[domain] = [name for name in samples if (domain, name) not in read]
        readable = [index for name, index in samples.items() if (domain, name) in read]
        if readable:
            embeddings, _ = bench.embeddings.get(bench.data.dataset(domain), readable)
            report.shifts[domain] = Shift.of(embeddings)
