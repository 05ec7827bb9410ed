"""The demonstration: what corrupted images do to the bundled model, and what NEO wins back.

`run` computes; `neotta.report.demo` makes the page of it and `neotta demo` is the command.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.data.handwritten import Digits, digits
from neotta.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor, nn

CLEAN = "clean"
DOMAINS = (CLEAN, *CORRUPTIONS)
SEVERITY = 5
"""The default: the level at which methods are usually compared, and where this model is hurt but still works."""

BATCH_SIZE = 64
LEVEL = 0.05
"""A difference that chance explains more often than this is not called one."""


@dataclass(frozen=True)
class Answers:
    """What a model says of N images.

    Attributes:
        classes: The class it chooses, (N,) int64.
        confidence: The probability it gives that class, (N,) float32.
    """

    classes: NDArray[np.int64]
    confidence: NDArray[np.float32]


@dataclass(frozen=True)
class Domain:
    """One kind of images, answered by the model as it is and by the model with NEO.

    Attributes:
        name: `"clean"` or the name of the corruption.
        images: As the model saw them, (N, 32, 32, 3) uint8, in the order of the stream.
        labels: The truth, (N,) int64.
        without: The answers of the model as it is.
        neo: The answers of the same model with NEO, adapting as it goes.
    """

    name: str
    images: Image
    labels: NDArray[np.int64]
    without: Answers
    neo: Answers

    @property
    def accuracy_without(self) -> float:
        """Fraction of correct answers of the model as it is."""
        return float((self.without.classes == self.labels).mean())

    @property
    def accuracy_neo(self) -> float:
        """Fraction of correct answers with NEO."""
        return float((self.neo.classes == self.labels).mean())

    @property
    def fixed(self) -> NDArray[np.int64]:
        """The images that only NEO gets right."""
        return np.flatnonzero((self.without.classes != self.labels) & (self.neo.classes == self.labels))

    @property
    def broken(self) -> NDArray[np.int64]:
        """The images that only the model as it is gets right."""
        return np.flatnonzero((self.without.classes == self.labels) & (self.neo.classes != self.labels))

    @property
    def verdict(self) -> int:
        """1 where NEO is better, -1 where it is worse, 0 where the difference may be chance."""
        return verdict(len(self.fixed), len(self.broken))


@dataclass(frozen=True)
class Demo:
    """All that was measured.

    Attributes:
        domains: The clean images first, then the corruptions.
        severity: Of the corruptions, 1 to 5.
        seed: Behind the order of the images and the random parts of the corruptions.
        batch_size: How many images the model saw at a time.
        parameters: The size of the model.
        state: The size of NEO's state: how many numbers it keeps beside the model.
    """

    domains: tuple[Domain, ...]
    severity: int
    seed: int
    batch_size: int
    parameters: int
    state: int

    @property
    def clean(self) -> Domain:
        """The domain without corruption."""
        return self.domains[0]

    @property
    def corrupted(self) -> tuple[Domain, ...]:
        """The domains that the means are taken over."""
        return self.domains[1:]

    @property
    def mean_without(self) -> float:
        """Mean accuracy over the corruptions of the model as it is."""
        return float(np.mean([domain.accuracy_without for domain in self.corrupted]))

    @property
    def mean_neo(self) -> float:
        """Mean accuracy over the corruptions with NEO."""
        return float(np.mean([domain.accuracy_neo for domain in self.corrupted]))

    @property
    def verdict(self) -> int:
        """As for one domain, for the mean: each image counts once, with what NEO wins on it over all corruptions."""
        won = np.zeros(len(self.clean.labels), dtype=np.int64)
        for domain in self.corrupted:
            won[domain.fixed] += 1
            won[domain.broken] -= 1
        return verdict(int((won > 0).sum()), int((won < 0).sum()))


def run(
    severity: int = SEVERITY,
    seed: int = 0,
    samples: int | None = None,
    on_domain: Callable[[str, int, int], None] | None = None,
) -> Demo:
    """Measure the bundled model without and with NEO, on clean images and on each of the 15 corruptions.

    Every domain is seen once, in batches, by the model as it is and by the model with NEO, which predicts and adapts
    batch by batch and starts anew in each domain.

    Args:
        severity: 1 (slight) to 5 (strong).
        seed: Behind the order of the images and the random parts of the corruptions.
        samples: How many of the 600 test images to use; all by default.
        on_domain: Called before each domain with its name, how many are done, and how many there are.
    """
    import torch

    import neotta
    from neotta.models.load import load_model

    data = digits("test")
    if samples is not None and not 1 <= samples <= len(data):
        raise OptionError(f"samples is {samples}: there are 1 to {len(data)} test images")
    if seed < 0:
        raise OptionError(f"seed is {seed}: it is a whole number from 0 on")
    order = np.random.default_rng(seed).permutation(len(data))[:samples]
    model, preprocess, *_ = load_model("digits")
    adapted = neotta.adapt(copy.deepcopy(model))
    domains = []
    for done, name in enumerate(DOMAINS):
        if on_domain is not None:
            on_domain(name, done, len(DOMAINS))
        neotta.reset(adapted)
        images = _images(data, order, name, severity, seed)
        batches = torch.split(preprocess.batch(images), BATCH_SIZE)
        domains.append(Domain(name, images, data.labels[order], _answers(model, batches), _answers(adapted, batches)))
    return Demo(
        domains=tuple(domains),
        severity=severity,
        seed=seed,
        batch_size=BATCH_SIZE,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        state=neotta.head(adapted).in_features,
    )


def verdict(won: int, lost: int) -> int:
    """1 or -1 if one side has won more often than chance explains, else 0."""
    return int(np.sign(won - lost)) if sign_test(won, lost) < LEVEL else 0


def sign_test(won: int, lost: int) -> float:
    """How often a fair coin splits `won + lost` throws at least as unevenly (exact, two-sided)."""
    throws = won + lost
    tail = sum(math.comb(throws, k) for k in range(min(won, lost) + 1))
    return min(1.0, 2 * tail / (1 << throws))


def _images(data: Digits, order: NDArray[np.int64], name: str, severity: int, seed: int) -> Image:
    clean = [data.read(index) for index in order]
    if name == CLEAN:
        return np.stack(clean)
    ids = [data.ids[index] for index in order]
    return np.stack(
        [corrupt(image, name, severity, "cifar", seed, image_id=id) for image, id in zip(clean, ids, strict=True)]
    )


def _answers(model: nn.Module, batches: Sequence[Tensor]) -> Answers:
    """Let a model answer batch by batch."""
    import torch

    with torch.inference_mode():
        confidence, classes = torch.cat([model(batch).softmax(dim=1) for batch in batches]).max(dim=1)
    return Answers(classes.numpy(), confidence.numpy())
