"""RoTTA's memory: a few recent, certain images, about as many of each predicted class."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from neotta.errors import StateMismatchError


class Entry(NamedTuple):
    """An image, (3, H, W), the class it was predicted as, and how uncertain that was."""

    image: Tensor
    label: int
    uncertainty: float


class MemoryBank:
    """Images that replace each other by age and uncertainty.

    Args:
        size: The most images it holds, N.
        classes: The number of classes, C; each may have N / C images before it has to give up its own.
        age_weight: Weight of the age in the score by which images are given up, lambda_t.
        uncertainty_weight: Weight of the uncertainty, lambda_u.
    """

    def __init__(self, size: int, classes: int, age_weight: float, uncertainty_weight: float) -> None:
        self.size = size
        self.classes = classes
        self.age_weight = age_weight
        self.uncertainty_weight = uncertainty_weight
        self._entries: list[Entry] = []
        self._ages: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, new: Entry) -> bool:
        """Take in an image if there is room, or if it scores lower than the worst of those it may replace."""
        rivals = self._rivals(new.label)
        accepted = True
        if rivals:
            worst = max(rivals, key=lambda index: (self._score(index), self._place(index)))
            accepted = self._score(worst) > self.score(0, new.uncertainty)
            if accepted:
                del self._entries[worst], self._ages[worst]
        if accepted:
            self._entries.append(new._replace(image=new.image.clone()))  # not a view that keeps a whole batch alive
            self._ages.append(0)
        self._ages = [age + 1 for age in self._ages]
        return accepted

    def score(self, age: int, uncertainty: float) -> float:
        """How readily an image is given up."""
        largest = math.log(self.classes) if self.classes > 1 else 1.0
        timely = self.age_weight / (1 + math.exp(-age / self.size))
        return timely + self.uncertainty_weight * uncertainty / largest

    def _score(self, index: int) -> float:
        return self.score(self._ages[index], self._entries[index].uncertainty)

    def _place(self, index: int) -> tuple[int, int]:
        """Where an image stands: classes in their order, then the order of insertion."""
        return self._entries[index].label, index

    def _rivals(self, label: int) -> list[int]:
        """The images that one of this class may replace; none if there is room for it."""
        counts = Counter(entry.label for entry in self._entries)
        if counts[label] >= self.size / self.classes:
            chosen = {label}
        elif len(self) < self.size:
            return []
        else:
            chosen = {each for each, count in counts.items() if count == max(counts.values())}
        return [index for index, entry in enumerate(self._entries) if entry.label in chosen]

    # ---- as tensors

    def content(self) -> dict[str, Tensor]:
        """Images, (n, 3, H, W), labels, ages and uncertainties, (n,), class by class."""
        order = sorted(range(len(self)), key=self._place)
        entries = [self._entries[index] for index in order]
        return {
            "images": torch.stack([entry.image for entry in entries]) if entries else torch.empty(0, 0, 0, 0),
            "labels": torch.tensor([entry.label for entry in entries], dtype=torch.int64),
            "ages": torch.tensor([self._ages[index] for index in order], dtype=torch.int64),
            "uncertainties": torch.tensor([entry.uncertainty for entry in entries], dtype=torch.float64),
        }

    def load(self, content: Mapping[str, Tensor], like: Tensor) -> None:
        """Take over what `content` gave; the order among classes does not matter.

        Args:
            content: From `content`.
            like: A tensor with the dtype and device of the images.

        Raises:
            StateMismatchError: The parts do not belong together, or to these classes.
        """
        labels = content["labels"].tolist()
        if len({len(part) for part in content.values()}) > 1 or not all(0 <= label < self.classes for label in labels):
            raise StateMismatchError("the memory of this state is damaged, or of another number of classes")
        images = content["images"].to(like).clone()
        self._entries = [Entry(*each) for each in zip(images, labels, content["uncertainties"].tolist(), strict=True)]
        self._ages = content["ages"].tolist()
