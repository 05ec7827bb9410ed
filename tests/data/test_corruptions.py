"""Laws that every corruption obeys, and what is particular to each."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from scipy import ndimage
from support.legacy_draws import LegacyDraws
from test_decode import bomb

from neotta.data import digits
from neotta.data.base import ImageDataset
from neotta.data.corrupted import CorruptedDataset
from neotta.data.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    PRESETS,
    SEVERITIES,
    apply,
    blurs,
    common,
    corrupt,
    pixels,
    weather,
)
from neotta.data.corruptions.common import Draws, draws_for, fractal
from neotta.data.corruptions.frost import GROWN, RECIPES, Textures, grown
from neotta.errors import DataError, InputError, OptionError, UnknownNameError

NAMES = CORRUPTIONS + EXTRA_CORRUPTIONS
STOCHASTIC = {
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "frost",
    "fog",
    "elastic_transform",
    "speckle_noise",
    "spatter",
}


def picture(height=40, width=40, seed=0):
    """Smooth colours with some noise: neither flat nor white noise."""
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(height, width, 3)), (4, 4, 0))
    smooth = (smooth - smooth.min()) / max(np.ptp(smooth), 1e-9) * 220
    return (smooth + rng.integers(0, 30, smooth.shape)).astype(np.uint8)


def draws(seed=0):
    return Draws(np.random.default_rng(seed))


# Every corruption


def test_there_are_fifteen_and_four():
    assert len(CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4
    for table in PRESETS.values():
        assert set(table) == set(NAMES)
        assert all(len(severities) == 5 for severities in table.values())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_severity_gives_a_new_picture(name, preset):
    image = picture()
    before = image.copy()
    for severity in SEVERITIES:
        result = corrupt(image, name, severity, preset)
        assert result.shape == image.shape
        assert result.dtype == np.uint8
        assert result.flags.writeable
        assert result.flags.c_contiguous
        assert not np.shares_memory(result, image)
        assert not np.array_equal(result, image)
    assert np.array_equal(image, before)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    severity=st.sampled_from(SEVERITIES),
    preset=st.sampled_from(tuple(PRESETS)),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_size_works_and_the_arguments_decide_the_result(name, height, width, severity, preset, seed):
    image = picture(height, width)
    first = corrupt(image, name, severity, preset, seed, image_id="a")
    assert first.shape == image.shape
    assert np.array_equal(first, corrupt(image, name, severity, preset, seed, image_id="a"))


@pytest.mark.parametrize("name", NAMES)
def test_views_give_the_same_as_copies(name):
    image = picture(31, 45)[::-1, ::2]
    assert np.array_equal(corrupt(image, name), corrupt(np.ascontiguousarray(image), name))


@pytest.mark.parametrize("name", NAMES)
def test_seed_and_image_id_change_the_noise_and_nothing_else(name):
    image = picture()
    variants = [
        corrupt(image, name),
        corrupt(image, name, seed=1),
        corrupt(image, name, image_id="other"),
    ]
    different = {variant.tobytes() for variant in variants}
    assert len(different) == (3 if name in STOCHASTIC else 1)


def test_the_noise_is_the_same_in_every_process():
    code = (
        "import hashlib, numpy as np; from neotta.data.corruptions import corrupt;"
        "image = np.arange(16 * 16 * 3).reshape(16, 16, 3).astype(np.uint8);"
        "result = b''.join(corrupt(image, name, 3, 'cifar', 7, image_id='ä/1.png').tobytes()"
        " for name in ('gaussian_noise', 'frost', 'spatter'));"
        "print(hashlib.sha256(result).hexdigest())"
    )
    image = np.arange(16 * 16 * 3).reshape(16, 16, 3).astype(np.uint8)
    names = ("gaussian_noise", "frost", "spatter")
    here = b"".join(corrupt(image, name, 3, "cifar", 7, image_id="ä/1.png").tobytes() for name in names)
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        there = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert there.stdout.strip() == hashlib.sha256(here).hexdigest()


def test_draws_depend_on_each_of_the_four():
    keys = [
        (0, "a", "fog", 1),
        (1, "a", "fog", 1),
        (0, "b", "fog", 1),
        (0, "a", "snow", 1),
        (0, "a", "fog", 2),
    ]
    assert len({draws_for(*key).normal((4,)).tobytes() for key in keys}) == len(keys)


# Bad input


@pytest.mark.parametrize(
    ("image", "advice"),
    [
        (np.zeros((8, 8), np.uint8), "repeat the grey channel"),
        (np.zeros((8, 8, 1), np.uint8), "repeat the grey channel"),
        (np.zeros((8, 8, 4), np.uint8), r"\[\.\.\., :3\]"),
        (np.zeros((3, 8, 8), np.uint8), "transpose"),
        (np.zeros((8, 3, 8), np.uint8), "convert it to RGB first"),
        (np.zeros((2, 8, 8, 3), np.uint8), "one by one"),
        (np.zeros((8, 8, 3), np.float32), "0..255"),
        (np.zeros((8, 8, 3), np.int64), "0..255"),
        (np.zeros((0, 8, 3), np.uint8), "no pixels"),
        ([[1, 2, 3]], "list"),
    ],
)
def test_what_is_no_picture_is_refused_with_advice(image, advice):
    with pytest.raises(InputError, match=advice):
        corrupt(image, "fog")


@pytest.mark.parametrize("severity", [0, 6, -1, 3.0, "3", None, True])
def test_a_wrong_severity_is_refused(severity):
    with pytest.raises(OptionError, match="1, 2, 3, 4, 5"):
        corrupt(picture(), "fog", severity)


@pytest.mark.parametrize("seed", [0.5, "0", None, True])
def test_a_wrong_seed_is_refused(seed):
    with pytest.raises(OptionError, match="seed must be a whole number"):
        corrupt(picture(), "fog", seed=seed)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_pillow_images_are_taken_as_well(mode):
    picture = Pillow.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)).convert(mode)
    as_array = np.asarray(picture.convert("RGB"))
    np.testing.assert_array_equal(corrupt(picture, "contrast", 5), corrupt(as_array, "contrast", 5))


def test_the_severity_is_3_unless_it_is_given():
    assert np.array_equal(corrupt(picture(), "contrast"), corrupt(picture(), "contrast", 3))


def test_numpy_integers_are_integers():
    same = corrupt(picture(), "fog", np.int64(2), seed=np.uint8(7))
    assert np.array_equal(same, corrupt(picture(), "fog", 2, seed=7))


def test_unknown_names_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'gaussian_noise'"):
        corrupt(picture(), "gausian_noise")
    with pytest.raises(UnknownNameError, match="did you mean 'spatter'"):
        corrupt(picture(), "spater")
    with pytest.raises(UnknownNameError, match=r"known: .*brightness.*zoom_blur"):
        corrupt(picture(), "?")
    with pytest.raises(UnknownNameError, match="unknown preset 'coco': known: cifar, imagenet, tiny"):
        corrupt(picture(), "fog", preset="coco")


# Noise


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), amount=st.floats(0, 1))
def test_impulse_noise_leaves_the_others_exactly(seed, amount):
    image = picture()
    result = pixels.impulse_noise(image, draws(seed), amount)
    changed = result != image
    assert np.isin(result[changed], (0, 255)).all()
    assert abs(changed.mean() - amount) < 0.06


def test_shot_noise_leaves_black_black():
    black = np.zeros((32, 32, 3), np.uint8)
    assert not pixels.shot_noise(black, draws(), 3).any()


@pytest.mark.parametrize(
    ("corruption", "deviation"),
    [
        (lambda image: pixels.gaussian_noise(image, draws(), 0.05), 0.05 * 255),
        (lambda image: pixels.speckle_noise(image, draws(), 0.1), 0.1 * 128),
        (lambda image: pixels.shot_noise(image, draws(), 100), (128 / 255 / 100) ** 0.5 * 255),
    ],
)
def test_noise_has_the_mean_and_deviation_it_should(corruption, deviation):
    result = corruption(np.full((100, 100, 3), 128, np.uint8)).astype(float)
    assert result.mean() == pytest.approx(127.5, abs=0.5)  # truncation takes half a level
    assert result.std() == pytest.approx(deviation, rel=0.03)


# Blurs


def literal_glass(image, source, sigma, reach, sweeps):
    """The definition, pixel by pixel."""
    height, width = image.shape[:2]
    result = common.to_bytes(common.gaussian(image / 255, sigma))
    for _ in range(sweeps):
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                dx, dy = (int(source.integers(-reach, reach)) for _ in range(2))
                result[row, column] = result[row + dy, column + dx]
    return common.to_bytes(common.gaussian(result / 255, sigma))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    height=st.integers(1, 24),
    width=st.integers(1, 24),
    reach=st.integers(1, 4),
    sweeps=st.integers(1, 3),
)
def test_glass_blur_is_its_sequential_definition(seed, height, width, reach, sweeps):
    image = picture(height, width)
    fast = blurs.glass_blur(image, LegacyDraws(seed), 0.5, reach, sweeps)
    assert np.array_equal(fast, literal_glass(image, LegacyDraws(seed), 0.5, reach, sweeps))


@pytest.mark.parametrize(("severity", "total"), list(enumerate((1, 1, 1, 1.012975, 1.010786))))
def test_the_defocus_kernel_is_not_normalised_again(severity, total):
    kernel = blurs.defocus_kernel(*PRESETS["imagenet"]["defocus_blur"][severity])
    assert kernel.sum() == pytest.approx(total, abs=2e-6)


@pytest.mark.parametrize("size", [(40, 40), (7, 30), (1, 5)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_defocus_blur_is_a_correlation_with_its_kernel(severity, size):
    image = picture(*size)
    radius, alias = PRESETS["imagenet"]["defocus_blur"][severity - 1]
    kernel = blurs.defocus_kernel(radius, alias).astype(float)
    direct = ndimage.correlate(image / 255, kernel[..., None], mode="mirror")
    result = blurs.defocus_blur(image, radius, alias)
    assert np.abs(result.astype(int) - common.to_bytes(direct)).max() <= 1


@settings(max_examples=20, deadline=None)
@given(angle=st.floats(-180, 180), radius=st.integers(1, 12), sigma=st.floats(0.5, 10))
def test_motion_blur_is_a_sum_of_displaced_pictures(angle, radius, sigma):
    image = picture(20, 25)
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    total = np.zeros(image.shape)
    rows, columns = np.arange(20)[:, None], np.arange(25)
    for step, weight in enumerate(weights / weights.sum()):
        down = int(np.ceil(step * np.sin(np.radians(angle)) - 0.5))
        right = int(np.ceil(step * np.cos(np.radians(angle)) - 0.5))
        total += weight * image[np.clip(rows + down, 0, 19), np.clip(columns + right, 0, 24)]
    expected = np.floor(np.floor(257 * total + 0.5) / 257)
    result = blurs.motion_blur_along(image, radius, sigma, angle)
    assert np.abs(result - expected).max() <= 1
    assert (result != expected).mean() < 0.01


def test_zoom_factors_are_those_of_a_float_range():
    """Bit for bit: their rounding may decide how many pixels are cut out."""
    last = {"imagenet": (1.11, 1.15, 1.20, 1.24, 1.30), "tiny": (1.06, 1.11, 1.15, 1.20, 1.25)}
    last["cifar"] = last["tiny"]
    for preset, ends in last.items():
        for (step, count), end in zip(PRESETS[preset]["zoom_blur"], ends, strict=True):
            factors = [1 + i * ((1 + step) - 1) for i in range(count)]
            assert factors == np.arange(1, end + step / 2, step).tolist()


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 50), factor=st.floats(1, 4))
def test_a_zoom_stretches_the_middle(size, factor):
    """A ramp stays a ramp: corners of the crop become corners of the enlarged picture."""
    ramp = np.arange(size, dtype=float)
    zoomed = blurs.clipped_zoom(np.tile(ramp, (size, 1)), factor)
    crop = int(np.ceil(size / factor))
    start, enlarged = (size - crop) // 2, round(crop * factor)
    whole = np.linspace(start, start + crop - 1, enlarged)
    trim = (enlarged - size) // 2
    assert zoomed.shape == (size, size)
    np.testing.assert_allclose(zoomed, np.tile(whole[trim : trim + size], (size, 1)), atol=1e-9)


@pytest.mark.parametrize("name", ["gaussian_blur", "zoom_blur", "motion_blur", "glass_blur", "pixelate"])
def test_a_flat_picture_stays_flat(name):
    for level in (0, 77, 255):
        flat = np.full((48, 64, 3), level, np.uint8)
        result = corrupt(flat, name, 5).astype(int)
        assert np.ptp(result) <= 1
        assert abs(result.mean() - level) <= 2


# Weather


@pytest.mark.parametrize("size", [2, 16, 64])
def test_a_cloud_fills_zero_to_one_and_is_pinned_nowhere_else(size):
    clouds = [fractal(draws(seed), size, 2.0) for seed in range(5)]
    for cloud in clouds:
        assert cloud.shape == (size, size)
        assert cloud.min() == 0
        assert cloud.max() == 1
    assert len({cloud.tobytes() for cloud in clouds}) == 5


def test_fog_keeps_the_brightest_value():
    image = picture()
    image[0, 0] = 255
    assert weather.fog(image, draws(), 2.0, 2.0).max() <= 255
    assert weather.fog(np.zeros((8, 8, 3), np.uint8), draws(), 2.0, 2.0).max() == 0


def test_grown_frost_looks_like_the_photographs():
    """Bluish white, fine crystals: near the statistics of the textures behind the published pictures."""
    for number in range(len(RECIPES)):
        texture = grown(number)
        red, green, blue = texture.reshape(-1, 3).mean(axis=0)
        grey = texture @ np.array([0.299, 0.587, 0.114])
        assert red < green < blue
        assert 110 < grey.mean() < 215
        assert 15 < grey.std() < 50
        assert 6 < np.abs(np.diff(grey, axis=1)).mean() < 20
        assert not texture.flags.writeable
    assert 140 < np.mean([grown(number).mean() for number in range(len(RECIPES))]) < 185


def test_frost_takes_textures_from_a_folder(tmp_path):
    Pillow.new("RGB", (300, 200), (10, 20, 30)).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("not a texture")
    image = np.full((50, 60, 3), 100, np.uint8)
    result = corrupt(image, "frost", 1, textures=tmp_path)  # 1 * image + 0.4 * texture
    assert np.array_equal(result, np.broadcast_to(np.array([104, 108, 112], np.uint8), image.shape))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", [(3, 700), (700, 3), (520, 530)])
def test_small_textures_are_enlarged(preset, size):
    texture = GROWN.scaled({"imagenet": 1.0, "tiny": 0.3, "cifar": 0.2}[preset]).covering(0, *size)
    assert texture.shape[0] >= size[0]
    assert texture.shape[1] >= size[1]
    assert corrupt(picture(*size), "frost", 5, preset).shape == (*size, 3)


def test_textures_are_shrunk_to_the_published_sizes(tmp_path):
    sizes = {(900, 600): (270, 180), (560, 315): (168, 94), (527, 350): (158, 105), (660, 495): (198, 148)}
    for number, size in enumerate(sizes):
        ramp = np.tile(np.linspace(0, 255, size[0]).astype(np.uint8)[None, :, None], (size[1], 1, 3))
        Pillow.fromarray(ramp).save(tmp_path / f"{number}.png")
    textures = Textures.of_folder(tmp_path).scaled(0.3)
    for number, (width, height) in enumerate(sizes.values()):
        texture = textures.covering(number, 1, 1)
        assert texture.shape == (height, width, 3)
        assert (np.diff(texture[0, :, 0].astype(int)) >= 0).all()  # a ramp still


def test_a_folder_without_textures_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        corrupt(picture(), "frost", textures=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no image"):
        corrupt(picture(), "frost", textures=tmp_path / "empty")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image at all")
    with pytest.raises(DataError, match=r"textures: .*a\.png.* is not an image"):
        corrupt(picture(), "frost", textures=tmp_path / "broken")


# Digital


def hsv_brightness(image, shift):
    hue, saturation, value = pixels.rgb_to_hsv(image.reshape(-1, 3))
    return pixels.hsv_to_rgb(hue, saturation, np.clip(value + shift, 0, 1)).reshape(image.shape)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.sampled_from([0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]))
def test_brightness_by_table_is_brightness_by_hsv(seed, shift):
    image = np.random.default_rng(seed).integers(0, 256, (50, 50, 3)).astype(np.uint8)
    image[:10] //= 32  # dark pixels, of which many are whole numbers after the shift
    assert np.array_equal(pixels.brightness(image, shift), hsv_brightness(image, shift))


def test_black_becomes_grey_in_brightness():
    assert (pixels.brightness(np.zeros((2, 2, 3), np.uint8), 0.5) == 127).all()


def test_hsv_there_and_back_is_the_identity_but_for_truncation():
    colours = np.random.default_rng(0).integers(0, 256, (5000, 3)).astype(np.uint8)
    back = pixels.hsv_to_rgb(*pixels.rgb_to_hsv(colours))
    assert np.abs(back.astype(int) - colours).max() <= 1


def test_saturation_tints_grey_red():
    grey = np.full((2, 2, 3), 100, np.uint8)
    assert np.array_equal(pixels.saturate(grey, 2, 0), grey)
    assert pixels.saturate(grey, 5, 0.1)[0, 0].tolist() == [100, 90, 90]


def test_contrast_pulls_towards_the_mean_of_each_channel():
    image = np.zeros((2, 2, 3), np.uint8)
    image[0] = (100, 200, 40)
    assert pixels.contrast(image, 0.5)[:, 0].tolist() == [[75, 150, 30], [25, 50, 10]]


# Filters and the primitives of spatter


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 12), position=st.floats(-60, 60))
def test_borders_fold_as_padding_does(size, position):
    line = np.random.default_rng(size).normal(size=size)
    for fold, mode in ((common.fold_mirror, "reflect"), (common.fold_reflect, "symmetric")):
        padded = np.pad(line, 80, mode=mode)
        expected = np.interp(position + 80, np.arange(len(padded)), padded)
        folded = fold(np.array([position]), size)
        assert np.interp(folded, np.arange(size), line) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_dense_gaussian_is_the_gaussian(size):
    field = np.random.default_rng(0).normal(size=(size, size)).astype(np.float32)
    matrix = common.reflecting_gaussian(size, 19.5, 3.0)
    direct = common.gaussian(field, 19.5, "reflect", 3.0)
    np.testing.assert_allclose(matrix @ field @ matrix.T, direct, atol=1e-6)


def test_the_chamfer_distance_takes_the_shortest_steps():
    marked = np.zeros((9, 9), bool)
    marked[4, 4] = True
    distance = weather.chamfer_distance(marked)
    assert distance[4, 4] == 0
    for (down, right), length in {
        (0, 3): 3,
        (2, 2): 2.8,
        (1, 2): 2.1969,
        (4, 2): 2 * 2.1969,
        (3, 2): 3.5969,
    }.items():
        for row, column in ((4 + down, 4 + right), (4 - down, 4 - right), (4 + right, 4 - down)):
            assert distance[row, column] == pytest.approx(length)


def test_canny_finds_the_outline_of_a_square():
    grey = np.zeros((20, 20), np.uint8)
    grey[5:15, 5:15] = 200
    found = weather.canny(grey, 50, 150)
    assert found[4:6].any(axis=0)[6:14].all()
    assert not found[8:12, 8:12].any()
    assert not found[:3].any()
    assert not weather.canny(grey // 20, 50, 150).any()  # too faint


def test_equalisation_spreads_the_histogram():
    grey = np.array([[3, 3, 4], [4, 5, 9]], np.uint8)
    assert weather.equalise(grey).tolist() == [[0, 0, 128], [128, 191, 255]]
    assert (weather.equalise(np.full((2, 2), 7, np.uint8)) == 7).all()


class NoNoise:
    """A layer that is dry everywhere."""

    def normal(self, shape):
        return np.zeros(shape)


def test_spatter_without_a_drop_leaves_the_picture():
    image = picture()
    for severity in (1, 2, 3):
        assert np.array_equal(apply(image, "spatter", severity, "imagenet", NoNoise()), image)


# A dataset seen through a corruption


class Two(ImageDataset):
    def __init__(self):
        self.domain, self.ids = "two", ["x/a.png", "y/b.png"]
        self.labels, self.classes = np.array([0, 1]), ("x", "y")

    def read(self, index):
        return picture(seed=index)


def test_a_dataset_seen_through_a_corruption():
    dataset = CorruptedDataset(Two(), "gaussian_noise", 2, "tiny", seed=5)
    assert dataset.domain == "two/gaussian_noise/2"
    assert list(dataset.ids) == ["x/a.png", "y/b.png"]
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.classes == ("x", "y")
    assert len(dataset) == 2
    expected = corrupt(picture(seed=1), "gaussian_noise", 2, "tiny", 5, image_id="y/b.png")
    assert np.array_equal(dataset.read(1), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(dataset)).read(1), expected)


def test_a_dataset_refuses_a_wrong_corruption_at_once():
    with pytest.raises(UnknownNameError):
        CorruptedDataset(Two(), "mist")
    with pytest.raises(OptionError):
        CorruptedDataset(Two(), "fog", 9)


def test_textures_are_read_as_safely_as_samples(tmp_path):
    Pillow.new("RGBA", (300, 300), (0, 0, 0, 0)).save(tmp_path / "clear.png")  # laid on white, as samples are
    assert Textures.of_folder(tmp_path).covering(0, 10, 10).min() == 255
    (tmp_path / "clear.png").unlink()
    (tmp_path / "huge.png").write_bytes(bomb(10_000, 10_000))
    with pytest.raises(DataError, match=r"textures: image .*huge\.png.* more than the limit"):
        Textures((str(tmp_path / "huge.png"),)).covering(0, 10, 10)
    (tmp_path / "program.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EOF\n")
    with pytest.raises(DataError, match="is not an image of a known format"):
        Textures((str(tmp_path / "program.jpg"),)).covering(0, 10, 10)


def test_a_sample_is_known_by_the_content_of_its_textures_not_by_their_place(tmp_path):
    places = {"a": 10, "b": 10, "other": 200}
    for place, grey in places.items():
        (tmp_path / place).mkdir()
        Pillow.new("RGB", (300, 300), (grey,) * 3).save(tmp_path / place / "1.png")
    frosts = {place: CorruptedDataset(digits(), "frost", 3, "cifar", textures=tmp_path / place) for place in places}
    for fact in ("digest", "stamp"):
        facts = {place: getattr(frost, fact)(0) for place, frost in frosts.items()}
        assert facts["a"] == facts["b"] != facts["other"]
    fog = CorruptedDataset(digits(), "fog", 3, "cifar", textures=tmp_path / "a")
    assert fog.digest(0) == CorruptedDataset(digits(), "fog", 3, "cifar").digest(0)
