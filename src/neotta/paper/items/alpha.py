"""How fast NEO-Continual should forget."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.curves import Point, gains_along
from neotta.paper.finding import Holds, gained, together
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Results, between
from neotta.paper.study import Setting
from neotta.paper.words import doubted, listed, points

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


def _runs(setting: Setting) -> list[Plan]:
    if not setting.held_out_samples:
        return []
    varied = f"neo-continual:alpha={'|'.join(str(alpha) for alpha in ALPHAS)}"
    return [setting.plan("none", varied, protocol="hold-out", samples=[setting.held_out_samples])]


@item(
    order=16,
    name="alpha",
    title="The weight of a new batch in NEO-Continual",
    place="Table 4b",
    question="How does NEO-Continual depend on alpha?",
    claim="After 512 samples of one domain, accuracy grows with alpha, from 0 (no adaptation) up to 0.5.",
    remarks=(
        "The paper prints alpha = 0.01 in two rows with different values; one of them must be another alpha. "
        "Both stand beside what 0.01 gives here.",
    ),
    runs=_runs,
)
def show(case: Case) -> None:
    """Compare the weights on the same samples."""
    found, setting = case.results(), case.setting
    labels = {alpha: _label(alpha) for alpha in ALPHAS if _label(alpha) in found.gains}
    reached = [Point(alpha, found.means[label], found.gains[label]) for alpha, label in labels.items()]
    gains = gains_along(reached)
    if not gains:
        raise Skip
    how = f"{setting.held_out_samples} samples in batches of {setting.study.batch_size}"
    caption = f"Accuracy in % on the rest after {how}.{found.seeds}"
    case.curve("accuracy by alpha", "alpha", {"neo-continual": reached}, caption, digits=2)
    names = {alpha: [name for name in PUBLISHED if float(name.split()[0]) == alpha] for alpha in gains}
    case.beside(  # gains, since accuracies of different models do not compare
        "gain over alpha = 0 by alpha",
        {name: value - PUBLISHED["0"] for name, value in PUBLISHED.items()},
        {name: gains[alpha] for alpha, printed in names.items() for name in printed or [f"{alpha:g}"]},
        corner="alpha",
        digits=2,
        sign="+",
        caption="Points of accuracy on the rest. Published: ViT-Base on ImageNet-C.",
    )
    best = max(gains, key=lambda alpha: gains[alpha].mean)
    others = [f"{points(gains[alpha])} with {alpha:g}" for alpha in (0.01, 0.1, 0.5) if alpha in gains]
    answer = f"of the weights tried alpha = {best:g} gives most, {doubted(gains[best])}; the gain is {listed(others)}"
    case.say(answer, _holds(gains, found))
    case.note(*found.failures)


def _label(alpha: float) -> str:
    return f"neo-continual alpha={alpha}"


def _holds(gains: Mapping[float, Interval], found: Results) -> Holds:
    """Whether accuracy grows from the lowest to the highest weight of the paper, and falls at no step between them."""
    steps = [alpha for alpha in ALPHAS if alpha <= HIGHEST and alpha in gains]
    if len(steps) < 2:
        return "unclear"
    values = [found.per_seed(_label(alpha)) for alpha in steps]
    metric = found.comparison.metric
    falling = [gained(between(high, low, metric)) == "no" for low, high in itertools.pairwise(values)]
    fallen: list[Holds] = ["no"] if any(falling) else []
    return together([gained(between(values[-1], values[0], metric)), *fallen])
