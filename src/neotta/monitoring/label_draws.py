"""Labels in a stream: which samples are new draws of a label, and whether a change is one of labels alone.

Frames of a camera depend on each other: a scene stays, and with it the label. A new scene moves the embeddings as a
change of domain does. Two measures tell them apart:

- Of each run of the same answer, only the first sample and every 16th after it are tested. Frames inside a run depend
  on each other; the first samples of runs are nearly independent draws. One or two other answers do not end a run of
  four or more: they may be mistakes, which in a long burst of a class all point the same way.
- After an alarm, each run of new samples is compared with the mean of its own class before. If classes alone changed,
  these residuals average to zero; if the domain changed, they all point the same way. A run counts as one sample.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from neotta.monitoring.rank_evidence import Floats
from neotta.neo.head import NEOHead

Labels = NDArray[np.int64]
FEWEST = 4  # number of samples of a class before its mean can be compared with
CLEAR = 2.5
"""A mean residual this many times as long as noise alone makes it is a shift. docs/monitoring.md has other values."""

EVERY = 16  # a long run of the same answer is tested this often: a shift may have made all answers the same
SETTLED, OTHERS = 4, 3
"""A run of at least so many samples ends only where so many other answers follow each other: fewer may be mistakes."""

LATE = 64  # number of samples after which one is added to the means: until then it may belong to another domain already


class LabelDraws:
    """The draws of labels in a stream, by the plain answers of a head."""

    def __init__(self, head: NEOHead) -> None:
        self._head = head
        self._label, self._length, self._others = -1, 0, 0
        self.restart()

    def restart(self) -> None:
        """Forget the means of the classes: a new domain has begun."""
        classes, features = self._head.out_features, self._head.in_features
        self._counts, self._means, self._scatter = np.zeros(classes), np.zeros((classes, features)), 0.0
        self._waiting: Floats = np.empty((0, features))

    def starts(self, rows: Floats) -> Labels:
        """Positions in a batch, (n, d), that are tested: the first of each run, and every 16th after it."""
        tested = []
        for place, label in enumerate(self._answers(rows).tolist()):
            self._others = 0 if label == self._label else self._others + 1
            if self._others >= (OTHERS if self._length >= SETTLED else 1):
                self._label, self._length, self._others = label, 0, 0
            if self._length % EVERY == 0:
                tested.append(place)
            self._length += 1
        return np.array(tested, dtype=np.int64)

    def remember(self, rows: Floats) -> None:
        """Add tested samples, (n, d), to the means of their classes."""
        waiting = np.concatenate([self._waiting, rows])
        ready = max(0, len(waiting) - LATE)
        self._waiting, rows = waiting[ready:], waiting[:ready]
        labels = self._answers(rows)
        for label in np.unique(labels):
            mine = rows[labels == label]
            count, total = len(mine), self._counts[label] + len(mine)
            step = mine.mean(0) - self._means[label]
            self._scatter += float(np.square(mine - mine.mean(0)).sum())
            self._scatter += float(step @ step) * self._counts[label] * count / total
            self._means[label] += step * count / total
            self._counts[label] = total

    def shifted(self, rows: Floats) -> bool:
        """Whether samples, (n, d), moved within their classes; False if only the classes changed.

        Without samples of classes that were seen before, a shift cannot be told from new labels: the answer is False.
        """
        labels = self._answers(rows)
        known = self._counts[labels] >= FEWEST
        freedom = self._counts.sum() - np.count_nonzero(self._counts)
        if not known.any() or freedom < 1:
            return False
        rows, labels = rows[known], labels[known]
        first = np.flatnonzero(np.diff(labels, prepend=-1))  # where each run begins
        runs = np.add.reduceat(rows - self._means[labels], first) / np.diff(first, append=len(labels))[:, None]
        residual = runs.mean(0)
        # Variance of the mean of n residuals, each with the error of its class mean.
        noise = self._scatter / freedom * (1 / len(runs) + float(np.mean(1 / self._counts[labels[first]])))
        return bool(residual @ residual > CLEAR**2 * noise)

    def _answers(self, rows: Floats) -> Labels:
        weight = self._head.weight
        logits = self._head.classify(torch.from_numpy(rows).to(weight.device, weight.dtype))
        answers: Labels = logits.argmax(1).cpu().numpy()
        return answers
