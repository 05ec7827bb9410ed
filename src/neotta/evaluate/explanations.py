"""What a report on unlabelled data means, in plain sentences, and what it cannot tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from neotta.evaluate.changes import PredictionChange
from neotta.evaluate.unlabelled import Shift, UnlabelledReport

ENOUGH = 2.0
"""The norm of a mean, in multiples of its sampling noise, from which it counts as shifted."""
SMALL = 0.2
"""The share of the spread below which a mean is too short to change much."""
LOPSIDED = 0.5
"""The share of one class from which there is a warning."""


def explain(report: UnlabelledReport) -> list[str]:
    """Explain in a few sentences what was found, what it means, and what cannot be known from it."""
    lines = []
    for domain, names in report.unreadable.items():
        if names:
            images = f"1 image ({names[0]})" if len(names) == 1 else f"{len(names)} images (the first: {names[0]})"
            lines.append(f"{domain}: {images} could not be read.")
    for domain, shift in report.shifts.items():
        lines.append(f"{domain}: {_explain_shift(shift)}")
    if len(report.shifts) == 1:
        lines.append(
            "Zero is where NEO takes the mean of the training data to be; this model's may lie elsewhere. To know, "
            "look at images that the model is known to do well on in the same way."
        )
    for change in report.changes:
        lines += _explain_change(change, report.names)
    lines += [f"{method} could not be run: {error}" for method, error in report.failed.items()]
    if any(change.changed for change in report.changes):
        lines += (
            _explain_labels()
            if report.labelled
            else _explain_no_labels(max(change.changed for change in report.changes))
        )
    return lines


def _explain_shift(shift: Shift) -> str:
    if shift.samples < 2:
        return "fewer than two images can be used: nothing can be said of their mean."
    far = f"the mean of {shift.samples} embeddings lies {shift.norm:.3g} from zero"
    if math.isnan(shift.beyond_chance):
        return f"{far}, and all of them are the same."
    if shift.beyond_chance < ENOUGH:
        return (
            f"{far}, and {shift.noise:.3g} is to be expected by chance: so few images show no shift, and what NEO "
            "subtracts is mostly noise. Take more images, or shrinkage='james-stein'."
        )
    said = "real, but small: expect little of NEO" if shift.relative < SMALL else "NEO has something to remove"
    return (
        f"{far}. That is {shift.relative:.2g} times the spread of the embeddings, and {shift.beyond_chance:.1f} times "
        f"what chance gives: {said}."
    )


def _explain_change(change: PredictionChange, names: tuple[str, ...] | None) -> Iterator[str]:
    where = f"{change.method} on {change.domain}"
    if change.changed == 0:
        yield f"{where}: no prediction changes, so nothing is gained or lost."
    else:
        share = change.changed / change.samples
        before, after = change.before["confidence"], change.after["confidence"]
        yield (
            f"{where}: {change.changed} of {change.samples} predictions change ({share:.1%}), so accuracy moves by at "
            f"most that much, up or down. Mean confidence goes from {before:.2f} to {after:.2f}."
        )
    if change.fixed is not None and change.changed:
        yield f"{where}: by the labels {change.fixed} of them became right and {change.broken} became wrong."
    often = int(change.histogram_before.argmax())
    share = change.histogram_before[often] / max(1, change.samples)
    if share > LOPSIDED and len(change.histogram_before) > 2 and change.method.startswith("neo"):
        name = often if names is None else repr(names[often])
        yield (
            f"{where}: {share:.0%} of the plain predictions are class {name}. If the images really are that "
            "one-sided, their mean holds the class itself, and subtracting it does harm."
        )


def _explain_no_labels(changed: int) -> Iterator[str]:
    yield (
        "Without labels nobody can tell whether the changed predictions are better. Confidence and entropy do not say "
        "it: a model can be sure and wrong, and a method that makes it less sure can make it more often right."
    )
    if changed <= 100:
        yield "To know, label the images whose prediction changed, and count which of the two answers is right."
        return
    yield (
        "To know, label a hundred of the images whose prediction changed, drawn at random, and count which of the two "
        "answers is right: where exactly one is, 61 of 100 on one side are more than chance."
    )


def _explain_labels() -> Iterator[str]:
    yield (
        "This is one run. For a verdict see 'neotta compare' on the results; several seeds show how much a method "
        "depends on its own randomness."
    )
