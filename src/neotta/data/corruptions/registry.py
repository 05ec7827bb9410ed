"""All corruptions by name, and `corrupt`, which applies one of them to one picture."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from neotta.data._numbers import checked_seed
from neotta.data.base import Image
from neotta.data.corruptions.blurs import defocus_blur, gaussian_blur
from neotta.data.corruptions.colour import brightness, contrast, saturate
from neotta.data.corruptions.digital import jpeg_compression, pixelate
from neotta.data.corruptions.draws import Draws, draws_for
from neotta.data.corruptions.elastic import elastic_transform
from neotta.data.corruptions.glass import glass_blur
from neotta.data.corruptions.motion import motion_blur
from neotta.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from neotta.data.corruptions.parameters import PRESETS, TEXTURE_SCALE
from neotta.data.corruptions.spatter import spatter
from neotta.data.corruptions.textures import GROWN, Textures
from neotta.data.corruptions.weather import fog, frost, snow
from neotta.data.corruptions.zoom import zoom_blur
from neotta.errors import InputError, OptionError, UnknownNameError

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 on which methods are compared, in the order of the paper."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, meant for choosing hyperparameters."""

SEVERITIES = (1, 2, 3, 4, 5)

_DETERMINISTIC: dict[str, Callable[..., Image]] = {
    "defocus_blur": defocus_blur,
    "zoom_blur": zoom_blur,
    "brightness": brightness,
    "contrast": contrast,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
    "gaussian_blur": gaussian_blur,
    "saturate": saturate,
}

_STOCHASTIC: dict[str, Callable[..., Image]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "snow": snow,
    "fog": fog,
    "elastic_transform": elastic_transform,
    "speckle_noise": speckle_noise,
    "spatter": spatter,
}


def corrupt(
    image: Image,
    name: str,
    severity: int = 3,
    preset: str = "imagenet",
    seed: int = 0,
    *,
    image_id: str = "",
    textures: str | os.PathLike[str] | None = None,
) -> Image:
    """Corrupt one picture.

    The result depends on the arguments alone. Give every picture of a set its own `image_id`, or all of them
    get the same noise.

    Args:
        image: (H, W, 3) uint8 RGB, of any size.
        name: One of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 (slight) to 5 (strong).
        preset: Whose parameters: "imagenet" (made for 224 pixels), "tiny" (64) or "cifar" (32).
        seed: Another seed gives other noise.
        image_id: What tells this picture from others.
        textures: A folder of frost pictures; by default they are generated.

    Returns:
        A new picture, (H, W, 3) uint8.

    Raises:
        InputError: The image is no (H, W, 3) uint8 array.
        UnknownNameError: There is no such corruption or preset.
        OptionError: The severity is not 1 to 5, or the seed no whole number.
        DataError: The folder of textures holds no usable picture.
    """
    check_choice(name, severity, preset)
    checked_seed(seed)
    frosts = GROWN if textures is None else Textures.of_folder(textures)
    return apply(image, name, severity, preset, draws_for(seed, image_id, name, severity), frosts)


def apply(image: Image, name: str, severity: int, preset: str, draws: Draws, textures: Textures = GROWN) -> Image:
    """Corrupt one picture with random numbers of the caller's: see `corrupt` for the rest."""
    check_choice(name, severity, preset)
    check_image(image)
    parameters = PRESETS[preset][name][severity - 1]
    if name in _DETERMINISTIC:
        return _DETERMINISTIC[name](image, *parameters)
    if name == "frost":
        return frost(image, draws, textures.scaled(TEXTURE_SCALE[preset]), *parameters)
    return _STOCHASTIC[name](image, draws, *parameters)


def check_choice(name: str, severity: int, preset: str) -> None:
    """Raise the error that says which corruptions, severities and presets there are."""
    if name not in CORRUPTIONS and name not in EXTRA_CORRUPTIONS:
        raise UnknownNameError("corruption", str(name), CORRUPTIONS + EXTRA_CORRUPTIONS)
    if preset not in PRESETS:
        raise UnknownNameError("preset", str(preset), PRESETS)
    if isinstance(severity, bool) or not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
        raise OptionError(f"severity is one of 1, 2, 3, 4, 5, got {severity!r}")


def check_image(image: Any) -> None:
    """Raise the error that says how to make a usable picture of what was given."""
    wanted = "expected an RGB image as an (H, W, 3) uint8 array"
    if not isinstance(image, np.ndarray):
        raise InputError(f"{wanted}, got {type(image).__name__}: convert it (Pillow: np.asarray(image.convert('RGB')))")
    got = f"{wanted}, got shape {image.shape} and dtype {image.dtype}"
    if image.ndim == 2:
        raise InputError(f"{got}: repeat the grey channel with np.stack([image] * 3, axis=2)")
    if image.ndim != 3 or image.shape[2] != 3:
        raise InputError(f"{got}: {_advice(image)}")
    if image.dtype != np.uint8:
        raise InputError(f"{got}: scale it to 0..255 and convert with .astype(np.uint8)")
    if image.size == 0:
        raise InputError(f"{got}: the image has no pixels")


def _advice(image: np.ndarray[Any, Any]) -> str:
    if image.ndim == 3 and image.shape[2] == 4:
        return "drop the alpha channel with image[..., :3]"
    if image.ndim == 3 and image.shape[2] == 1:
        return "repeat the grey channel with np.repeat(image, 3, axis=2)"
    if image.ndim == 3 and image.shape[0] == 3:
        return "move the channels to the end with image.transpose(1, 2, 0)"
    if image.ndim == 4:
        return "corrupt the images of a batch one by one"
    return "convert it to RGB first"
