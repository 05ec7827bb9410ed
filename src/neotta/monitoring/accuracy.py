"""How accurate answers are, estimated without labels from the last samples, where that can be done at all.

Two things are measured on every sample: how sure the answer is, and how often it stays the same when a part of the
embedding is dropped (the idea of AETTA, "Label-Free Accuracy Estimation for Test-Time Adaptation", CVPR 2024; only the
head is repeated). Both are too high under a shift, and their product is less so. The interval holds the sampling noise
and the error of the estimate itself, as measured by `benchmarks/estimators.py`.

Where most answers are the same, or of a few classes, nothing is estimated: a model that has collapsed looks like a
stream of these classes, and only a person can tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neotta.adapters.base import Adapter, EmbeddingAdapter
from neotta.errors import InputError
from neotta.neo.context import paused
from neotta.neo.model_inputs import evaluating, logits_of
from neotta.neo.output_head import OutputHead
from neotta.neo.surgery import heads

WINDOW = 256  # last samples of a stream that an estimate is about
FEWEST = 32  # samples that it needs
FEW_CLASSES = 0.5  # least entropy of the answers, as a part of that of as many answers spread over all classes
DROPPED, MASKS = 0.4, 8  # share of the embedding that is dropped, and how often
Array = np.ndarray[Any, Any]

ERROR = {"confidence": (0.63, 0.09), "product": (0.42, 0.20)}
"""By how much estimates are too high and too low: 95 % of the streams of each model in `benchmarks/estimators.py` are
within. Under a strong shift a model is surer than it should be, and so both err towards too high."""


class Estimate(NamedTuple):
    """An estimate of accuracy with its interval.

    Attributes:
        value: The accuracy, 0 to 1; NaN, as the interval, if it is not known.
        low: Lower end of the interval.
        high: Upper end.
        by: `"product"` of how sure and how stable the answers are, or `"confidence"` alone; empty if it is not known.
        reason: Why it is not known.
    """

    value: float
    low: float
    high: float
    by: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"not known: {self.reason}"
        return f"{self.value:.0%} ({self.low:.0%} to {self.high:.0%})"


def accuracy(model: nn.Module | Adapter[Any], images: Tensor, *, batch_size: int = 64) -> Estimate:
    """Estimate how many of the last images a model answers correctly, without labels; it learns nothing from them.

    ```python
    neotta.adapt(model)
    model(images)
    print(neotta.accuracy(model, images))  # 71% (28% to 91%), or why it is not known
    ```

    The interval held the truth in 95 % of the measured streams under these conditions, and it is wide:

    - the images are like those that will come, at least 32; the last 256 count;
    - the classes are mixed: no class has most of the answers;
    - the shift is no stronger than corruptions of severity 5;
    - the model is as sure of itself as the classifiers it was measured on.

    Nothing shows from the images alone whether the last two hold: where it matters, let a person judge some answers.

    Args:
        model: An adapted model, or an adapter. Methods that work on embeddings, and models with one linear head, also
            use how stable the answers are, and err less. For a model with streams call it inside `neotta.streams`.
        images: Preprocessed images, (N, 3, H, W), or what else the model takes, in order.
        batch_size: Number of images in a forward pass.

    Returns:
        The estimate, or the reason why the accuracy is not known.

    Raises:
        InputError: There are no images.
        NotAdaptedError: The model is not adapted.
    """
    if not isinstance(images, Tensor) or len(images) == 0:
        raise InputError("expected a tensor of images, at least one: the estimate is about them")
    answers = _answers_of_adapter if isinstance(model, Adapter) else _answers_of_model
    with torch.no_grad(), paused(model):
        parts = [answers(model, batch) for batch in torch.split(images[-WINDOW:], batch_size)]
    recent = Recent(parts[0][0].shape[1])
    for logits, stable in parts:
        recent.add(logits.float().cpu().numpy(), stable)
    return recent.estimate()


def _answers_of_adapter(adapter: Any, batch: Tensor) -> tuple[Tensor, Array | None]:
    if not isinstance(adapter, EmbeddingAdapter):
        return adapter(batch), None
    with evaluating(list(adapter.model.modules())):
        rows = adapter.encode(batch)
        logits = adapter.predict_embeddings(rows)
        return logits, stability(adapter.classify, rows, adapter.classify(rows), logits)


def _answers_of_model(model: Any, batch: Tensor) -> tuple[Tensor, Array | None]:
    neo, *more = heads(model).values()
    caught: list[Tensor] = []
    with neo.register_forward_pre_hook(lambda module, args: caught.append(args[0])):
        logits = logits_of(model(batch))
    if more or isinstance(neo, OutputHead):
        return logits, None
    return logits, stability(neo.classify, caught[0], neo.classify(caught[0]), logits)


class Recent:
    """The last samples of one stream.

    ```python
    recent = Recent(classes=3)
    recent.add(numpy.random.randn(64, 3))
    recent.estimate().by  # 'confidence': nothing is known of dropout
    ```

    Args:
        classes: Number of classes C.
    """

    def __init__(self, classes: int) -> None:
        self.classes, self.seen = classes, 0
        self._kept = np.zeros(WINDOW, np.dtype([("answer", "<i4"), ("sure", "<f4"), ("stable", "<f4")]))

    def add(self, logits: Array, stable: Array | None = None) -> None:
        """Add samples in order: their logits, (n, C), and what `stability` says of them, (n,)."""
        new = np.zeros(len(logits), self._kept.dtype)
        new["answer"], new["sure"] = logits.argmax(1), torch.from_numpy(logits).softmax(1).amax(1).numpy()
        new["stable"] = np.nan if stable is None else stable
        places = (self.seen + np.arange(len(new))) % WINDOW
        self._kept[places[-WINDOW:]] = new[-WINDOW:]
        self.seen += len(new)

    def _last(self) -> Array:
        return self._kept[: min(self.seen, WINDOW)]

    def _shares(self) -> Array:
        return np.bincount(self._last()["answer"], minlength=self.classes) / max(len(self._last()), 1)

    @property
    def one_answer(self) -> bool:
        """Whether most of the last answers are one class."""
        return self.seen >= FEWEST and bool(self._shares().max() > most(self.classes))

    def estimate(self) -> Estimate:
        """The accuracy of the last samples, or why it is not known."""
        rows = self._last()
        if len(rows) < FEWEST:
            return _unknown(f"{len(rows)} samples are too few, it needs {FEWEST}")
        shares = self._shares()
        if self.one_answer:
            return _unknown(f"{shares.max():.0%} of the last answers are one class, as after a collapse")
        some = shares[shares > 0]
        if -float((some * np.log(some)).sum()) < FEW_CLASSES * math.log(min(self.classes, len(rows))):
            return _unknown("the last answers are of few classes, as after a collapse")
        value, by = float(rows["sure"].mean()), "confidence"
        stable = rows["stable"][np.isfinite(rows["stable"])]
        if len(stable) >= FEWEST:
            value, by = value * float(stable.mean()), "product"
        samples = len(rows) if by == "confidence" else len(stable)
        return Estimate(value, *interval(value, samples, ERROR[by]), by)


def most(classes: int) -> float:
    """The share of a class beyond which it has most of the answers: half of those beyond an even share."""
    return (1 + 1 / classes) / 2


def _unknown(reason: str) -> Estimate:
    return Estimate(math.nan, math.nan, math.nan, "", reason)


def stability(classify: Callable[[Tensor], Tensor], embeddings: Tensor, plain: Tensor, adapted: Tensor) -> Array:
    """How often each adapted answer stays the same when a part of the embedding is dropped, (n,).

    The linear head of the plain model maps embeddings, (n, d), to its logits, (n, C).
    """
    kept = torch.rand(MASKS, embeddings.shape[1], generator=torch.Generator().manual_seed(0)) >= DROPPED
    masks = kept.to(embeddings) / (1 - DROPPED)
    with torch.inference_mode():
        logits = classify((embeddings * masks[:, None]).flatten(0, 1)).view(MASKS, len(embeddings), -1)
        changed = logits + (adapted - plain)  # (MASKS, n, C)
        same = changed.argmax(2) == adapted.argmax(1)
    return same.float().mean(0).cpu().numpy()


def interval(value: float, samples: int, error: tuple[float, float]) -> tuple[float, float]:
    """The interval of an estimate: sampling noise (90 %) and the estimator's own error, above and below, together."""
    chance = 1.645 * math.sqrt(max(value * (1 - value), 0.01) / samples)
    below, above = (math.hypot(chance, each) for each in error)
    return max(0.0, value - below), min(1.0, value + above)
