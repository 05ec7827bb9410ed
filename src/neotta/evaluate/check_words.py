"""What a check found, in plain words."""

from __future__ import annotations

import numpy as np

from neotta.evaluate.check import BEARABLE, CheckReport, RuleCost


def sentences(report: CheckReport) -> list[str]:
    """What was found, and which line to use, in plain words."""
    return [*_model(report), *_balance(report), *_source_mean(report), "", *_advice(report)]


def _model(report: CheckReport) -> list[str]:
    found = f"The head is the layer {report.head!r}: what it returns is what the model returns (tried on real images)."
    halves = f"{report.images // 2} of the {report.images} images are the reference, the other {report.images_shown}"
    if report.labelled:
        plain = f"Without adapting, {report.accuracy:.1f} % of the {report.images} clean images are classified right."
        return [found, plain, f"{halves} are shown in each order of the table."]
    return [found, f"{halves} are shown. They have no labels, so the table counts answers that change."]


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


def _change(rule: RuleCost, report: CheckReport) -> str:
    """What a rule does to clean images, as the end of a sentence."""
    what = "accuracy" if report.labelled else "agreement with the plain model"
    mean = f"changes {what} by {rule.mean:+.1f} points on average" if abs(rule.mean) >= 0.05 else f"keeps {what}"
    worst = f"by {rule.worst:+.1f} in its worst row" if rule.worst <= -0.05 else "loses nothing in any row"
    return f"{mean} and {worst}"


def _advice(report: CheckReport) -> list[str]:
    if report.guesses:
        return [
            f"The model is no better than always giving the most frequent label ({report.guessing:.1f} %), so the "
            "table says nothing. The order of the classes, the preprocessing or the weights may be wrong: correct that "
            "first.",
            "Use none.",
        ]
    chosen = report.advice
    stream = next(rule for rule in report.rules if rule.rule == "neo-stream" and not rule.reference)
    neo = next(rule for rule in report.rules if rule.rule == "neo" and not rule.reference)
    lines = [
        f"On clean images, NEO as in the paper {_change(neo, report)}; NEO-Stream {_change(stream, report)}.",
    ]
    if report.classes == 2:
        lines.append("With two classes a shift and a label are one number: NEO-Stream gives the plain answers.")
    if chosen is None and report.classes == 2:
        known = next(rule for rule in report.rules if rule.rule == "neo" and rule.reference)
        lines.append(
            f"NEO with a reference {_change(known, report)}: it helps only if positives are always as frequent as here."
        )
        return [*lines, "Use none."]
    if chosen is None:
        return [*lines, f"Use none: NEO-Stream costs more than {BEARABLE:g} point in some row, with a reference too."]
    lines.append(f"Use: model = {chosen.line}")
    if chosen.reference:
        lines.append("Write the reference with --reference reference.safetensors, once, from clean images.")
    if report.classes == 2:
        lines.append("Only if positives are as frequent in the field as here; if not, use none.")
    return lines
