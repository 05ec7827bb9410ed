"""Write the bundled digits, `src/neotta/assets/digits.safetensors`, from scikit-learn's copy.

The split is made here, once, and stored with the images: of each class `TEST_PER_CLASS` images, drawn at
random with a fixed seed, are for testing, the rest (about two thirds) for training.

    python scripts/make_digits.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits

from neotta._files import atomic

TARGET = Path(__file__).resolve().parent.parent / "src" / "neotta" / "assets" / "digits.safetensors"
SEED = 0
TEST_PER_CLASS = 60


def main() -> None:
    """Write the file and say what is in it."""
    bunch = load_digits()
    images = bunch.images.astype(np.uint8)  # whole numbers 0..16, exact
    labels = bunch.target.astype(np.uint8)

    random = np.random.default_rng(SEED)
    is_test = np.zeros(len(labels), dtype=np.uint8)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        is_test[random.permutation(members)[:TEST_PER_CLASS]] = 1

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with atomic(TARGET) as temporary:
        save_file({"images": images, "labels": labels, "is_test": is_test}, temporary)
    print(f"{TARGET.name}: {int((is_test == 0).sum())} training and {int(is_test.sum())} test images")


if __name__ == "__main__":
    main()
