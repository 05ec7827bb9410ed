from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from neotta.errors import InputError, OptionError
from neotta.models.preprocess import INTERPOLATIONS, Preprocess

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TINY = Preprocess(size=(8, 8), resize=10, crop=True, mean=MEAN, std=STD)

sides = st.integers(5, 70)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def muted(height: int, width: int) -> np.ndarray:
    """Noise so far from black and white that no overshoot of an interpolation is clipped."""
    return 96 + noise(height, width) // 4


def test_the_interpolations_are_those_of_pillow():
    assert {name: int(Image.Resampling[name.upper()]) for name in INTERPOLATIONS} == INTERPOLATIONS


@settings(deadline=None, max_examples=60)
@given(
    sides,
    sides,
    st.sampled_from(["bilinear", "bicubic", "nearest", "lanczos"]),
    st.sampled_from([0.7, 0.875, 0.95, 1.0]),
    st.sampled_from(["center", "squash"]),
)
def test_the_same_as_timm_bit_for_bit(height, width, interpolation, crop_pct, mode):
    from timm.data import create_transform

    config = {
        "input_size": (3, 24, 24),
        "interpolation": interpolation,
        "mean": MEAN,
        "std": STD,
        "crop_pct": crop_pct,
    }
    theirs = create_transform(**config, crop_mode=mode)
    side = math.floor(24 / crop_pct)
    ours = Preprocess(
        size=(24, 24),
        resize=side if mode == "center" else (side, side),
        crop=True,
        interpolation=interpolation,
        mean=MEAN,
        std=STD,
    )
    image = Image.fromarray(noise(height, width))
    assert torch.equal(ours(image), theirs(image))


@settings(deadline=None, max_examples=40)
@given(sides, sides, st.sampled_from(["nearest", "bilinear", "bicubic"]))
def test_the_same_as_hugging_face(height, width, interpolation):
    import transformers

    image = Image.fromarray(muted(height, width))  # torch and Pillow do not clip at the same step
    common = {"image_mean": MEAN, "image_std": STD, "resample": int(INTERPOLATIONS[interpolation])}
    squash = Preprocess((24, 20), (24, 20), False, interpolation, MEAN, STD)
    crop = Preprocess((24, 24), 29, True, interpolation, MEAN, STD, crop_rounding="down")
    for kind, ours, options in (
        ("ViT", squash, {"size": {"height": 24, "width": 20}}),
        ("Bit", crop, {"size": {"shortest_edge": 29}, "crop_size": {"height": 24, "width": 24}}),
    ):
        got = ours.denormalize(ours(image))
        by_torch = getattr(transformers, f"{kind}ImageProcessor")(**common, **options)
        # Transformers 5 has a class for each backend; before that, this one was Pillow's.
        by_pillow = getattr(transformers, f"{kind}ImageProcessorPil", type(by_torch))(**common, **options)
        assert (got - pixels(ours, by_pillow, image)).abs().max() < 1e-6
        if interpolation != "nearest":  # torch takes other neighbours than Pillow
            # Pillow rounds after each direction; with bicubic's negative weights that can be two steps.
            steps = 1 if interpolation == "bilinear" else 2
            assert (got - pixels(ours, by_torch, image)).abs().max() < (steps + 0.01) / 255


def pixels(ours, processor, image):
    return ours.denormalize(torch.as_tensor(processor(images=image, return_tensors="pt")["pixel_values"][0]))


@settings(deadline=None, max_examples=40)
@given(sides, sides, st.sampled_from(sorted(INTERPOLATIONS)))
def test_array_tensor_and_pillow_give_the_same(height, width, interpolation):
    array = muted(height, width)  # floating values are not clipped at the same step as 8 bits
    ready = Preprocess((8, 8), 10, True, interpolation, MEAN, STD)
    expected = ready(Image.fromarray(array))
    assert expected.shape == (3, 8, 8)
    assert expected.dtype == torch.float32
    chw = torch.from_numpy(array).permute(2, 0, 1)
    assert torch.equal(ready(array), expected)
    assert torch.equal(ready(chw), expected)
    floating = ready(chw / 255)
    assert (ready.denormalize(floating) - ready.denormalize(expected)).abs().max() < 1.5 / 255


def test_a_floating_tensor_stays_between_black_and_white():
    x = torch.from_numpy(noise(30, 30) // 128 * 255).permute(2, 0, 1) / 255
    ready = Preprocess((50, 50), (50, 50), interpolation="bicubic", mean=MEAN, std=STD)
    pixels = ready.denormalize(ready(x))
    assert pixels.min() > -1e-6
    assert pixels.max() < 1 + 1e-6


@settings(deadline=None)
@given(st.integers(1, 4), st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_denormalize_undoes_normalize(batch, dtype):
    x = torch.rand(batch, 3, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    back = TINY.denormalize(TINY.normalize(x))
    assert back.dtype == dtype
    assert torch.allclose(back, x, atol=8 * torch.finfo(dtype).eps)


def test_a_tensor_of_the_right_size_is_only_normalised():
    x = torch.rand(3, 8, 8, dtype=torch.float64)
    ready = Preprocess((8, 8), mean=MEAN, std=STD)
    assert torch.equal(ready(x), ready.normalize(x))


def test_other_modes_become_rgb():
    grey = Image.fromarray(noise(12, 12)[..., 0])
    colours = TINY.denormalize(TINY(grey))
    assert torch.allclose(colours[0], colours[2], atol=1e-6)
    assert torch.equal(TINY(grey), TINY(grey.convert("RGBA")))


def test_batch():
    images = [noise(9, 30), Image.fromarray(noise(12, 9, seed=1))]
    batch = TINY.batch(images)
    assert batch.shape == (2, 3, 8, 8)
    assert torch.equal(batch[1], TINY(images[1]))
    assert TINY.batch([]).shape == (0, 3, 8, 8)


@pytest.mark.parametrize(
    "image",
    [
        noise(8, 8).astype(np.float32),
        noise(8, 8)[..., 0],
        torch.zeros(8, 8, 3),
        torch.zeros(2, 3, 8, 8),
        torch.zeros(3, 8, 8, dtype=torch.int64),
        torch.full((3, 8, 8), 255.0),
        torch.full((3, 8, 8), -1.0),
        np.zeros((0, 8, 3), dtype=np.uint8),
        torch.zeros(3, 0, 8),
        "photo.png",
    ],
    ids=lambda image: f"{getattr(image, 'dtype', type(image))}{getattr(image, 'shape', '')}",
)
def test_what_is_no_image_is_refused(image):
    with pytest.raises(InputError):
        TINY(image)


def test_an_image_that_does_not_come_out_right_is_refused():
    with pytest.raises(InputError, match=r"8 x 16, but the model takes 8 x 8.*crop=True"):
        Preprocess((8, 8), resize=8)(noise(20, 40))
    with pytest.raises(InputError, match=r"floating tensor \(\.\.\., 3, H, W\)"):
        TINY.normalize(torch.zeros(1, 8, 8))


def test_a_nan_pixel_passes_through():
    x = torch.full((3, 8, 8), 0.5)
    x[0, 0, 0] = math.nan
    ready = Preprocess((8, 8))(x)
    assert ready[0, 0, 0].isnan()
    assert ready.isnan().sum() == 1


@settings(deadline=None)
@given(
    st.tuples(sides, sides),
    st.one_of(st.none(), sides, st.tuples(sides, sides)),
    st.booleans(),
    st.sampled_from(sorted(INTERPOLATIONS)),
    st.sampled_from(["even", "down"]),
)
def test_round_trip_through_json(size, resize, crop, interpolation, rounding):
    ready = Preprocess(size, resize, crop, interpolation, MEAN, STD, rounding)
    assert Preprocess.from_dict(json.loads(json.dumps(ready.to_dict()))) == ready


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 8.5}, "size takes"),
        ({"size": (8, 0)}, "size takes"),
        ({"size": (8, 8), "resize": 0}, "resize takes"),
        ({"size": (8, 8), "resize": 8.5}, "resize takes"),
        ({"size": (8, 8), "crop": 1}, "crop is"),
        ({"size": (8, 8), "interpolation": "cubic"}, "interpolation is one of"),
        ({"size": (8, 8), "mean": 0.5}, "mean takes three"),
        ({"size": (8, 8), "mean": (0.5, 0.5, math.nan)}, "mean takes finite"),
        ({"size": (8, 8), "std": (0.5, 0.5, 0.0)}, "std must be positive"),
        ({"size": (8, 8), "crop_rounding": "up"}, "crop_rounding is"),
        ({"size": (8, 8), "colour": "blue"}, "does not know colour"),
        ({"resize": 8}, "needs 'size'"),
    ],
)
def test_wrong_options_are_named(values, message):
    with pytest.raises(OptionError, match=message):
        Preprocess.from_dict(values)
