"""What can be known of adaptation without labels: how far the data moved, and what a method changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from neotta.errors import NeottaError, OptionError
from neotta.evaluate.changes import BASELINE, Change, changes
from neotta.evaluate.naming import Variant, labels
from neotta.evaluate.outputs import Outputs
from neotta.evaluate.plan import Run
from neotta.evaluate.predictions import Predictions
from neotta.evaluate.scores import score
from neotta.evaluate.workbench import Workbench


class Shift(NamedTuple):
    """Where the mean of some embeddings lies.

    Attributes:
        samples: How many embeddings, n.
        norm: Length of their mean: its distance from zero, which is what NEO removes.
        spread: Root of their total variance s^2: the distance of a typical embedding from the mean.
        noise: sqrt(s^2 / n): the length that the mean of n samples has by chance where the true mean is zero.
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
        """The norm against the spread."""
        return self.norm / self.spread if self.spread else math.nan

    @property
    def beyond_chance(self) -> float:
        """The norm against sampling noise: about 1 where the true mean is zero."""
        return self.norm / self.noise if self.noise else math.nan


@dataclass
class UnlabelledReport:
    """What is known of some data and what methods do to it.

    Attributes:
        setting: The one setting of the runs that the report is about, in words.
        names: Of the classes, or None.
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
    changes: list[Change] = field(default_factory=list)
    predictions: dict[str, Predictions] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether any label is known."""
        return any(change.fixed is not None for change in self.changes)


def unlabelled_report(
    workbench: Workbench, runs: Sequence[Run], progress: Callable[[str, int], None] | None = None
) -> UnlabelledReport:
    """Say what can be known without labels; with labels also what they tell.

    The report is about one setting: seed and batch size of the first run, most samples. Methods and domains are all
    that runs of this setting name; `none` is added if it is missing.

    Args:
        workbench: The model and the data.
        runs: What to look at; `workbench.runs()` gives all.
        progress: Called with the method and the samples done.

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
    chosen = [*plain.values(), *(run for run in chosen if run.method != BASELINE)]
    named = labels(run.model_dump(mode="json") for run in chosen)
    many = "all samples" if first.samples < 0 else f"{first.samples} samples"
    report = UnlabelledReport(f"{first.protocol}, seed {first.seed}, {many}, batch size {first.batch_size}")
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    width = 0
    for variant, label in named.items():
        parts = []
        try:
            for run in (run for run in chosen if _variant(run) == variant):
                outputs = workbench.predict(run, progress)
                width = max(width, outputs.tensor().shape[1])
                parts.append(Predictions.of(outputs))  # the logits of all domains together may be large
                measured.update({(domain, label): found for domain, found in _metrics(outputs).items()})
        except (NeottaError, RuntimeError, ArithmeticError) as error:
            if label == BASELINE:
                raise
            report.failed[label] = f"{type(error).__name__}: {error}"
            continue
        report.predictions[label] = Predictions.joined(parts)
    report.names = _names(workbench, width)
    _describe_data(report, workbench, plain.values())
    report.changes = changes(report.predictions, measured, width)
    return report


def _setting(run: Run) -> tuple[Any, ...]:
    return run.seed, run.samples, run.batch_size, run.source_domain, run.protocol, run.stream, run.evaluate


def _variant(run: Run) -> Variant:
    return Variant.of(run.model_dump(mode="json"))


def _metrics(outputs: Outputs) -> dict[str, dict[str, Any]]:
    """The metrics of each domain."""
    if not outputs.ids:
        return {}
    found = score(outputs)
    return dict(found.get("per_domain") or {outputs.domains[0]: found["metrics"]})


def _names(workbench: Workbench, width: int) -> tuple[str, ...] | None:
    """The names of the columns of the logits."""
    known, kept = workbench.loaded.labels, workbench.data.kept
    if known is not None and kept is not None:
        known = tuple(known[index] for index in kept)
    known = known or workbench.data.dataset(workbench.data.names[0]).classes
    return tuple(known) if known is not None and len(known) == width else None


def _describe_data(report: UnlabelledReport, workbench: Workbench, runs: Iterable[Run]) -> None:
    """Note what could not be read, and where the embeddings of the rest lie."""
    predicted: dict[str, list[str]] = {}
    known = report.predictions[BASELINE]
    for domain, name in zip(known.domains, known.ids, strict=True):
        predicted.setdefault(domain, []).append(name)
    for run in runs:
        for stream in (phase.stream for phase in workbench.phases(run) if phase.scored):
            for domain, name in zip(stream.domain, stream.ids, strict=True):
                report.unreadable.setdefault(stream.domains[domain], []).append(name)
    for domain, names in report.unreadable.items():
        read = set(predicted.get(domain, ()))
        report.unreadable[domain] = [name for name in names if name not in read]
        if read:
            dataset = workbench.data.dataset(domain)
            places = {name: index for index, name in enumerate(dataset.ids)}
            embeddings, _ = workbench.embeddings.get(dataset, [places[name] for name in names if name in read])
            report.shifts[domain] = Shift.of(embeddings)
