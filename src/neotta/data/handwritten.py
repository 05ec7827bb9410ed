"""The bundled handwritten digits: 1,797 small pictures that need no download.

They are the test part of *Optical Recognition of Handwritten Digits* (E. Alpaydin and C. Kaynak, UCI
Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, licensed CC BY 4.0), as distributed by
scikit-learn: 8 x 8 grey values from 0 to 16. Here they are enlarged to 32 x 32 RGB, the size of CIFAR
images, so that the corruptions of CIFAR-10-C apply to them as they are.

The split is fixed and stored with the images: 60 test images of each class (600), the other 1,197 for
training. Both parts come from the same writers.
"""

from __future__ import annotations

from importlib import resources
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from neotta.data.base import Image
from neotta.data.layouts.arrays import ArrayDataset
from neotta.errors import OptionError

Subset = Literal["train", "test", "all"]

SIDE = 32
"""Height and width of the images, in pixels."""

_BRIGHTEST = 16


def digits(split: Subset = "test") -> ArrayDataset:
    """Load one part of the bundled digits, 32 x 32 RGB images, white on black.

    Args:
        split: `"test"` (600 images, 60 of each class), `"train"` (1,197 images, which the model saw), or `"all"` of
            them, for models that were trained on other data.
    """
    if split not in get_args(Subset):
        raise OptionError(f"split is {split!r}: choose 'train', 'test' or 'all'")
    from safetensors.numpy import load

    raw = load(resources.files("neotta").joinpath("assets", "digits.safetensors").read_bytes())
    rows = np.arange(len(raw["is_test"])) if split == "all" else np.flatnonzero(raw["is_test"] == (split == "test"))
    return ArrayDataset(
        domain=f"digits/{split}",
        ids=[f"{row:04d}" for row in rows],
        images=np.stack([_enlarge(image) for image in raw["images"][rows]]),
        labels=raw["labels"][rows].astype(np.int64),
        classes=tuple("0123456789"),
    )


def _enlarge(grey: NDArray[np.uint8]) -> Image:
    """Make (8, 8) values in 0..16 a smooth (32, 32, 3) picture with values in 0..255."""
    values = grey.astype(np.float32) * (255 / _BRIGHTEST)
    large = Pillow.fromarray(values).resize((SIDE, SIDE), Pillow.Resampling.BICUBIC)
    pixels = np.clip(np.rint(np.asarray(large)), 0, 255).astype(np.uint8)  # bicubic overshoots at edges
    return np.repeat(pixels[:, :, None], 3, axis=2)
