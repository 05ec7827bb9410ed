"""Small real datasets, written in the layouts their authors publish."""

from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed, size=(24, 20)):
    """A noisy image of (width, height)."""
    width, height = size
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_image(path: Path, seed=0, size=(24, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture(seed, size)).save(path, "PNG" if path.suffix == ".png" else "JPEG")


def class_folders(root: Path, classes, per_class=2, name="{wnid}_{i}.JPEG", size=(24, 20)):
    for number, wnid in enumerate(classes):
        for i in range(per_class):
            write_image(root / wnid / name.format(wnid=wnid, i=i), seed=10 * number + i, size=size)
    return root


def corrupted(root: Path, corruptions, severities, classes, size=(24, 20)):
    for corruption in corruptions:
        for severity in severities:
            class_folders(root / corruption / str(severity), classes, size=size)
    return root


def cifar10_c(root: Path, corruptions=("fog", "snow"), per_severity=6):
    root.mkdir(parents=True, exist_ok=True)
    for number, corruption in enumerate(corruptions):
        rng = np.random.default_rng(number)
        np.save(root / f"{corruption}.npy", rng.integers(0, 256, (5 * per_severity, 32, 32, 3), dtype=np.uint8))
    np.save(root / "labels.npy", np.tile(np.arange(per_severity, dtype=np.uint8), 5))
    return root


def tiny_imagenet(root: Path, classes=("n02124075", "n04067472", "n01443537"), count=6):
    lines = []
    for i in range(count):
        write_image(root / "val" / "images" / f"val_{i}.JPEG", seed=i, size=(64, 64))
        lines.append(f"val_{i}.JPEG\t{classes[i % len(classes)]}\t0\t3\t63\t57")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(classes) + "\n")
    return root
