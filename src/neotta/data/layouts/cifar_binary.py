"""Binary files of CIFAR: for each image its labels, one byte each, then the red, the green and the blue plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neotta.errors import DataError

PIXELS = 3 * 32 * 32


def read_binary(path: Path, labels: int, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file.

    Args:
        path: The file.
        labels: How many labels an image has.
        name: Of the dataset.

    Returns:
        Images, (N, 32, 32, 3), and the last of the labels of each, (N,).

    Raises:
        DataError: It is empty, truncated, or something else.
    """
    content, size = np.fromfile(path, dtype=np.uint8), labels + PIXELS
    if content.size == 0 or content.size % size:
        raise DataError(
            f"{str(path)!r} has {content.size:,} bytes, not a multiple of {size}: it is truncated, "
            f"or not a binary batch of {name}"
        )
    records = content.reshape(-1, size)
    return records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, labels - 1]
