"""What each severity means, without any recorded picture: a clone without the golden material notices a slip, too."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from neotta.data.corruptions.parameters import PRESETS, TEXTURE_SCALE
from neotta.errors import OptionError

# Hashes of the published parameters of five severities each. Whoever changes a parameter changes what all results mean.
PUBLISHED = {
    "imagenet": {
        "gaussian_noise": "5d5102a2f302",
        "shot_noise": "236be58579cc",
        "impulse_noise": "20cb11bdadde",
        "defocus_blur": "2b6e5ac9feba",
        "glass_blur": "8b99a032a10e",
        "motion_blur": "b3972f3082d9",
        "zoom_blur": "0c3bf69ed513",
        "snow": "171e4a5ed1ec",
        "frost": "f4c36d01881f",
        "fog": "1567f846b238",
        "brightness": "8b8cf711aac8",
        "contrast": "867efccbe5aa",
        "elastic_transform": "66ece43e72f4",
        "pixelate": "76da7c3aea4c",
        "jpeg_compression": "9e6c2a520a67",
        "speckle_noise": "49e61adf9049",
        "gaussian_blur": "11bd92790c14",
        "spatter": "27ca63a83ac0",
        "saturate": "b9a89d86d3a8",
    },
    "tiny": {
        "gaussian_noise": "df528b8f3e46",
        "shot_noise": "9dbfaec22778",
        "impulse_noise": "0ed38b7f213e",
        "defocus_blur": "6718740f919f",
        "glass_blur": "09c9de52a335",
        "motion_blur": "9f36ab7085d8",
        "zoom_blur": "68079271efa7",
        "snow": "d5f31dec1dc9",
        "frost": "01844a2aa609",
        "fog": "157c3efeef97",
        "brightness": "8b8cf711aac8",
        "contrast": "867efccbe5aa",
        "elastic_transform": "c9ea77c2cc10",
        "pixelate": "78fed519ba2d",
        "jpeg_compression": "a757880b6982",
        "speckle_noise": "211bf613bd1e",
        "gaussian_blur": "f27ee3cb5ce6",
        "spatter": "2638eead164a",
        "saturate": "415ec68ed893",
    },
    "cifar": {
        "gaussian_noise": "bf354f78efcf",
        "shot_noise": "0ce88af5a165",
        "impulse_noise": "d7fa6c6aa266",
        "defocus_blur": "3a63dcf19592",
        "glass_blur": "59d0ee15c156",
        "motion_blur": "c9190d84d47c",
        "zoom_blur": "68079271efa7",
        "snow": "32f623d718f1",
        "frost": "68e50994890f",
        "fog": "00329635b015",
        "brightness": "621ea889272b",
        "contrast": "17a376dfc155",
        "elastic_transform": "53228ecfd340",
        "pixelate": "8c5adc8bb146",
        "jpeg_compression": "59d052c22c13",
        "speckle_noise": "519e3d9c2920",
        "gaussian_blur": "6857c3d4259f",
        "spatter": "b6f6fe684fbd",
        "saturate": "0251ad0ee141",
    },
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_the_published_parameters(preset):
    found = {
        name: hashlib.sha256(json.dumps(severities).encode()).hexdigest()[:12]
        for name, severities in PRESETS[preset].items()
    }
    assert found == PUBLISHED[preset]
    assert all(len(severities) == 5 for severities in PRESETS[preset].values())
    assert set(found) == {*CORRUPTIONS, *EXTRA_CORRUPTIONS}


def test_presets_and_the_scale_of_textures():
    assert TEXTURE_SCALE == {"imagenet": 1.0, "tiny": 0.3, "cifar": 0.2}
    assert set(PRESETS) == set(TEXTURE_SCALE)
    assert list(SEVERITIES) == [1, 2, 3, 4, 5]


GREY = np.full((8, 8, 3), 100, np.uint8)


@pytest.mark.parametrize(
    ("preset", "shifts"), [("imagenet", (0.1, 0.2, 0.3, 0.4, 0.5)), ("cifar", (0.05, 0.1, 0.15, 0.2, 0.3))]
)
def test_severity_one_is_the_first_and_five_the_last(preset, shifts):
    """Brightness adds its parameter to the value of every pixel: what is seen says which one was used."""
    for severity, shift in zip(SEVERITIES, shifts, strict=True):
        seen = corrupt(GREY, "brightness", severity, preset)
        assert abs(int(seen[0, 0, 0]) - (100 + 255 * shift)) <= 1
        assert abs(int(corrupt(GREY, "contrast", severity, preset)[0, 0, 0]) - 100) <= 1


def test_noise_grows_with_its_severity():
    photo = np.full((64, 64, 3), 128, np.uint8)
    for severity, sigma in zip(SEVERITIES, (0.04, 0.06, 0.08, 0.09, 0.10), strict=True):
        noise = corrupt(photo, "gaussian_noise", severity, "cifar", seed=1, image_id="a").astype(float) - 128
        assert noise.std() / 255 == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("severity", [0, 6, -1, True, 2.0])
def test_no_other_severity(severity):
    with pytest.raises(OptionError, match="severity is one of 1, 2, 3, 4, 5"):
        corrupt(GREY, "fog", severity)


def test_noise_depends_on_seed_id_and_severity():
    one = corrupt(GREY, "gaussian_noise", 1, seed=0, image_id="a")
    assert (one == corrupt(GREY, "gaussian_noise", 1, seed=0, image_id="a")).all()
    for other in ({"seed": 1, "image_id": "a"}, {"seed": 0, "image_id": "b"}):
        assert (one != corrupt(GREY, "gaussian_noise", 1, **other)).any()
