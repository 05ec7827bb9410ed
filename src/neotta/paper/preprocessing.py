"""The preprocessing of the paper's protocol, where it differs from what a model has on record."""

from __future__ import annotations

from typing import Any

from neotta.models.preprocess import Preprocess

SIZE, MIDDLE = (224, 224), (0.5, 0.5, 0.5)
"""The paper's models: ImageNet ViTs of timm, of this input size and normalisation."""
SHORTER_SIDE = {"resize": 256, "crop": True, "interpolation": "bilinear"}
WHOLE = {"resize": list(SIZE), "crop": False, "interpolation": "bilinear"}
PROTOCOL: dict[str, dict[str, Any]] = {
    "imagenet": SHORTER_SIDE,
    "imagenet-r": SHORTER_SIDE,
    "imagenet-sketch": SHORTER_SIDE,
    "imagenet-v2": SHORTER_SIDE,
    "cifar-10": WHOLE,
    "cifar10-c": WHOLE,
}
"""By the layout of the data. Images that have the input size already, as ImageNet-C's, are not resized at all."""


def published_preprocess(layout: str, used: Preprocess) -> dict[str, Any]:
    """The values in which the paper's preprocessing differs from what would be used; empty if it does not.

    Args:
        layout: Of the data.
        used: What the model has on record, and `resize=None` if the images are not resized.
    """
    if (used.size, used.mean, used.std) != (SIZE, MIDDLE, MIDDLE) or used.resize is None:
        return {}
    wanted, now = PROTOCOL.get(layout, {}), used.to_dict()
    return wanted if any(now[name] != value for name, value in wanted.items()) else {}


def in_words(used: Preprocess) -> str:
    """What is done to images: `shorter side to 256 (bilinear), the middle 224 x 224`."""
    height, width = used.size
    if isinstance(used.resize, int):
        first = f"shorter side to {used.resize} ({used.interpolation})"
    elif used.resize is not None:
        first = f"resized to {used.resize[0]} x {used.resize[1]} ({used.interpolation})"
    else:
        first = "not resized"
    return f"{first}, the middle {height} x {width}" if used.crop else first
