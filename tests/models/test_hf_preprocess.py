"""Image processors of many kinds, made from their settings, against the translation of them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from neotta.errors import ModelLoadError
from neotta.models._hf import preprocess_from_processor

transformers = pytest.importorskip("transformers")

CONFIG = SimpleNamespace(image_size=48)
SQUARE = {"height": 48, "width": 48}
TRANSLATED = {
    "vit": ("ViT", {"size": SQUARE}),
    "vit_oblong": ("ViT", {"size": {"height": 48, "width": 32}, "resample": 3}),
    "vit_not_normalised": ("ViT", {"size": SQUARE, "do_normalize": False}),
    "vit_not_rescaled": (
        "ViT",
        {"size": SQUARE, "do_rescale": False, "image_mean": [120.0] * 3, "image_std": [60.0] * 3},
    ),
    "vit_other_scale": ("ViT", {"size": SQUARE, "rescale_factor": 1 / 127.5}),
    "deit": ("DeiT", {"size": {"height": 56, "width": 56}, "crop_size": SQUARE}),
    "bit": ("Bit", {"size": {"shortest_edge": 57}, "crop_size": SQUARE}),
    "bit_not_resized": ("Bit", {"do_resize": False, "crop_size": SQUARE}),
    "convnext_small": ("ConvNext", {"size": {"shortest_edge": 48}, "crop_pct": 0.875}),
    "convnext_large": ("ConvNext", {"size": {"shortest_edge": 384}}),
    "efficientnet_offset": (
        "EfficientNet",
        {
            "size": SQUARE,
            "rescale_offset": True,
            "rescale_factor": 1 / 127.5,
            "include_top": False,
            "resample": 2,
        },
    ),
}


@pytest.mark.parametrize(("kind", "options"), TRANSLATED.values(), ids=TRANSLATED.keys())
def test_the_same_pixels(kind, options):
    processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
    ready = preprocess_from_processor(processor, CONFIG)
    y, x = np.mgrid[:97, :83] / 15
    waves = np.stack([np.sin(x), np.cos(y), np.sin(x - y)], axis=-1)
    image = Image.fromarray((128 + 100 * waves).astype(np.uint8))
    theirs = torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0]).float()
    ours = ready(image)
    assert ours.shape == theirs.shape
    assert (ready.denormalize(ours) - ready.denormalize(theirs)).abs().max() < 2.01 / 255


def test_without_resizing_or_crop_images_must_have_the_models_size():
    ready = preprocess_from_processor(transformers.ViTImageProcessor(do_resize=False), CONFIG)
    assert ready.size == (48, 48)
    assert ready.resize is None
    assert not ready.crop


def test_a_timm_model_in_transformers_wrapper():
    cfg = {
        "input_size": [3, 48, 48],
        "crop_pct": 0.75,
        "interpolation": "bilinear",
        "mean": [0.1] * 3,
        "std": [0.2] * 3,
    }
    processor = transformers.TimmWrapperImageProcessor(pretrained_cfg=cfg, architecture="resnet18")
    ready = preprocess_from_processor(processor, CONFIG)
    assert (ready.size, ready.resize, ready.crop) == ((48, 48), 64, True)
    assert (ready.mean, ready.std) == ((0.1,) * 3, (0.2,) * 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("MobileViT", {"size": {"shortest_edge": 48}, "crop_size": SQUARE, "do_flip_channel_order": True}),
        ("EfficientNet", {"size": SQUARE, "include_top": True}),
        ("ViT", {"size": {"max_height": 48, "max_width": 48}}),
    ],
    ids=["flips_colours", "normalises_twice", "keeps_the_ratio"],
)
def test_what_cannot_be_translated_is_refused(kind, options):
    processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
    with pytest.raises(ModelLoadError, match=f"cannot prepare images as {kind}ImageProcessor.*preprocess="):
        preprocess_from_processor(processor, CONFIG)
