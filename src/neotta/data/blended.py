"""Images under two corruptions at once, at severities between the published ones."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np

from neotta.data._numbers import checked_seed
from neotta.data.base import DatasetView, Image, ImageDataset
from neotta.data.corruptions import registry
from neotta.data.corruptions.registry import SEVERITIES
from neotta.errors import DataError

STRONGEST = float(SEVERITIES[-1])
_NAME = re.compile(r"(.+)@([\d.]+)\+(.+)@([\d.]+)")


class Blend(NamedTuple):
    """Two corruptions, one after the other, and how strong each is: from 0 (absent) to 5.

    A severity between two published ones is the pixelwise mean of the images at both, weighted by how near they are.
    """

    first: str
    first_severity: float
    second: str
    second_severity: float

    @property
    def name(self) -> str:
        """The name of the domain: `"fog@2.25+snow@1.5"`."""
        return f"{self.first}@{self.first_severity:g}+{self.second}@{self.second_severity:g}"

    @property
    def pair(self) -> str:
        """Both corruptions, whatever their severities: `"fog+snow"`."""
        return f"{self.first}+{self.second}"

    @classmethod
    def parse(cls, name: str) -> Blend | None:
        """Read the name of a domain; None if it is not that of a blend."""
        found = _NAME.fullmatch(name)
        return cls(found[1], float(found[2]), found[3], float(found[4])) if found else None


def scored_as(domain: str) -> str:
    """The name under which a domain is scored: blends of the same two corruptions together, others by themselves."""
    found = Blend.parse(domain)
    return domain if found is None else found.pair


class BlendedDataset(DatasetView):
    """The images of another dataset under a blend of two corruptions, made when an image is read.

    Args:
        dataset: Where the clean images come from; ids, labels and classes are passed through.
        blend: The corruptions and their severities.
        preset: "imagenet", "tiny" or "cifar", as for `CorruptedDataset`.
        seed: Another seed gives other noise.
    """

    def __init__(self, dataset: ImageDataset, blend: Blend, preset: str = "imagenet", seed: int = 0) -> None:
        for kind, severity in (blend[:2], blend[2:]):
            registry.check_choice(str(kind), SEVERITIES[0], preset)
            if not 0 <= float(severity) <= STRONGEST:
                raise DataError(f"severities of a blend go from 0 to {STRONGEST:g}, got {blend.name!r}")
        super().__init__(dataset, f"{dataset.domain}/{blend.name}")
        self.blend, self.preset, self.seed = blend, preset, checked_seed(seed)
        self.in_memory = False

    def read(self, index: int) -> Image:
        """Read one image and corrupt it twice."""
        image = self._partly(self.dataset.read(index), self.blend.first, self.blend.first_severity, index)
        return self._partly(image, self.blend.second, self.blend.second_severity, index)

    def _partly(self, image: Image, kind: str, severity: float, index: int) -> Image:
        low, high = math.floor(severity), math.ceil(severity)
        below = self._fully(image, kind, low, index)
        if low == high:
            return below
        above = self._fully(image, kind, high, index)
        if below.shape != above.shape:
            raise DataError(f"the corruption {kind!r} changes the size of images, so its severities cannot be blended")
        share = severity - low
        return np.rint((1 - share) * below.astype(np.float32) + share * above).astype(np.uint8)

    def _fully(self, image: Image, kind: str, severity: int, index: int) -> Image:
        if severity == 0:
            return image
        return registry.corrupt(image, kind, severity, self.preset, self.seed, image_id=self.ids[index])

    def _view(self) -> str:
        versions = "-".join(registry.version(kind) for kind in (self.blend.first, self.blend.second))
        return f"-{self.blend.name}-{self.preset}-{self.seed}-{versions}"
