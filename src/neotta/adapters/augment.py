"""The random augmentation of CoTTA, Surgeon, RoTTA and ROID: colours, rotation, shift, zoom, blur, mirror image, noise.

Images are pixels in [0, 1], (B, 3, H, W), or (B, 1, H, W) in grey; float32 or float64. Each operation is a function;
`pipeline` is all of them with given parameters, and `Augmentation` draws the parameters. The operations on colours
change the images they are given: what is written over is still in the cache of a CPU, what is made anew is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

import torch
from pydantic import Field, Strict
from torch import Tensor, nn
from torch.nn import functional

from neotta.adapters.gradient import SeededAdapter, SeededOptions
from neotta.errors import InputError, OptionError

GRAY = (0.2989, 0.587, 0.114)
RANGES = {
    "brightness": (0.6, 1.4),
    "contrast": (0.7, 1.3),
    "saturation": (0.5, 1.5),
    "hue": (-0.06, 0.06),
    "gamma": (0.7, 1.3),
    "angle": (-15.0, 15.0),
    "scale": (0.9, 1.1),
    "sigma": (0.001, 0.5),
}
"""What the parameters of these names are drawn from, uniformly."""
TRANSLATE = 1 / 16
"""Largest shift along each axis, as a part of the padded side (which is twice the image's)."""
NOISE = 0.005
"""Standard deviation of the noise."""


class Parameters(NamedTuple):
    """What was drawn for one batch."""

    brightness: float  # factor, as are contrast and saturation
    contrast: float
    saturation: float
    hue: float  # part of a full turn
    gamma: float
    angle: float  # in degrees, clockwise
    scale: float  # factor of the zoom
    sigma: float  # standard deviation of the blur, in pixels
    translate: tuple[int, int]  # in pixels, right and down
    flip: bool
    order: Sequence[int] = (0, 1, 2, 3, 4)  # in which order brightness, contrast, saturation, hue and gamma are applied


class Style(NamedTuple):
    """Which parts of the augmentation a method uses."""

    blur: bool = True
    noise: bool = True
    # What is seen beyond the edge: the edge repeated, or the image reflected.
    edge: Literal["repeat", "reflect"] = "repeat"


FULL = Style()
"""The augmentation of CoTTA, Surgeon and RoTTA."""


@dataclass
class Augmentation:
    """Draws parameters, the same for all images of a batch, and augments.

    Args:
        generator: The source of all randomness; on the CPU, whatever device the images are on.
        mean: Mean of the images' normalisation, (C, 1, 1) or (1, 1, 1); it is undone before and done again after.
        std: Standard deviation of the images' normalisation, of the same shape.
        style: Which parts are used. The same parameters are drawn in any case.
    """

    generator: torch.Generator
    mean: Tensor | float = 0.0
    std: Tensor | float = 1.0
    style: Style = FULL

    def __call__(self, images: Tensor) -> Tensor:
        """Augment images, (B, C, H, W), of which pixels in [0, 1] count; what comes back has the same shape."""
        change = pipeline(images, self.draw(images.shape[2], images.shape[3]), self.style)
        views = torch.empty_like(images)
        for piece, view in zip(pieces(images), pieces(views), strict=True):
            changed = change((piece * self.std).add_(self.mean))
            if self.style.noise:
                self._add_noise(changed, view)
            else:
                view.copy_(changed)
            view.clamp_(0, 1).sub_(self.mean).div_(self.std)
        return views

    def _add_noise(self, images: Tensor, out: Tensor) -> None:
        for image, noisy in zip(images, out, strict=True):  # one by one, so that the pieces change nothing
            noise = torch.randn(noisy.shape, generator=self.generator)  # float32, so that the dtype changes nothing
            torch.add(image, noise.to(noisy), alpha=NOISE, out=noisy)

    def draw(self, height: int, width: int) -> Parameters:
        """Draw the parameters for images of this size."""
        rows, columns = (round(self._uniform(-1, 1) * TRANSLATE * (side + 2 * (side // 2))) for side in (height, width))
        drawn = {name: self._uniform(*bounds) for name, bounds in RANGES.items()}
        flip = self._uniform(0, 1) < 0.5
        order = torch.randperm(5, generator=self.generator).tolist()
        return Parameters(**drawn, translate=(columns, rows), flip=flip, order=order)

    def _uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), dtype=torch.float64, generator=self.generator))


def pipeline(images: Tensor, drawn: Parameters, style: Style = FULL) -> Callable[[Tensor], Tensor]:
    """All operations but the noise, (b, C, H, W) to the same; where images are sampled is computed once."""
    if images.shape[1] not in (1, 3):
        raise InputError(f"images are augmented in colour or grey, 3 channels or 1: these have {images.shape[1]}")
    height, width = images.shape[2:]
    # Of the padded image only what the crop leaves is computed, and two pixels on each side for the blur.
    pad = height // 2, width // 2
    rows, columns = (min(pad[0], 2), min(pad[1], 2)) if style.blur else (0, 0)
    points = positions(images, drawn.angle, drawn.translate, drawn.scale, pad, (height + 2 * rows, width + 2 * columns))

    def change(piece: Tensor) -> Tensor:
        view = sample(jitter(piece.clamp(0, 1), drawn), points, style.edge)
        if style.blur:
            view = smooth(reflect(view, 2 - rows, 2 - columns), drawn.sigma)
        return view.flip(3) if drawn.flip else view

    return change


def pieces(images: Tensor) -> Sequence[Tensor]:
    """On a CPU two images for each thread, since a cache holds a few images but not a batch; elsewhere all together."""
    return torch.split(images, 2 * torch.get_num_threads() if images.is_cpu else len(images))


def jitter(images: Tensor, drawn: Parameters) -> Tensor:
    """The operations on colours, in the order drawn. Like each of them it changes the images it is given."""
    operations = (brightness, contrast, saturation, hue, gamma)
    for operation in (operations[index] for index in drawn.order):
        images = operation(images, getattr(drawn, operation.__name__))
    return images


def gray(images: Tensor) -> Tensor:
    """Luminance, (B, C, H, W) to (B, 1, H, W)."""
    if images.shape[1] == 1:
        return images.clone()
    red, green, blue = torch.split(images, 1, dim=1)
    return (GRAY[0] * red).add_(green, alpha=GRAY[1]).add_(blue, alpha=GRAY[2])


def brightness(images: Tensor, factor: float) -> Tensor:
    """Scale all values."""
    return images.mul_(factor).clamp_(0, 1)


def contrast(images: Tensor, factor: float) -> Tensor:
    """Scale the distance to the mean luminance of each image."""
    mean = gray(images.mean(dim=(2, 3), keepdim=True))
    return images.mul_(factor).add_(mean, alpha=1 - factor).clamp_(0, 1)


def saturation(images: Tensor, factor: float) -> Tensor:
    """Scale the distance to the luminance of each pixel."""
    luminance = gray(images).mul_(1 - factor)
    return images.mul_(factor).add_(luminance).clamp_(0, 1)


def hue(images: Tensor, shift: float) -> Tensor:
    """Turn the hue of each pixel by a part of a full turn."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    high, low = torch.maximum(red, green).maximum(blue), torch.minimum(red, green).minimum(blue)
    lead, lack = green - blue, high - red
    chroma = high.sub_(low)
    per = chroma.clamp_min(1e-12).reciprocal_()
    # Sectors of six from red, towards green or (negative) towards blue: |lead| if red is the largest (lack = 0),
    # 1 + lack if it is in the middle (|lead| = 1), 3 - |lead| if it is the smallest (lack = 1). One formula holds for
    # all three; to choose among three would take several times as long.
    distance = lead.mul_(per).abs()
    sector = distance.addcmul_(lack.mul_(per), 3 - 2 * distance).copysign_(lead)
    # A channel has all of the chroma up to one sector away from its own colour, and nothing from two on. No sum is
    # more than six sectors, so that 3 - |3 - |sum|| is the shorter way round the circle.
    apart = images.new_tensor([(6 * shift - own + 3) % 6 - 3 for own in (0, 2, 4)]).view(3, 1, 1)
    share = torch.add(sector.unsqueeze(1), apart, out=images).abs_().sub_(3).abs_().sub_(1).clamp_(0, 1)
    return share.mul_(chroma.unsqueeze(1)).add_(low.unsqueeze(1))


def gamma(images: Tensor, exponent: float) -> Tensor:
    """Raise all values to a power."""
    return images.clamp_(1e-8, 1).log_().mul_(exponent).exp_().clamp_(0, 1)


class Points(NamedTuple):
    """Where an image is sampled: a grid, (1, rows, columns, 2), and how much lies inside, (rows, columns) or None."""

    grid: Tensor
    inside: Tensor | None


def positions(
    images: Tensor,
    angle: float,
    translate: tuple[int, int],
    scale: float,
    pad: tuple[int, int],
    size: tuple[int, int],
) -> Points:
    """Where to sample images, (B, C, H, W), to pad them, zoom and turn about the centre, shift and crop.

    The edge is repeated `pad` times above and below, left and right; outside are zeros. The result has `size` rows and
    columns, round the centre. For the others see `Parameters`.
    """
    (height, width), (rows, columns) = images.shape[2:], size
    down = (torch.arange(rows).to(images) - ((rows - 1) / 2 + translate[1])).unsqueeze(1)
    right = (torch.arange(columns).to(images) - ((columns - 1) / 2 + translate[0])).unsqueeze(0)
    cosine, sine = math.cos(math.radians(angle)) / scale, math.sin(math.radians(angle)) / scale
    across = right * cosine + down * sine  # from the centre of the source, in pixels
    along = down * cosine - right * sine
    inside = _inside(across, width + 2 * pad[1]) * _inside(along, height + 2 * pad[0])
    grid = torch.stack((across * (2 / width), along * (2 / height)), dim=2).unsqueeze(0)
    return Points(grid, None if bool(inside.min() == 1) else inside)


def sample(images: Tensor, points: Points, edge: Literal["repeat", "reflect"] = "repeat") -> Tensor:
    """Bilinear values at the points; beyond the edge it is the edge that is seen, or a reflection, and then zeros."""
    grid = points.grid.expand(len(images), -1, -1, -1)
    if edge == "reflect":  # torch's own reflection would repeat the edge once
        height, width = images.shape[2:]
        images = reflect(images, height // 2, width // 2)
        grid = grid * grid.new_tensor([width / images.shape[3], height / images.shape[2]])
    sampled = functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled if points.inside is None else sampled.mul_(points.inside)


def _inside(offset: Tensor, side: int) -> Tensor:
    """How much of a point lies on an image of this side and not on the zeros round it, bilinearly, in [0, 1]."""
    return ((side + 1) / 2 - offset.abs()).clamp_(0, 1)


def reflect(images: Tensor, rows: int, columns: int) -> Tensor:
    """Add reflected rows above and below, and columns left and right; images too small for that repeat the edge."""
    if rows == columns == 0:
        return images
    mode = "reflect" if images.shape[2] > rows and images.shape[3] > columns else "replicate"
    return functional.pad(images, (columns, columns, rows, rows), mode=mode)


def smooth(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur over 5 by 5 pixels, which leaves two pixels less on each side."""
    weights = {offset: math.exp(-0.5 * (offset / sigma) ** 2) for offset in (-2, -1, 0, 1, 2)}
    total = sum(weights.values())
    seen = [offset for offset, weight in weights.items() if offset and weight > torch.finfo(images.dtype).eps / 8]
    for dim in (2, 3):
        side = images.shape[dim] - 4
        blurred = images.narrow(dim, 2, side)
        if seen:
            blurred = blurred / total
        for offset in seen:
            blurred.add_(images.narrow(dim, 2 + offset, side), alpha=weights[offset] / total)
        images = blurred
    return images


# ---- methods that augment

Positive = Annotated[float, Field(gt=0)]
A = TypeVar("A", bound="AugmentingOptions")


class AugmentingOptions(SeededOptions):
    mean: float | Annotated[tuple[float, ...], Strict(False)] = Field(
        0.5, description="Mean of the model's normalisation: one number, or one per channel."
    )
    std: Positive | Annotated[tuple[Positive, ...], Strict(False)] = Field(
        0.5, description="Standard deviation of the model's normalisation: one number, or one per channel."
    )
    augment_domain: Literal["pixel", "normalised"] = Field(
        "pixel",
        description='"pixel" undoes the normalisation, augments, and normalises again. "normalised" augments the '
        "images as they come, which cuts off all that is darker than the mean; the reference code does that.",
    )
    augmentation: Callable[[Tensor], Tensor] | None = Field(
        None,
        description="Takes and returns a batch of images in that domain; None is the method's own. Saving its state, "
        "if any, is up to the caller.",
    )


class AugmentingAdapter(SeededAdapter[A]):
    """A method that trains on augmented images."""

    style: ClassVar[Style] = FULL
    """The method's own augmentation."""

    def _start(self) -> None:
        super()._start()
        read = {layer.in_channels for layer in self._modules if isinstance(layer, nn.Conv2d)}
        for name in ("mean", "std"):  # here, rather than at the first view
            value = getattr(self.options, name)
            if read and isinstance(value, tuple) and len(value) not in read:
                raise OptionError(
                    f"option {name!r} of method {self.name!r} has {len(value)} numbers, but no layer of the model "
                    "takes images with that many channels: give one number, or one per channel"
                )

    @torch.no_grad()
    def view(self, images: Tensor) -> Tensor:
        """An augmented view of normalised images, (B, 3, H, W) to the same."""
        augmentation = self.options.augmentation
        if self.options.augment_domain == "normalised":
            return (augmentation or Augmentation(self.generator, style=self.style))(images)
        mean, std = (self._per_channel(name, images) for name in ("mean", "std"))
        if augmentation is None:
            return Augmentation(self.generator, mean=mean, std=std, style=self.style)(images)
        return (augmentation(images * std + mean) - mean) / std

    def _per_channel(self, name: str, images: Tensor) -> Tensor:
        values = torch.as_tensor(getattr(self.options, name), dtype=images.dtype, device=images.device)
        if values.dim() and len(values) != images.shape[1]:
            raise InputError(f"option {name!r} has {len(values)} numbers, the images have {images.shape[1]} channels")
        return values.reshape(-1, 1, 1)
