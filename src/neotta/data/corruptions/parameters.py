"""What each severity means: the parameters of every corruption in the three published sets.

`imagenet` was made for pictures of 224 pixels, `tiny` for 64, `cifar` for 32. The numbers of one severity are
the arguments of the corruption's function, in its order.
"""

from __future__ import annotations

Severities = tuple[tuple[float, ...], ...]


def _each(*values: float) -> Severities:
    return tuple((value,) for value in values)


IMAGENET: dict[str, Severities] = {
    "gaussian_noise": _each(0.08, 0.12, 0.18, 0.26, 0.38),
    "shot_noise": _each(60, 25, 12, 5, 3),
    "impulse_noise": _each(0.03, 0.06, 0.09, 0.17, 0.27),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": _each(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _each(0.4, 0.3, 0.2, 0.1, 0.05),
    # 488 = 2 * 244: a slip for 224 in the public scripts, kept because the published pictures have it.
    "elastic_transform": (
        (488, 170.8, 24.4),
        (488, 19.52, 48.8),
        (12.2, 2.44, 4.88),
        (17.08, 2.44, 4.88),
        (29.28, 2.44, 4.88),
    ),
    "pixelate": _each(0.6, 0.5, 0.4, 0.3, 0.25),
    "jpeg_compression": _each(25, 18, 15, 10, 7),
    "speckle_noise": _each(0.15, 0.20, 0.35, 0.45, 0.60),
    "gaussian_blur": _each(1, 2, 3, 4, 6),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

TINY: dict[str, Severities] = {
    "gaussian_noise": _each(0.04, 0.08, 0.12, 0.15, 0.18),
    "shot_noise": _each(250, 100, 50, 30, 15),
    "impulse_noise": _each(0.01, 0.02, 0.05, 0.08, 0.14),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": ((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": _each(0.1, 0.2, 0.3, 0.4, 0.5),
    "contrast": _each(0.4, 0.3, 0.2, 0.1, 0.05),
    "elastic_transform": (
        (0, 0, 5.12),
        (3.2, 19.2, 3.84),
        (6.4, 5.12, 3.84),
        (6.4, 1.92, 1.92),
        (10.24, 1.92, 1.28),
    ),
    "pixelate": _each(0.9, 0.8, 0.7, 0.6, 0.5),
    "jpeg_compression": _each(65, 58, 50, 40, 25),
    "speckle_noise": _each(0.15, 0.20, 0.25, 0.30, 0.35),
    "gaussian_blur": _each(0.5, 0.75, 1, 1.25, 1.5),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

CIFAR: dict[str, Severities] = {
    "gaussian_noise": _each(0.04, 0.06, 0.08, 0.09, 0.10),
    "shot_noise": _each(500, 250, 100, 75, 50),
    "impulse_noise": _each(0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": TINY["zoom_blur"],
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": _each(0.05, 0.1, 0.15, 0.2, 0.3),
    "contrast": _each(0.75, 0.5, 0.4, 0.3, 0.15),
    "elastic_transform": (
        (0, 0, 2.56),
        (1.6, 6.4, 2.24),
        (2.56, 1.92, 1.92),
        (3.2, 1.28, 1.6),
        (3.2, 0.96, 0.96),
    ),
    "pixelate": _each(0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg_compression": _each(80, 65, 58, 50, 40),
    "speckle_noise": _each(0.06, 0.10, 0.12, 0.16, 0.20),
    "gaussian_blur": _each(0.4, 0.6, 0.7, 0.8, 1),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

PRESETS: dict[str, dict[str, Severities]] = {"imagenet": IMAGENET, "tiny": TINY, "cifar": CIFAR}
"""Preset to corruption to the parameters of severities 1 to 5."""

TEXTURE_SCALE: dict[str, float] = {"imagenet": 1.0, "tiny": 0.3, "cifar": 0.2}
"""By how much each preset shrinks the textures of frost."""
