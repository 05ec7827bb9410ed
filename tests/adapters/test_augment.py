"""The augmentation: its ranges, its randomness, and images of any size."""

from __future__ import annotations

import colorsys
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.augmentation import affine, augment, blur
from torch.nn import functional

from neotta.adapters import augment as ops
from neotta.adapters.augment import Augmentation, Parameters
from neotta.errors import InputError

STILL = Parameters(
    brightness=1, contrast=1, saturation=1, hue=0, gamma=1, angle=0, scale=1, sigma=0.001, translate=(0, 0), flip=False
)


def seeded(seed=0):
    return Augmentation(torch.Generator().manual_seed(seed))


def pixels(*shape, dtype=torch.float32, seed=1):
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(
    height=st.integers(1, 21),
    width=st.integers(1, 21),
    channels=st.sampled_from([1, 3]),
    batch=st.integers(0, 3),
    double=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_size(height, width, channels, batch, double, seed):
    images = pixels(batch, channels, height, width, dtype=torch.float64 if double else torch.float32)
    kept = images.clone()
    views = seeded(seed)(images)
    assert views.shape == images.shape
    assert views.dtype == images.dtype
    assert ((views >= 0) & (views <= 1)).all()
    assert torch.equal(images, kept), "the images are the caller's"


@pytest.mark.parametrize("size", [(16, 16), (17, 9), (3, 2), (1, 1)])
def test_identity_when_nothing_is_drawn(size):
    images = pixels(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(augment(images, STILL), images, atol=1e-7, rtol=0)


@pytest.mark.parametrize("changed", [{"flip": True}, {"translate": (2, 1)}, {"angle": 9.0}, {"hue": 0.2}])
def test_every_parameter_counts(changed):
    images = pixels(1, 3, 12, 12)
    assert not torch.allclose(augment(images, STILL._replace(**changed)), images, atol=1e-3)


def test_noise_is_added():
    images = torch.full((1, 1, 64, 64), 0.5)
    noisy, drawn = seeded(3), seeded(3).draw(64, 64)
    noise = noisy(images) - augment(images, drawn)
    assert noise.std() == pytest.approx(ops.NOISE, rel=0.1)


def test_parameters_lie_in_their_ranges_and_fill_them():
    augmentation = seeded()
    drawn = [augmentation.draw(48, 32) for _ in range(400)]
    for name, (low, high) in ops.RANGES.items():
        values = torch.tensor([getattr(one, name) for one in drawn])
        assert low <= values.min() < low + 0.05 * (high - low), name
        assert high >= values.max() > high - 0.05 * (high - low), name
    assert {one.translate[0] for one in drawn} == set(range(-4, 5)), "1/16 of 64 pixels, right and left"
    assert {one.translate[1] for one in drawn} == set(range(-6, 7)), "1/16 of 96 pixels, up and down"
    assert 150 < sum(one.flip for one in drawn) < 250
    assert len({tuple(one.order) for one in drawn}) > 100, "of 120 orders"


def test_seed_decides_and_nothing_else():
    images = pixels(2, 3, 8, 8)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = seeded(3)(images), seeded(3)(images)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before), "the global generator is left alone"
    assert not torch.equal(first, seeded(4)(images))


def test_dtype_changes_nothing():
    images = pixels(2, 3, 16, 16)
    torch.testing.assert_close(seeded()(images.double()).float(), seeded()(images), atol=1e-4, rtol=0)


def test_window_is_what_padding_and_cropping_give():
    """Only the part of the picture that is wanted is computed; it is as if all had been."""
    images = pixels(2, 3, 10, 14, dtype=torch.float64)
    drawn = seeded().draw(10, 14)._replace(order=(), flip=False, translate=(9, -8), angle=40.0, scale=0.5, sigma=0.8)
    whole = functional.pad(images, (7, 7, 5, 5), mode="replicate")
    whole = blur(affine(whole, drawn.angle, drawn.translate, drawn.scale), drawn.sigma)
    torch.testing.assert_close(augment(images, drawn), whole[:, :, 5:15, 7:21])
    assert (augment(images, drawn) == 0).any(), "this one goes beyond the padding"


def test_hue_goes_round_the_circle():
    images = pixels(2, 3, 6, 6, dtype=torch.float64)
    third = ops.hue(images.clone(), 1 / 3)
    torch.testing.assert_close(third, images[:, [2, 0, 1]])
    for shift in (-1.0, 0.0, 1.0, 2.0):
        torch.testing.assert_close(ops.hue(images.clone(), shift), images)
    gray = images[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(ops.hue(gray.clone(), 0.3), gray)


@pytest.mark.parametrize("shift", [-0.4, -0.06, 0.0, 0.1, 0.5])
def test_hue_of_every_kind_of_colour(shift):
    """Whichever channel is the largest or the smallest, and where two or all of them are equal."""
    colours = torch.tensor(list(itertools.product([0.0, 0.2, 0.5, 0.9, 1.0], repeat=3)), dtype=torch.float64)
    images = colours.T.reshape(1, 3, 5, 25)
    hsv = [colorsys.rgb_to_hsv(*colour) for colour in colours.tolist()]
    wanted = [colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value) for hue, saturation, value in hsv]
    turned = ops.hue(images.clone(), shift).reshape(3, -1).T
    torch.testing.assert_close(turned, torch.tensor(wanted, dtype=images.dtype))


def test_normalisation_is_undone_and_done_again():
    images, mean, std = pixels(2, 3, 9, 9, dtype=torch.float64), pixels(3, 1, 1), pixels(3, 1, 1, seed=2) + 0.1
    normalised = Augmentation(torch.Generator().manual_seed(3), mean=mean, std=std)((images - mean) / std)
    torch.testing.assert_close(normalised, (seeded(3)(images) - mean) / std)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [0.001, 0.1, 0.2, 0.3, 0.5, 2.0])
def test_blur_leaves_out_nothing_that_can_be_seen(sigma, dtype):
    images = pixels(1, 3, 8, 8, dtype=dtype)
    weights = torch.exp(-0.5 * (torch.arange(-2, 3, dtype=torch.float64) / sigma) ** 2)
    kernel = torch.outer(weights, weights) / weights.sum() ** 2
    spread = functional.pad(images.double(), (2, 2, 2, 2), mode="reflect").transpose(0, 1)
    wanted = functional.conv2d(spread, kernel[None, None]).transpose(0, 1)
    torch.testing.assert_close(blur(images, sigma).double(), wanted, atol=4 * torch.finfo(dtype).eps, rtol=0)


def test_two_channels_are_refused():
    with pytest.raises(InputError, match="these have 2"):
        seeded()(pixels(1, 2, 8, 8))
