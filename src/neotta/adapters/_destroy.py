"""DeYO's ways to destroy the shape of objects in images and keep the rest."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def shuffle_patches(images: Tensor, permutations: Tensor, antialias: bool = True) -> Tensor:
    """Cut images into a grid of patches and rearrange them.

    Args:
        images: (B, C, H, W); resized, and back again, if the grid does not fit them.
        permutations: (B, L * L): which patch, counted row by row, comes to each position.
        antialias: Whether resizing avoids aliasing.
    """
    count, channels, height, width = images.shape
    side = round(permutations.shape[1] ** 0.5)
    rows, columns = max(height // side, 1), max(width // side, 1)
    fitting = _resize(images, (rows * side, columns * side), antialias)
    patches = fitting.reshape(count, channels, side, rows, side, columns).permute(0, 2, 4, 1, 3, 5)
    chosen = permutations.to(images.device).view(count, -1, 1, 1, 1).expand(-1, -1, channels, rows, columns)
    moved = patches.reshape(count, side * side, channels, rows, columns).gather(1, chosen)
    back = moved.view(count, side, side, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
    return _resize(back.reshape(fitting.shape), (height, width), antialias)


def shuffle_pixels(images: Tensor, permutation: Tensor) -> Tensor:
    """Rearrange the pixels of all images, (B, C, H, W), alike; the permutation is (H * W,)."""
    return images.flatten(2)[:, :, permutation.to(images.device)].view(images.shape)


def occlude(images: Tensor, size: int, row: int, column: int) -> Tensor:
    """Replace a square of each image, (B, C, H, W), by the image's mean colour."""
    hidden = images.clone()
    hidden[:, :, row : row + size, column : column + size] = images.mean(dim=(2, 3), keepdim=True)
    return hidden


def _resize(images: Tensor, size: tuple[int, int], antialias: bool) -> Tensor:
    if images.shape[2:] == torch.Size(size):
        return images
    return functional.interpolate(images, size, mode="bilinear", antialias=antialias, align_corners=False)
