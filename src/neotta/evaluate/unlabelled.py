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

    Args:
        runs: All runs.
        every_seed: Take the runs of this setting with all other seeds, too, after those of the first.

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
    found = [*plain.values(), *(run for run in chosen if run.method != BASELINE)]
    others = list(dict.fromkeys(run.seed for run in runs if run.seed != first.seed)) if every_seed else []
    return [*found, *(run.model_copy(update={"seed": seed}) for seed in others for run in found)]


def unlabelled_report(
    bench: Workbench,
    runs: Sequence[Run],
    results: dict[str, RunResult] | None = None,
    failed: Iterable[Record] = (),
) -> UnlabelledReport:
    """Report what can be known without labels; with labels also what they tell.

    Args:
        bench: The model and the data.
        runs: As `reported_runs` chose them.
        results: Predictions that are known already, by the key of the run; the others are made, and added to it.
        failed: Records of runs that are known to fail.
    """
    first = runs[0]
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    report = UnlabelledReport(f"{first.protocol}, seed {first.seed}, {many}, batch size {first.batch_size}")
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    for label, found in _by_method(bench, runs, {} if results is None else results, failed).items():
        if isinstance(found, str):
            report.failed[label] = found
            continue
        together = report.predictions[label] = RunResult()
        for result in found:
            measured.update({(domain, label): metrics for domain, metrics in _metrics(result).items()})
            together.extend(result)
    report.names = _names(bench, first.domains[0], report.predictions[BASELINE].classes)
    _describe_data(report, bench, [run for run in runs if run.method == BASELINE])
    report.changes = changes(report.predictions, measured)
    return report


def predictions_by_seed(
    bench: Workbench,
    runs: Sequence[Run],
    results: dict[str, RunResult] | None = None,
    failed: Iterable[Record] = (),
) -> dict[int, dict[str, RunResult]]:
    """What each method predicts, by seed; `write_predictions` takes it. A method that failed is left out.

    Takes what `unlabelled_report` does, with the runs of several seeds.
    """
    failures = list(failed)
    found: dict[int, dict[str, RunResult]] = {}
    for seed in dict.fromkeys(run.seed for run in runs):
        mine = [run for run in runs if run.seed == seed]
        for label, parts in _by_method(bench, mine, {} if results is None else results, failures).items():
            if isinstance(parts, str):
                continue
            together = found.setdefault(seed, {})[label] = RunResult()
            for part in parts:
                together.extend(part)
    return found


def _by_method(
    bench: Workbench, runs: Sequence[Run], known: dict[str, RunResult], failed: Iterable[Record]
) -> dict[str, list[RunResult] | str]:
    """The predictions of each method, run by run; or why it failed."""
    errors = {record["key"]: record["error"] for record in failed}
    named = labels(run.entries() for run in runs)
    found: dict[str, list[RunResult] | str] = {}
    for variant, label in named.items():
        mine = [run for run in runs if Variant.of(run.entries()) == variant]
        try:
            found[label] = [_result(bench, run, known, errors) for run in mine]
        except (NeottaError, RuntimeError, ArithmeticError) as error:
            if label == BASELINE:
                raise
            found[label] = str(error) if isinstance(error, _Failed) else f"{type(error).__name__}: {error}"
    return found


class _Failed(RuntimeError):
    """A run is known to fail."""


def _result(bench: Workbench, run: Run, known: dict[str, RunResult], errors: Mapping[str, str]) -> RunResult:
    key = bench.key(run)
    if key in errors:
        raise _Failed(errors[key])
    if key not in known:
        known[key] = bench.predict(run)
    return known[key]


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
