"""All corruptions by name, `corrupt`, which applies one of them to one picture, and how others are added."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image as Pillow

from neotta._registry import Registry
from neotta.data._numbers import checked_seed
from neotta.data.base import Image
from neotta.data.corruptions.blurs import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from neotta.data.corruptions.common import Draws, draws_for
from neotta.data.corruptions.digital import elastic_transform, jpeg_compression, pixelate
from neotta.data.corruptions.frost import GROWN, Textures
from neotta.data.corruptions.parameters import PRESETS, TEXTURE_SCALE
from neotta.data.corruptions.pixels import (
    brightness,
    contrast,
    gaussian_noise,
    impulse_noise,
    saturate,
    shot_noise,
    speckle_noise,
)
from neotta.data.corruptions.weather import fog, frost, snow, spatter
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

Corruption = Callable[[Image, int, np.random.Generator], Image]
"""From an image, (H, W, 3) uint8, a severity from 1 to 5 and a source of random numbers to another image."""

_DETERMINISTIC: dict[str, Callable[..., Image]] = {
    each.__name__: each
    for each in (
        *(defocus_blur, zoom_blur, gaussian_blur),
        *(brightness, contrast, saturate),
        *(pixelate, jpeg_compression),
    )
}
_STOCHASTIC: dict[str, Callable[..., Image]] = {
    each.__name__: each
    for each in (
        *(gaussian_noise, shot_noise, impulse_noise, speckle_noise),
        *(glass_blur, motion_blur),
        *(snow, fog, spatter),
        elastic_transform,
    )
}


def _check_added(name: str, corruption: Any) -> None:
    if not callable(corruption):
        raise OptionError(f"a corruption is a function (image, severity, random) -> image, got {corruption!r}")
    if name in CORRUPTIONS + EXTRA_CORRUPTIONS or (not name.startswith("py:") and {*name} & {*"/\\:, "}):
        raise OptionError(f"{name!r} cannot be the name of another corruption: it is taken, or no name of a folder")


_added: Registry[Corruption] = Registry(
    "corruption",
    group="neotta.corruptions",
    check=_check_added,
    error=lambda name, known: UnknownNameError("corruption", name, [*CORRUPTIONS, *EXTRA_CORRUPTIONS, *known]),
)


def register_corruption(name: str) -> Callable[[Corruption], Corruption]:
    """Add a corruption: a decorator for a function `(image, severity, random) -> image`.

    The function gets a copy of the image, (H, W, 3) uint8, the severity, 1 to 5, and a `numpy.random.Generator` that
    depends on the seed, the image's id, the name and the severity alone. It returns an image, (H', W', 3) uint8.

    Args:
        name: The name it is known by: in `corrupt`, `CorruptedDataset` and on the command line.
    """
    return _added.decorator(name)


def corrupt(
    image: Image | Pillow,
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
        image: (H, W, 3) uint8 RGB, of any size; or a Pillow image.
        name: One of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`, one that was added (`register_corruption`, or the entry point
            of a package), or `py:path/to/file.py:function`.
        severity: 1 (slight) to 5 (strong).
        preset: Whose parameters: "imagenet" (made for 224 pixels), "tiny" (64) or "cifar" (32).
        seed: Another seed gives other noise.
        image_id: What tells this picture from others.
        textures: A folder of frost pictures; by default they are generated.

    Returns:
        A new picture, (H, W, 3) uint8.

    Raises:
        InputError: The image is neither an (H, W, 3) uint8 array nor a Pillow image.
        UnknownNameError: There is no such corruption or preset.
        OptionError: The severity is not 1 to 5, or the seed is not an integer.
        DataError: The folder of textures holds no usable picture.
    """
    check_choice(name, severity, preset)
    checked_seed(seed)
    if isinstance(image, Pillow):
        image = np.asarray(image.convert("RGB"))
    draws = draws_for(seed, image_id, label(name), severity)
    if not is_published(name):
        return _apply_added(image, name, severity, draws.generator)
    frosts = GROWN if textures is None else Textures.of_folder(textures)
    return apply(image, name, severity, preset, draws, frosts)


def apply(image: Image, name: str, severity: int, preset: str, draws: Draws, textures: Textures = GROWN) -> Image:
    """Apply a published corruption with random numbers of the caller's: see `corrupt` for the rest."""
    check_image(image)
    parameters = PRESETS[preset][name][severity - 1]
    if name in _DETERMINISTIC:
        return _DETERMINISTIC[name](image, *parameters)
    if name == "frost":
        return frost(image, draws, textures.scaled(TEXTURE_SCALE[preset]), *parameters)
    return _STOCHASTIC[name](image, draws, *parameters)


def _apply_added(image: Image, name: str, severity: int, random: np.random.Generator) -> Image:
    check_image(image)
    result = _added.find(name)(image.copy(), severity, random)
    try:
        check_image(result)
    except InputError as error:
        raise InputError(f"the corruption {name!r} returned no image: {error}") from error
    return result


def is_published(name: str) -> bool:
    """Whether a corruption is one of the 15 + 4."""
    return name in CORRUPTIONS or name in EXTRA_CORRUPTIONS


def label(name: str) -> str:
    """The name of a corruption's folder: `py:path/to/file.py:mist` is called `mist`."""
    return name.rpartition(":")[2]


def version(name: str) -> str:
    """Changes when the code of an added corruption does; empty for a published one."""
    if is_published(name):
        return ""
    function = inspect.unwrap(_added.find(name))
    kind = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        code = Path(inspect.getfile(kind)).read_bytes()
    except (OSError, TypeError):  # typed in at a prompt
        code = f"{kind.__module__}.{kind.__qualname__}".encode()
    return hashlib.sha256(code).hexdigest()[:16]


def check_choice(name: str, severity: int, preset: str) -> None:
    """Raise the error that says which corruptions, severities and presets there are."""
    if not is_published(name):
        _added.find(str(name))
    if preset not in PRESETS:
        raise UnknownNameError("preset", str(preset), PRESETS)
    if isinstance(severity, bool) or not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
        raise OptionError(f"severity is one of 1, 2, 3, 4, 5, got {severity!r}")


def check_image(image: Any) -> None:
    """Raise the error that says how to make a usable picture of what was given."""
    wanted = "expected an RGB image as an (H, W, 3) uint8 array"
    if not isinstance(image, np.ndarray):
        raise InputError(f"{wanted}, got {type(image).__name__}: convert it with np.asarray")
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
