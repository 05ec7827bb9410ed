"""The random augmentation of CoTTA and Surgeon: colours, a small rotation, shift and zoom, blur, mirror image, noise.

Images are pixels in [0, 1], (B, 3, H, W), or (B, 1, H, W) in grey; float32 or float64. Each operation is a function;
`augment` is all of them with given parameters, and `Augmentation` draws the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from neotta.errors import InputError

Range = tuple[float, float]
GRAY = (0.2989, 0.587, 0.114)


class Ranges(NamedTuple):
    """Where the parameters are drawn from, uniformly; those of colour are factors, but for the hue and gamma.

    Attributes:
        brightness: Factor.
        contrast: Factor.
        saturation: Factor.
        hue: Part of a full turn.
        gamma: Exponent.
        angle: In degrees, clockwise.
        translate: Largest shift along each axis, as a part of the padded side (which is twice the image's).
        scale: Factor of the zoom.
        sigma: Of the blur, in pixels.
        flip: Probability of the mirror image.
        noise: Standard deviation of the noise.
    """

    brightness: Range = (0.6, 1.4)
    contrast: Range = (0.7, 1.3)
    saturation: Range = (0.5, 1.5)
    hue: Range = (-0.06, 0.06)
    gamma: Range = (0.7, 1.3)
    angle: Range = (-15.0, 15.0)
    translate: float = 1 / 16
    scale: Range = (0.9, 1.1)
    sigma: Range = (0.001, 0.5)
    flip: float = 0.5
    noise: float = 0.005


class Parameters(NamedTuple):
    """What was drawn for one batch; `translate` is in pixels, right and down."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    gamma: float
    angle: float
    translate: tuple[int, int]
    scale: float
    sigma: float
    flip: bool
    order: Sequence[int] = (0, 1, 2, 3, 4)
    """In which order brightness, contrast, saturation, hue and gamma are applied."""


class Augmentation:
    """Draws parameters, the same for all images of a batch, and augments.

    Args:
        generator: Where all randomness comes from; on the CPU, whatever device the images are on.
        ranges: Where the parameters are drawn from.
    """

    def __init__(self, generator: torch.Generator, ranges: Ranges | None = None) -> None:
        self.generator = generator
        self.ranges = Ranges() if ranges is None else ranges

    def __call__(self, images: Tensor) -> Tensor:
        """Augment pixels in [0, 1], (B, C, H, W); what comes back has the same shape and range."""
        views = augment(images, self.draw(images.shape[2], images.shape[3]))
        for view in pieces(views):
            noise = torch.randn(view.shape, generator=self.generator)  # float32, so that the dtype changes nothing
            view.add_(noise.to(view), alpha=self.ranges.noise).clamp_(0, 1)
        return views

    def draw(self, height: int, width: int) -> Parameters:
        """Draw the parameters for images of this size."""
        ranges = self.ranges
        rows, columns = (round(self._uniform((-1, 1)) * ranges.translate * padded(side)) for side in (height, width))
        return Parameters(
            brightness=self._uniform(ranges.brightness),
            contrast=self._uniform(ranges.contrast),
            saturation=self._uniform(ranges.saturation),
            hue=self._uniform(ranges.hue),
            gamma=self._uniform(ranges.gamma),
            angle=self._uniform(ranges.angle),
            translate=(columns, rows),
            scale=self._uniform(ranges.scale),
            sigma=self._uniform(ranges.sigma),
            flip=self._uniform((0, 1)) < ranges.flip,
            order=torch.randperm(5, generator=self.generator).tolist(),
        )

    def _uniform(self, bounds: Range) -> float:
        low, high = bounds
        return low + (high - low) * float(torch.rand((), dtype=torch.float64, generator=self.generator))


def augment(images: Tensor, drawn: Parameters) -> Tensor:
    """The whole augmentation but the noise, with given parameters, (B, C, H, W) to the same."""
    if images.shape[1] not in (1, 3):
        raise InputError(f"images are augmented in colour or grey, 3 channels or 1: these have {images.shape[1]}")
    height, width = images.shape[2:]
    # Of the padded image only what the crop leaves is computed, and two pixels on each side for the blur.
    pad = height // 2, width // 2
    rows, columns = min(pad[0], 2), min(pad[1], 2)
    points = positions(images, drawn.angle, drawn.translate, drawn.scale, pad, (height + 2 * rows, width + 2 * columns))
    views = []
    for piece in pieces(images):
        view = sample(jitter(piece.clamp(0, 1), drawn), points)
        view = smooth(reflect(view, 2 - rows, 2 - columns), drawn.sigma)
        views.append(view.flip(3) if drawn.flip else view)
    return torch.cat(views).clamp_(0, 1)


def pieces(images: Tensor) -> Sequence[Tensor]:
    """The images one by one on a CPU, whose cache holds an image but not a batch; elsewhere together."""
    return torch.split(images, 1 if images.is_cpu else len(images))


def padded(side: int) -> int:
    """How long a side is with half of it added at both ends."""
    return side + 2 * (side // 2)


def jitter(images: Tensor, drawn: Parameters) -> Tensor:
    """The operations on colours, in the order drawn."""
    operations: list[tuple[Callable[[Tensor, float], Tensor], float]] = [
        (brightness, drawn.brightness),
        (contrast, drawn.contrast),
        (saturation, drawn.saturation),
        (hue, drawn.hue),
        (gamma, drawn.gamma),
    ]
    for index in drawn.order:
        operation, value = operations[index]
        images = operation(images, value)
    return images


def gray(images: Tensor) -> Tensor:
    """Luminance, (B, C, H, W) to (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = torch.split(images, 1, dim=1)
    return (GRAY[0] * red).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


def brightness(images: Tensor, factor: float) -> Tensor:
    """Scale all values."""
    return (images * factor).clamp_(0, 1)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Scale the distance to the mean luminance of each image."""
    mean = gray(images).mean(dim=(1, 2, 3), keepdim=True)
    return (images * factor).add_(mean, alpha=1 - factor).clamp_(0, 1)


def saturation(images: Tensor, factor: float) -> Tensor:
    """Scale the distance to the luminance of each pixel."""
    return (images * factor).add_(gray(images), alpha=1 - factor).clamp_(0, 1)


def hue(images: Tensor, shift: float) -> Tensor:
    """Turn the hue of each pixel by a part of a full turn."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    high, low = torch.maximum(red, green).maximum(blue), torch.minimum(red, green).minimum(blue)
    chroma = high - low
    per = chroma.clamp_min(1e-12).reciprocal_()
    sector = torch.where(high == green, (blue - red).mul_(per).add_(2), (red - green).mul_(per).add_(4))
    sector = torch.where(high == red, (green - blue).mul_(per), sector)  # of six, from -1 to 5; red is at 0
    turned = torch.empty_like(images)
    for channel, own in enumerate((0, 2, 4)):
        # A channel has all of the chroma up to one sector away from its own colour, and nothing from two on.
        # `apart` is at most six sectors, so that 3 - |3 - |apart|| is the shorter way round the circle.
        apart = sector + ((6 * shift - own + 5) % 6 - 5)
        share = apart.abs_().sub_(3).abs_().sub_(1).clamp_(0, 1)
        torch.addcmul(low, share, chroma, out=turned[:, channel])
    return turned


def gamma(images: Tensor, exponent: float) -> Tensor:
    """Raise all values to a power."""
    return images.clamp(1e-8, 1).log_().mul_(exponent).exp_().clamp_(0, 1)


class Points(NamedTuple):
    """Where an image is sampled: a grid, (1, rows, columns, 2), and how much lies inside, (rows, columns) or None."""

    grid: Tensor
    inside: Tensor | None


def affine(
    images: Tensor, angle: float, translate: tuple[int, int], scale: float, pad: tuple[int, int] = (0, 0)
) -> Tensor:
    """Pad by repeating the edge, zoom and turn about the centre, shift, crop: (B, C, H, W) to the same.

    Args:
        images: (B, C, H, W).
        angle: In degrees, clockwise.
        translate: In pixels, right and down.
        scale: Factor of the zoom.
        pad: How often the edge is repeated above and below, left and right; outside are zeros.
    """
    return sample(images, positions(images, angle, translate, scale, pad, (images.shape[2], images.shape[3])))


def positions(
    images: Tensor,
    angle: float,
    translate: tuple[int, int],
    scale: float,
    pad: tuple[int, int],
    size: tuple[int, int],
) -> Points:
    """Where `affine` samples images for a piece of this size, (rows, columns), round the centre."""
    (height, width), (rows, columns) = images.shape[2:], size
    down = (torch.arange(rows).to(images) - ((rows - 1) / 2 + translate[1])).unsqueeze(1)
    right = (torch.arange(columns).to(images) - ((columns - 1) / 2 + translate[0])).unsqueeze(0)
    cosine, sine = math.cos(math.radians(angle)) / scale, math.sin(math.radians(angle)) / scale
    across = right * cosine + down * sine  # from the centre of the source, in pixels
    along = down * cosine - right * sine
    inside = _inside(across, width + 2 * pad[1]) * _inside(along, height + 2 * pad[0])
    grid = torch.stack((across * (2 / width), along * (2 / height)), dim=2).unsqueeze(0)
    return Points(grid, None if bool(inside.min() == 1) else inside)


def sample(images: Tensor, points: Points) -> Tensor:
    """Bilinear values at the points; beyond the edge it is the edge that is seen, and then zeros."""
    grid = points.grid.expand(len(images), -1, -1, -1)
    sampled = functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled if points.inside is None else sampled.mul_(points.inside)


def _inside(offset: Tensor, side: int) -> Tensor:
    """How much of a point lies on an image of this side and not on the zeros round it, bilinearly, in [0, 1]."""
    return ((side + 1) / 2 - offset.abs()).clamp_(0, 1)


def blur(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur over 5 by 5 pixels, reflected at the border."""
    return smooth(reflect(images, 2, 2), sigma)


def reflect(images: Tensor, rows: int, columns: int) -> Tensor:
    """Add reflected rows above and below, and columns left and right; images too small for that repeat the edge."""
    if rows == columns == 0:
        return images
    mode = "reflect" if images.shape[2] > rows and images.shape[3] > columns else "replicate"
    return functional.pad(images, (columns, columns, rows, rows), mode=mode)


def smooth(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur over 5 by 5 pixels, which leaves two pixels less on each side."""
    weights = [math.exp(-0.5 * (offset / sigma) ** 2) for offset in (2, 1, 0, 1, 2)]
    for dim in (2, 3):
        side = images.shape[dim] - 4
        blurred = images.narrow(dim, 0, side) * (weights[0] / sum(weights))
        for start in range(1, 5):
            blurred.add_(images.narrow(dim, start, side), alpha=weights[start] / sum(weights))
        images = blurred
    return images
