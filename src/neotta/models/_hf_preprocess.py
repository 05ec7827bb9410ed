"""A Hugging Face image processor's settings, as a `Preprocess` that is checked against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from neotta.errors import ModelLoadError
from neotta.models._timm import preprocess_from_timm
from neotta.models.preprocess import INTERPOLATIONS, Preprocess

_TOLERANCE = 5 / 255  # mean difference; the backends of transformers differ by less, a wrong step by more


def preprocess_from_processor(processor: Any, config: Any) -> Preprocess:
    """Translate an image processor.

    Args:
        processor: From transformers' `AutoImageProcessor`.
        config: The model's configuration; its `image_size` counts where the processor does not resize.
    """
    timm_config = getattr(processor, "data_config", None)  # of a timm model in transformers' wrapper
    if timm_config is not None:
        return preprocess_from_timm(timm_config)
    size, resize, crop = _geometry(processor, config)
    mean, std = _moments(processor)
    resample = getattr(processor, "resample", None)
    names = {int(value): name for name, value in INTERPOLATIONS.items()}
    ready = Preprocess(
        size=size,
        resize=resize,
        crop=crop,
        interpolation="bilinear" if resample is None else names[int(resample)],
        mean=mean,
        std=std,
        crop_rounding="down",
    )
    _compare(processor, ready)
    return ready


def _geometry(processor: Any, config: Any) -> tuple[tuple[int, int], int | tuple[int, int] | None, bool]:
    """Return the size of the result, the resizing, and whether the centre is cropped."""
    resize: int | tuple[int, int] | None = None
    size: tuple[int, int] | None = None
    crop = bool(getattr(processor, "do_center_crop", False))
    if getattr(processor, "do_resize", False):
        asked = dict(processor.size)
        if set(asked) == {"height", "width"}:
            size = resize = (asked["height"], asked["width"])
        elif set(asked) == {"shortest_edge"}:
            edge = resize = asked["shortest_edge"]
            size = (edge, edge)
            crop_pct = getattr(processor, "crop_pct", None)
            if crop_pct is not None:  # ConvNeXt: crop small sizes, squash large ones
                crop = edge < 384
                resize = int(edge / crop_pct) if crop else size
        else:
            raise _untranslatable(processor, f"it resizes by {asked}")
    if getattr(processor, "do_center_crop", False):
        asked = dict(processor.crop_size)
        size = (asked["height"], asked["width"])
    if size is None:
        side = config.image_size
        size = (side, side) if isinstance(side, int) else (side[0], side[1])
    return size, resize, crop


def _moments(processor: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Put rescaling and normalising together, as mean and std of pixel values in 0..1."""
    scale, offset = 255.0, 0.0
    if getattr(processor, "do_rescale", False):
        scale *= processor.rescale_factor
        offset = 1.0 if getattr(processor, "rescale_offset", False) else 0.0
    mean, std = [0.0] * 3, [1.0] * 3
    if getattr(processor, "do_normalize", False):
        mean, std = list(processor.image_mean), list(processor.image_std)
    return tuple((m + offset) / scale for m in mean), tuple(s / scale for s in std)


def _compare(processor: Any, ready: Preprocess) -> None:
    """Prepare one image both ways: a processor may do more than its settings tell."""
    height, width = ready.size
    if ready.crop or isinstance(ready.resize, tuple):
        height, width = height + height // 4, width + width // 8
    y, x = np.mgrid[:height, :width] * (2 * np.pi / 64)
    waves = np.stack([np.sin(x), np.sin(y), np.sin(x + y)], axis=-1)
    from PIL import Image

    image = Image.fromarray((128 + 80 * waves).astype(np.uint8))
    theirs = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0]).float()
    ours = ready(image)
    if theirs.shape != ours.shape:
        raise _untranslatable(processor, f"it gives {tuple(theirs.shape)} for {tuple(ours.shape)}")
    difference = (ready.denormalize(theirs) - ready.denormalize(ours)).abs().mean().item()
    if not difference < _TOLERANCE:
        raise _untranslatable(processor, f"pixels differ by {difference:.2g} of their range")


def _untranslatable(processor: Any, why: str) -> ModelLoadError:
    return ModelLoadError(
        f"neotta cannot prepare images as {type(processor).__name__} does ({why}): "
        "say what to do with load_model(..., preprocess=Preprocess(...))"
    )
