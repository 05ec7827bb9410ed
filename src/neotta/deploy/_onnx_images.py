"""Convert images to the input of an exported graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from neotta.errors import InputError
from neotta.models.preprocess import Preprocess
from neotta.neo.statefile import Array

if TYPE_CHECKING:
    from PIL import Image

Images: TypeAlias = "Array | Sequence[Image.Image | Array]"


def prepared(images: Images, wanted: tuple[Any, ...], preprocess: Preprocess | None) -> Array:
    """Convert images to (B, 3, H, W) float32.

    Args:
        images: Images of any size, or a preprocessed batch; see `OnnxClassifier.predict`.
        wanted: The shape of an image that the graph takes, (3, H, W).
        preprocess: The preprocessing, if known.

    Raises:
        InputError: They have another shape or type, or the preprocessing is not known.
    """
    if hasattr(images, "detach"):  # a torch tensor
        images = images.detach().cpu().numpy()
    if isinstance(images, np.ndarray) and np.issubdtype(images.dtype, np.floating):
        if images.ndim != 4 or images.shape[1:] != wanted:
            raise InputError(f"expected preprocessed images of shape (batch, {wanted}), got {images.shape}")
        return np.ascontiguousarray(images, np.float32)
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise InputError(f"expected a list or an array (batch, height, width, 3), got shape {images.shape}")
    if not isinstance(images, (np.ndarray, Iterable)):
        raise InputError(f"expected a list or array of images, got {type(images).__name__}: put one image into a list")
    if preprocess is None:
        raise InputError("this file contains no preprocessing: pass preprocessed images, or export it "
                         "with preprocess=")  # fmt: skip
    ready = [preprocess.array(image) for image in images]
    return np.stack(ready) if ready else np.empty((0, *wanted), np.float32)
