"""How fast NEO-Continual should forget."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from neotta.evaluate.comparison import Block
from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, curves
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Table
from neotta.paper.study import Setting

ALPHAS = (0.0, 0.01, 0.05, 0.1, 0.5, 1.0)
PUBLISHED = {
    "0": 53.27,
    "0.01 (first row)": 53.40,
    "0.01 (second row)": 53.59,
    "0.05": 54.39,
    "0.1": 55.14,
    "0.5": 56.64,
}
"""Accuracy in percent by alpha: ViT-Base on ImageNet-C, 512 samples, scored on the rest. Two rows print 0.01."""
HIGHEST = 0.5
"""The largest that the paper has."""


class Alpha(Item):
    """Table 4b."""

    name = "table-alpha"
    title = "The weight of a new batch in NEO-Continual"
    place = "Table 4b"
    question = "How does NEO-Continual depend on alpha?"
    claim = "After 512 samples of one domain, accuracy grows with alpha, from 0 (no adaptation) up to 0.5."

    def plans(self, setting: Setting) -> list[Plan]:
        """NEO-Continual with different weights, frozen and scored on the rest."""
        if not setting.held_out_samples:
            return []
        varied = f"neo-continual:alpha={'|'.join(str(alpha) for alpha in ALPHAS)}"
        return [setting.plan("none", varied, protocol="hold-out", samples=[setting.held_out_samples])]

    def find(self, evidence: Evidence) -> Finding:
        """Compare the weights on the same samples."""
        finding = Finding()
        for setting in evidence.settings:
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            block = comparing.fullest(comparison)
            points = [] if block is None else _points(block)
            if comparison is None or block is None or not points:
                continue
            how = f"{setting.held_out_samples} samples in batches of {setting.study.batch_size}"
            caption = f"Accuracy in % on the rest after {how}.{comparing.seeds(block)}"
            title = f"{setting.title}: accuracy by alpha"
            finding.parts += [
                curves.table(title, "alpha", {"neo-continual": points}, caption, digits=2),
                _beside(setting, points),
            ]
            gains = curves.gains(points)
            finding.say(_answer(setting, gains), _holds(gains, block))
            finding.notes += curves.failures(comparison)
        if finding.parts:
            finding.notes.append(
                "The paper prints alpha = 0.01 in two rows with different values; one of them must be another alpha. "
                "Both stand beside what 0.01 gives here."
            )
        return finding


def _label(alpha: float) -> str:
    return f"neo-continual alpha={alpha}"


def _points(block: Block) -> list[curves.Point]:
    means, gaps = comparing.means(block), comparing.mean_gaps(block)
    return [
        curves.Point(alpha, means[label], gaps[label].interval)
        for alpha in ALPHAS
        if (label := _label(alpha)) in means and label in gaps
    ]


def _beside(setting: Setting, points: list[curves.Point]) -> Table:
    """Gains over no adaptation: accuracies of different models do not compare."""
    gains = curves.gains(points)
    names = {alpha: [name for name in PUBLISHED if float(name.split()[0]) == alpha] for alpha in gains}
    return comparing.beside(
        f"{setting.title}: gain over alpha = 0 by alpha, published and measured",
        {name: value - PUBLISHED["0"] for name, value in PUBLISHED.items()},
        {name: gains[alpha] for alpha, found in names.items() for name in found or [f"{alpha:g}"]},
        corner="alpha",
        digits=2,
        sign="+",
        caption="Points of accuracy on the rest. Published: ViT-Base on ImageNet-C.",
    )


def _answer(setting: Setting, gains: Mapping[float, Interval]) -> str:
    best = max(gains, key=lambda alpha: gains[alpha].mean)
    others = [f"{comparing.gain_words(gains[alpha])} with {alpha:g}" for alpha in (0.01, 0.1, 0.5) if alpha in gains]
    return (
        f"On {setting.title}, of the weights tried alpha = {best:g} gives most, "
        f"{comparing.gain_words(gains[best])}{comparing.doubt(gains[best])}; it is {comparing.listed(others)}."
    )


def _holds(gains: Mapping[float, Interval], block: Block) -> Holds:
    """Whether accuracy grows with every step, and certainly from the lowest to the highest weight of the paper."""
    steps = [alpha for alpha in ALPHAS if alpha <= HIGHEST and alpha in gains]
    if len(steps) < 2:
        return "unclear"
    growing = all(gains[low].mean <= gains[high].mean for low, high in itertools.pairwise(steps))
    last, first = (curves.per_seed(block, _label(alpha)) for alpha in (steps[-1], steps[0]))
    return comparing.together([comparing.claim_of_gain(curves.between(last, first)), "yes" if growing else "no"])
