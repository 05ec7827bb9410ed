"""Holding the difficulty of a changing corruption constant, by the accuracy of the unadapted model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from neotta.data._numbers import check_real
from neotta.data.blended import Blend
from neotta.data.changing import MEASURED, Point, contour, held_out
from neotta.data.drawing import Indices
from neotta.errors import OptionError
from neotta.evaluate.domains import CLEAN, Domains
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.neo.head import NEOHead

IMAGES = 128
ACCURACY = 50.0
TOLERANCE = 5.0
"""Points of accuracy by which the strongest severity may be too easy."""

Progress = Callable[[int, int], None]
"""Called with the number of images done, and how many there are at most."""


class Path(NamedTuple):
    """What a calibration found.

    Attributes:
        points: The path.
        weak: Corruptions that are left out, because the unadapted model is better than asked for even at severity 5,
            and its accuracy there in percent.
    """

    points: list[Point]
    weak: dict[str, float]


class Calibration:
    """Accuracy of the unadapted model under blends of two corruptions; each is measured once.

    Embeddings come from the cache, so another process with the same cache measures nothing again.

    Args:
        data: Where the images are.
        cache: Where their embeddings are.
        head: The model's head.
    """

    def __init__(self, data: Domains, cache: EmbeddingCache, head: torch.nn.Linear | NEOHead) -> None:
        self._data, self._cache, self._head = data, cache, head
        self._known: dict[tuple[str, int], float] = {}

    def path(
        self, kinds: Sequence[str], accuracy: float = ACCURACY, images: int = IMAGES, progress: Progress | None = None
    ) -> Path:
        """A round trip through corruptions on which the unadapted model keeps an accuracy, as nearly as it can.

        Args:
            kinds: The corruptions, in the order in which they come.
            accuracy: To stay at, in percent.
            images: Number of images to measure on; they are not shown later.
            progress: Called as images are encoded.

        Raises:
            OptionError: Fewer than two corruptions are strong enough, or the model is no better on clean images.
        """
        check_real("accuracy", accuracy, 0)
        self._check(kinds)
        chosen, _ = held_out(len(self._data.dataset(CLEAN)), images)
        progressed = _Progress(progress, MEASURED * len(kinds) * images)
        clean = self._accuracy(CLEAN, chosen, progressed)
        if accuracy >= clean:
            raise OptionError(
                f"accuracy={accuracy:g} is asked for, but the unadapted model reaches {clean:.1f} % on {images} clean "
                "images: ask for less"
            )

        strongest = {kind: self._accuracy(f"{kind}/5", chosen, progressed) for kind in kinds}
        weak = {kind: round(reached, 1) for kind, reached in strongest.items() if reached > accuracy + TOLERANCE}
        strong = [kind for kind in kinds if kind not in weak]
        if len(strong) < 2:
            told = ", ".join(f"{kind} {reached:.1f} %" for kind, reached in strongest.items())
            raise OptionError(
                f"accuracy={accuracy:g} is asked for, and fewer than two corruptions bring the unadapted model down to "
                f"it: at severity 5 it reaches {told}"
            )

        def measure(blend: Blend) -> float:
            return self._accuracy(_domain(blend), chosen, progressed)

        legs = itertools.pairwise([*strong, strong[0]])
        return Path([point for leg in legs for point in contour(*leg, measure, accuracy)], weak)

    def _check(self, kinds: Sequence[str]) -> None:
        if not self._data.corrupted:
            raise OptionError("the order 'changing' corrupts the images itself: name corruptions (--corruptions)")
        if CLEAN in kinds or len(kinds) < 2:
            got = ", ".join(kinds)
            raise OptionError(f"the order 'changing' needs at least two corruptions, and not 'clean': got {got}")

    def _accuracy(self, name: str, chosen: Indices, progress: _Progress) -> float:
        """Accuracy in a domain, in percent."""
        key = (name, len(chosen))
        if key not in self._known:
            dataset = self._data.dataset(name)
            self._cache.fill(dataset, chosen, progress.encoded)
            embeddings, readable = self._cache.get(dataset, chosen)
            if dataset.labels is None or len(readable) == 0:
                raise OptionError("the order 'changing' is calibrated on labelled images: the data has none")
            labels = torch.from_numpy(dataset.labels[chosen[readable]])
            self._known[key] = 100 * float((self._predict(embeddings) == labels).double().mean())
        return self._known[key]

    def _predict(self, embeddings: torch.Tensor) -> torch.Tensor:
        weight, bias = self._head.weight, self._head.bias
        with torch.inference_mode():
            logits = torch.nn.functional.linear(embeddings.to(weight.device, weight.dtype), weight, bias).cpu()
        kept = self._data.kept
        return (logits if kept is None else logits[:, kept]).argmax(dim=1)


class _Progress:
    """Counts encoded images."""

    def __init__(self, report: Progress | None, most: int) -> None:
        self._report, self._most, self._done = report, most, 0

    def encoded(self, images: int) -> None:
        self._done += images
        if self._report is not None:
            self._report(self._done, self._most)


def _domain(blend: Blend) -> str:
    """The domain of a blend; one corruption alone at a published severity is its ordinary domain."""
    first, one, second, other = blend
    for kind, severity, rest in ((first, one, other), (second, other, one)):
        if rest == 0:
            return CLEAN if severity == 0 else f"{kind}/{severity:g}" if severity.is_integer() else blend.name
    return blend.name


def calibration_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What the records of changing corruptions say of how their difficulty was held constant."""
    lines: dict[str, None] = {}
    for record in records:
        if found := record.get("calibration"):
            low, high = found["reached"]
            weak = "".join(f"; {kind} is left out ({value:g} % at severity 5)" for kind, value in found["weak"].items())
            lines[
                f"Changing corruptions: on {found['images']} images that are not scored, the unadapted model reaches "
                f"{low:.0f} to {high:.0f} % along the whole path ({found['accuracy']:g} % was asked for){weak}."
            ] = None
    yield from lines
