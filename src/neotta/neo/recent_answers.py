"""The last answers of a stream: what the plain model, the adapted one and a careful rule say."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW = 64
"""Number of samples that are remembered of each stream."""

HARM = 0.15
"""Share of samples whose answer the rule alone changed, above which it does harm: see `benchmarks/on_harm.py`."""

COLLAPSED, CHANGED = 0.5, 0.3
"""Adapted answers that show less than this part of the plain ones' classes, and differ in more than this, collapsed."""

CHANGED_ALTHOUGH_CAREFUL = 0.8
"""The latter for NEO-Stream: where it shows fewer classes than the plain model under a shift, it is mostly right."""

FAR = 3.0
"""Logits this many times as long as the median are outliers."""


class Evidence(NamedTuple):
    """What the last answers of a stream say.

    Attributes:
        samples: Number of samples it is based on.
        disagreement: Share of answers that differ from the plain model's.
        alone: Share of answers that only the rule gives: the careful rule and the plain model agree on another.
        classes: Effective number of classes among the adapted answers, exp of their entropy.
        plain_classes: The same among the plain answers.
        top_share: Share of the most frequent class among the adapted answers.
        outliers: Share of unusually long logits.
        careful: Whether the rule is itself the careful one.
    """

    samples: int
    disagreement: float
    alone: float
    classes: float
    plain_classes: float
    top_share: float
    outliers: float
    careful: bool = False

    @property
    def harm(self) -> str:
        """Why adapting hurts, or an empty string: evidence from a full window."""
        if self.samples < WINDOW:
            return ""
        if self.alone > HARM:
            return (
                f"{self.alone:.0%} of the last {WINDOW} answers differ from the plain model's, although the stream "
                "shows too few classes to tell a shift from its labels"
            )
        if self.collapsed:
            return (
                f"the last {WINDOW} answers collapsed to {self.classes:.1f} classes where the plain model sees "
                f"{self.plain_classes:.1f}"
            )
        return ""

    @property
    def collapsed(self) -> bool:
        """Whether the answers show far fewer classes than the plain ones."""
        changed = CHANGED_ALTHOUGH_CAREFUL if self.careful else CHANGED
        return self.classes < COLLAPSED * self.plain_classes and self.disagreement > changed

    @property
    def good(self) -> bool:
        """Whether a careful rule has nothing against the state: a full window, and answers as varied as plain ones."""
        judged = not self.careful and self.samples >= WINDOW
        return judged and self.alone == 0 and self.classes >= COLLAPSED * self.plain_classes


class RecentAnswers:
    """A ring of the last answers of one stream.

    Args:
        careful: Whether the rule is itself the careful one.
    """

    def __init__(self, careful: bool = False) -> None:
        self.careful = careful
        self.seen = 0
        self._answers = np.zeros((WINDOW, 3), np.int32)
        self._lengths = np.zeros(WINDOW, np.float32)

    def add(self, answers: NDArray[np.integer[Any]], lengths: NDArray[np.floating[Any]]) -> None:
        """Add samples in order: plain, adapted and careful answers, (n, 3), and lengths of their logits, (n,)."""
        answers, lengths = answers[-WINDOW:], lengths[-WINDOW:]
        places = (self.seen + np.arange(len(answers))) % WINDOW
        self._answers[places], self._lengths[places] = answers, lengths
        self.seen += len(answers)

    def evidence(self) -> Evidence:
        """What the answers say together; NaN where there are none."""
        count = min(self.seen, WINDOW)
        if not count:
            nan = math.nan
            return Evidence(0, nan, nan, nan, nan, nan, nan, self.careful)
        plain, adapted, careful = self._answers[:count].T
        lengths = self._lengths[:count]
        top, classes = diversity(adapted)
        return Evidence(
            samples=count,
            disagreement=float((plain != adapted).mean()),
            alone=float(((adapted != careful) & (careful == plain)).mean()),
            classes=classes,
            plain_classes=diversity(plain)[1],
            top_share=top,
            outliers=float((lengths > FAR * np.median(lengths)).mean()),
            careful=self.careful,
        )


def diversity(labels: NDArray[np.integer[Any]]) -> tuple[float, float]:
    """Share of the most frequent label, and the effective number of labels."""
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(shares.max()), math.exp(-float((shares * np.log(shares)).sum()))
