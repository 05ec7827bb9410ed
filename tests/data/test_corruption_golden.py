"""Our corruptions against recorded outputs of the public scripts.

The recordings (corruptions.npz and corruptions.json) stay outside the project: in golden/ of the folder shared/ beside
it, or of the folder that NEOTTA_SHARED names. Which images and severities there are is read there.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import PIL
import pytest
from PIL import Image as Pillow
from PIL import features
from support.legacy_draws import LegacyDraws

from neotta.data.corrupted import prepare, save
from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, PRESETS, apply, corrupt
from neotta.data.corruptions.blurs import motion_blur_along
from neotta.data.corruptions.weather import frost_over
from neotta.data.decode import decode

FOLDER = Path(os.environ.get("NEOTTA_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "golden"
NAMES = CORRUPTIONS + EXTRA_CORRUPTIONS
SEEDS = 10
SLACK = {"mean": 0.3, "std": 0.3, "psnr": 0.15, "hgrad": 0.3}
"""What truncation may do to a statistic: levels, and decibels for psnr."""

# With the recorded seed, the same generator and the same order of draws, these give the same picture.
REPLAYED = (
    "gaussian_noise",
    "shot_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "fog",
    "elastic_transform",
    "speckle_noise",
    "spatter",
)

pytestmark = pytest.mark.skipif(
    not (FOLDER / "corruptions.npz").exists() or not (FOLDER / "corruptions.json").exists(),
    reason=f"no recordings: {FOLDER} holds no corruptions.npz and .json",
)


@functools.cache
def index():
    return json.loads((FOLDER / "corruptions.json").read_text(encoding="utf-8"))


@functools.cache
def arrays():
    with np.load(FOLDER / "corruptions.npz") as archive:
        return {key: archive[key] for key in archive.files}


def entries(name):
    """Key, preset, severity, clean image and record of every recorded output of one corruption."""
    found = []
    for key, entry in index()["entries"].items():
        preset, corruption, severity, image = key.split("/")
        if corruption == name:
            found.append((key, preset, int(severity[1:]), arrays()[f"input/{preset}/{image}"], entry))
    if not found:
        pytest.skip(f"{FOLDER} holds no recording of {name}")
    return found


def statistics(image, clean):
    image, clean = image.astype(float), clean.astype(float)
    error = float(np.mean((image - clean) ** 2))
    return {
        "mean": float(image.mean()),
        "std": float(image.std()),
        "psnr": 10 * math.log10(255**2 / error) if error else math.inf,
        "hgrad": float(np.abs(np.diff(image, axis=1)).mean()),
    }


def digest(image):
    return hashlib.sha256(image.tobytes()).hexdigest()[:16]


def check(key, image, clean, entry, share=1.0):
    """At most one level from the recorded pixels, and at most a share of them at all.

    Where the pixels were too many to record, their hash or their statistics must agree.
    """
    if key in arrays():
        difference = np.abs(image.astype(int) - arrays()[key])
        assert difference.max() <= 1, f"{key}: {difference.max()} levels"
        assert (difference > 0).mean() <= share, f"{key}: {(difference > 0).mean():.1%} of the values differ"
    elif digest(image) != entry["sha256"]:
        for statistic, value in statistics(image, clean).items():
            assert abs(value - entry[statistic]) <= SLACK[statistic], f"{key}: {statistic} is {value}"


def test_the_recordings_are_of_corruptions_we_know():
    sets = {tuple(key.split("/")[:2]) for key in index()["entries"]}
    assert sets
    assert sets <= {(preset, name) for preset in PRESETS for name in NAMES}


@pytest.mark.parametrize("name", ["defocus_blur", "zoom_blur", "brightness", "contrast", "gaussian_blur", "saturate"])
def test_deterministic_corruptions_are_within_one_level(name):
    for key, preset, severity, clean, entry in entries(name):
        check(key, corrupt(clean, name, severity, preset), clean, entry, share=0.10)


def test_pixelate_is_exact():
    for key, preset, severity, clean, entry in entries("pixelate"):
        image = corrupt(clean, "pixelate", severity, preset)
        assert digest(image) == entry["sha256"], key


def test_jpeg_compression_is_exact_with_the_same_library():
    versions = index()["versions"]
    same = (versions["pillow"], versions["libjpeg_turbo"]) == (
        PIL.__version__,
        features.version_feature("libjpeg_turbo"),
    )
    for key, preset, severity, clean, entry in entries("jpeg_compression"):
        image = corrupt(clean, "jpeg_compression", severity, preset)
        if same:
            assert digest(image) == entry["sha256"], key
        elif key in arrays():
            assert np.abs(image.astype(int) - arrays()[key]).mean() <= 0.1, key


def test_motion_blur_is_within_one_level_at_the_recorded_angle():
    for key, preset, severity, clean, entry in entries("motion_blur"):
        radius, sigma = PRESETS[preset]["motion_blur"][severity - 1]
        image = motion_blur_along(clean, radius, sigma, entry["angle_deg"])
        check(key, image, clean, entry)


def test_frost_is_within_one_level_with_the_recorded_part_of_a_texture():
    checked = 0
    for key, preset, severity, clean, entry in entries("frost"):
        texture = arrays().get(f"aux/{key}/texture_crop_rgb")
        if texture is not None and key in arrays():
            keep, strength = PRESETS[preset]["frost"][severity - 1]
            check(key, frost_over(clean, texture, keep, strength), clean, entry)
            checked += 1
    assert checked, "no part of a texture is recorded"


@pytest.mark.parametrize("name", REPLAYED)
def test_the_recorded_seed_gives_the_recorded_picture(name):
    """Far stronger than statistics: every draw is made in the documented order and used the same way."""
    for key, preset, severity, clean, entry in entries(name):
        check(key, apply(clean, name, severity, preset, LegacyDraws(entry["seed"])), clean, entry)


def test_impulse_noise_replays_a_generator_seeded_from_the_recorded_seed():
    for key, preset, severity, clean, entry in entries("impulse_noise"):
        seed = np.random.RandomState(entry["seed"]).randint(2**31 - 1)
        image = apply(clean, "impulse_noise", severity, preset, DoubleDraws(seed))
        check(key, image, clean, entry, share=0)


class DoubleDraws:
    """Uniform numbers in float64 from a modern generator, as the public scripts' noise library draws them."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def uniform(self, low, high, shape=()):
        return self.generator.uniform(low, high, shape)


@pytest.mark.parametrize("name", [*REPLAYED, "impulse_noise"])
def test_our_own_draws_agree_in_distribution(name):
    """The mean over our seeds lies where the recorded mean and deviation over 20 seeds allow it to be."""
    worst = 4 * math.sqrt(1 / 20 + 1 / SEEDS)
    for key, preset, severity, clean, entry in entries(name):
        if "seeds20" not in entry:
            continue
        images = (corrupt(clean, name, severity, preset, seed, image_id=key) for seed in range(SEEDS))
        ours = [statistics(image, clean) for image in images]
        for statistic, (mean, deviation) in entry["seeds20"].items():
            value = np.mean([one[statistic] for one in ours])
            allowed = worst * deviation + SLACK[statistic]
            assert abs(value - mean) <= allowed, f"{key}: {statistic} is {value}, recorded {mean}"


def test_a_saved_picture_reads_as_the_recorded_one(tmp_path):
    """Quality, chroma subsampling and tables of the JPEG files of a corrupted folder."""
    recorded = [key for key in arrays() if key.startswith("final_jpeg85/")]
    if not recorded:
        pytest.skip(f"{FOLDER} holds no picture after saving")
    for key in recorded:
        save(arrays()[key.removeprefix("final_jpeg85/")], tmp_path / "saved.JPEG")
        with Pillow.open(tmp_path / "saved.JPEG") as saved:
            assert np.abs(np.asarray(saved).astype(int) - arrays()[key]).mean() <= 0.1


def test_source_images_are_resized_as_the_recorded_inputs(shared):
    checked = 0
    for preset, names in index()["images"].items():
        for number, name in enumerate(names):
            if (file := shared / "data" / name).is_file():
                assert np.array_equal(prepare(decode(file), preset), arrays()[f"input/{preset}/{number}"]), name
                checked += 1
    if not checked:
        pytest.skip("the source images of these recordings are not there")
