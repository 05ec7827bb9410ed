"""From an image to the tensor that a model was trained on: resize, centre crop, normalise."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from neotta.errors import InputError, OptionError

if TYPE_CHECKING:  # `pixels` and `array` work where torch is not installed, all else where Pillow is not
    from PIL import Image
    from torch import Tensor

INTERPOLATIONS = {"nearest": 0, "box": 4, "bilinear": 2, "hamming": 5, "bicubic": 3, "lanczos": 1}
"""The numbers that Pillow has for them (`Image.Resampling`), and Hugging Face."""
ImageLike: TypeAlias = "Image.Image | np.ndarray[Any, Any] | Tensor"


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """The preprocessing that belongs to a checkpoint; calling it makes one image ready.

    Resizing is Pillow's (antialiased), so the pixels are those of timm's evaluation transform and of Hugging
    Face's image processors.

    Args:
        size: Height and width that the model takes, or one number for both.
        resize: Length of the shorter side before the crop, or (height, width), or None for no resizing.
        crop: Whether to cut `size` out of the centre; a smaller image gets a black border.
        interpolation: One of "nearest", "bilinear", "bicubic", "lanczos", "box", "hamming".
        mean: Mean of each colour, for pixel values in 0..1.
        std: Standard deviation of each colour, for pixel values in 0..1.
        crop_rounding: Where an odd margin is halved: "even" rounds as torchvision and timm do,
            "down" as Hugging Face does. They differ by one pixel.
    """

    size: tuple[int, int]  # or int, which becomes a pair
    resize: int | tuple[int, int] | None = None
    crop: bool = False
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    crop_rounding: str = "even"

    def __post_init__(self) -> None:
        put = object.__setattr__  # the only way to tidy up the values of a frozen dataclass
        square = isinstance(self.size, int)
        put(self, "size", _pair("size", (self.size, self.size) if square else self.size))
        if self.resize is not None:
            scalar = isinstance(self.resize, int) and not isinstance(self.resize, bool)
            put(self, "resize", _length("resize", self.resize) if scalar else _pair("resize", self.resize))
        if not isinstance(self.crop, bool):
            raise OptionError(f"crop is True or False, got {self.crop!r}")
        if self.interpolation not in INTERPOLATIONS:
            raise OptionError(f"interpolation is one of {', '.join(INTERPOLATIONS)}, got {self.interpolation!r}")
        if self.crop_rounding not in ("even", "down"):
            raise OptionError(f"crop_rounding is 'even' or 'down', got {self.crop_rounding!r}")
        put(self, "mean", _colour("mean", self.mean))
        put(self, "std", _colour("std", self.std))
        if min(self.std) <= 0:
            raise OptionError(f"std must be positive, got {self.std}")

    def __call__(self, image: ImageLike) -> Tensor:
        """Make one image ready for the model.

        Args:
            image: A Pillow image of any mode, a uint8 array (H, W, 3), or a tensor (3, H, W), uint8 or float
                in 0..1. A floating tensor's dtype and device are kept.

        Returns:
            The normalised image, (3, H, W) with `size`.
        """
        import torch

        if isinstance(image, torch.Tensor) and image.is_floating_point():
            return self.normalize(self._fit_float(_checked(image)))
        return torch.from_numpy(self.array(image))

    def array(self, image: ImageLike) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Make one image of 8 bits ready without torch: (3, H, W) float32, the same numbers as a call gives."""
        scaled = self.pixels(image).transpose(2, 0, 1).astype(np.float32, order="C") / np.float32(255)
        mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (self.mean, self.std))
        return (scaled - mean) / std

    def pixels(self, image: ImageLike) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Resize and crop an image without normalising it: (H, W, 3) uint8 with `size`.

        For loaders: workers send pixels, a quarter of the memory, and leave `normalize` to the main process.
        """
        return np.array(self._fit(_pillow(image)))

    def batch(self, images: Iterable[ImageLike]) -> Tensor:
        """Make several images ready, of any sizes: (B, 3, H, W)."""
        import torch

        ready = [self(image) for image in images]
        return torch.stack(ready) if ready else torch.empty(0, 3, *self.size)

    def normalize(self, x: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation; `x` is (..., 3, H, W) in 0..1."""
        mean, std = self._moments(x)
        return (x - mean) / std

    def denormalize(self, x: Tensor) -> Tensor:
        """Undo `normalize`: (..., 3, H, W) back to 0..1."""
        mean, std = self._moments(x)
        return x * std + mean

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON types."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """Read what `to_dict` wrote; a crop of None is none."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(values) - set(known))
        if unknown or "size" not in values:
            wrong = f"does not know {', '.join(unknown)}" if unknown else "needs 'size'"
            raise OptionError(f"preprocessing {wrong}; it takes {', '.join(known)}")
        return cls(**{**values, "crop": values.get("crop") or False})

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not x.is_floating_point() or x.ndim < 3 or x.shape[-3] != 3:
            raise InputError(f"expected a floating tensor (..., 3, H, W), got {x.dtype} {tuple(x.shape)}")
        mean, std = (x.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return mean, std

    def _fit(self, image: Image.Image) -> Image.Image:
        target = self.resized(image.height, image.width)
        if target != (image.height, image.width):
            image = image.resize((target[1], target[0]), INTERPOLATIONS[self.interpolation])
        if self.crop:
            height, width = self.size
            top, left = self._margin(image.height - height), self._margin(image.width - width)
            image = image.crop((left, top, left + width, top + height))  # outside of the image it is black
        if (image.height, image.width) != self.size:
            raise InputError(
                f"the image comes out as {image.height} x {image.width}, but the model takes "
                f"{self.size[0]} x {self.size[1]}: set resize={self.size} or crop=True in the preprocessing"
            )
        return image

    def _fit_float(self, x: Tensor) -> Tensor:
        """Resize and crop a floating tensor (3, H, W) without rounding its values to 8 bits."""
        import torch
        from PIL import Image

        if tuple(x.shape[1:]) == self.size == self.resized(*x.shape[1:]):
            return x
        planes = x.detach().to("cpu", torch.float32).numpy()
        fitted = np.stack([np.array(self._fit(Image.fromarray(plane))) for plane in planes])
        # Bicubic and Lanczos overshoot at edges; in 8 bits Pillow clips them.
        return torch.from_numpy(fitted.clip(0, 1)).to(x)

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of an image after resizing, before the crop."""
        if self.resize is None:
            return height, width
        if isinstance(self.resize, tuple):
            return self.resize
        if height <= width:
            return self.resize, int(self.resize * width / height)
        return int(self.resize * height / width), self.resize

    def _margin(self, surplus: int) -> int:
        """Where the crop begins; below zero if the image is too small, with the wider border at the end."""
        if surplus > 0 and self.crop_rounding == "even":
            return round(surplus / 2)
        return int(surplus / 2)


@dataclasses.dataclass(frozen=True)
class AsIs:
    """No preprocessing: inputs, of one shape, are what the model takes."""

    shape: tuple[int, ...]

    def __call__(self, x: np.ndarray[Any, Any]) -> Tensor:
        """Return the input as a tensor."""
        import torch

        return torch.from_numpy(x)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON types."""
        return {"shape": list(self.shape)}


def _pillow(image: ImageLike) -> Image.Image:
    from PIL import Image

    if isinstance(image, Image.Image):
        return image.convert("RGB")
    if _is_tensor(image) and str(image.dtype) == "torch.uint8" and image.ndim == 3 and image.shape[0] == 3:
        image = image.permute(1, 2, 0).cpu().numpy()
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        kind = type(image).__name__
        if isinstance(image, np.ndarray) or _is_tensor(image):
            kind += f" {image.dtype} {tuple(image.shape)}"
        raise InputError(
            f"cannot use {kind} as an image: expected a Pillow image, a uint8 array (H, W, 3) "
            "or a tensor (3, H, W), uint8 or floating in 0..1"
        )
    if image.size == 0:
        raise InputError(f"the image is empty: its shape is {image.shape}")
    return Image.fromarray(np.ascontiguousarray(image))


def _is_tensor(image: Any) -> TypeGuard[Tensor]:
    """Whether something is a tensor; where torch was never imported, nothing is."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)


def _checked(x: Tensor) -> Tensor:
    if x.ndim != 3 or x.shape[0] != 3 or x.numel() == 0:
        raise InputError(f"expected one image (3, H, W), got {tuple(x.shape)}; for several use batch()")
    low, high = float(x.detach().min()), float(x.detach().max())
    if low < -1e-3 or high > 1 + 1e-3:  # NaN passes: an adapter predicts such an image and counts it
        raise InputError(
            f"pixel values run from {low:.4g} to {high:.4g}, expected 0..1: "
            "divide by 255, and do not normalise before the preprocessing does"
        )
    return x


def _length(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"{name} takes whole numbers of pixels, at least 1, got {value!r}")
    return value


def _pair(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise OptionError(f"{name} takes (height, width), got {value!r}")
    return _length(name, value[0]), _length(name, value[1])


def _colour(name: str, value: Any) -> tuple[float, float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise OptionError(f"{name} takes three numbers, one for each colour, got {value!r}")
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in value):
        raise OptionError(f"{name} takes finite numbers, got {value!r}")
    return float(value[0]), float(value[1]), float(value[2])
