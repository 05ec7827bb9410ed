"""Single steps of the augmentation, and all of them with given parameters, without randomness."""

from __future__ import annotations

from neotta.adapters.augment import FULL, pipeline, positions, reflect, sample, smooth


def augment(images, drawn, style=FULL):
    return pipeline(images, drawn, style)(images).clamp(0, 1)


def affine(images, angle, translate, scale, pad=(0, 0)):
    return sample(images, positions(images, angle, translate, scale, pad, tuple(images.shape[2:])))


def blur(images, sigma):
    return smooth(reflect(images, 2, 2), sigma)
