"""What a check found, in plain words."""

from __future__ import annotations

import numpy as np

from neotta.evaluate.check import BEARABLE, CheckReport


def sentences(report: CheckReport) -> list[str]:
    """What was found, and which line to use, in plain words."""
    return [*_model(report), *_balance(report), *_source_mean(report), "", *_advice(report)]


def _model(report: CheckReport) -> list[str]:
    found = f"The head is {report.head!r}: what it returns is what the model returns."
    if report.labelled:
        return [found, f"Without adapting, {report.accuracy:.1f} % of {report.images} clean images are right."]
    return [found, f"The {report.images} images have no labels: changes below are changed answers of the plain model."]


def _balance(report: CheckReport) -> list[str]:
    shares = np.array(report.shares)
    most, unseen = int(shares.argmax()), int((shares == 0).sum())
    even = 1 / report.classes
    if shares[most] > max(3 * even, 0.3) or (report.classes == 2 and shares[most] > 0.65):
        return [
            f"The classes are unbalanced: {shares[most]:.0%} of the answers are class {most}. NEO assumes balanced "
            "classes and would take the frequent one for a shift; a reference knows how frequent it is."
        ]
    if unseen:
        return [f"{unseen} of {report.classes} classes are never predicted here: more images make a better reference."]
    return ["The classes are predicted about equally often."]


def _source_mean(report: CheckReport) -> list[str]:
    far = report.mean_to_spread
    if far > 0.5:
        return [
            f"The mean of the clean embeddings is {far:.2f} times their spread away from the origin: re-centering to "
            "the origin moves clean data, re-centering to a reference does not."
        ]
    return [f"The mean of the clean embeddings is near the origin ({far:.2f} times their spread)."]


def _advice(report: CheckReport) -> list[str]:
    chosen = report.advice
    stream = next(rule for rule in report.rules if rule.rule == "neo-stream" and not rule.reference)
    neo = next(rule for rule in report.rules if rule.rule == "neo" and not rule.reference)
    lines = [
        f"The paper's NEO changes clean accuracy by {neo.mean:+.1f} points on average and {neo.worst:+.1f} at worst, "
        f"NEO-Stream by {stream.mean:+.1f} and {stream.worst:+.1f}."
    ]
    if report.classes == 2:
        lines.append("With two classes a shift and a label are one number: NEO-Stream gives the plain answers.")
    if chosen is None and report.classes == 2:
        known = next(rule for rule in report.rules if rule.rule == "neo" and rule.reference)
        lines.append(
            f"NEO with a reference changes it by {known.mean:+.1f} points on average and {known.worst:+.1f} at worst: "
            "it helps only if positives are always as frequent as here."
        )
        return [*lines, "Use none."]
    if chosen is None:
        return [*lines, f"Use none: every safe line costs more than {BEARABLE:g} point on clean data here."]
    lines.append(f"Use: model = {chosen.line}")
    if chosen.reference:
        lines.append("Write the reference with --reference reference.safetensors, once, from clean images.")
    if report.classes == 2:
        lines.append("Only if positives are as frequent in the field as here; if not, use none.")
    return lines
