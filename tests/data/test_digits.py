"""The bundled digits and the model trained on them."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from neotta.data.handwritten import digits
from neotta.errors import OptionError
from neotta.models.load import load_model

MODEL = str(resources.files("neotta").joinpath("assets", "digits_vit.safetensors"))


def test_the_split_is_disjoint_stratified_and_covers_everything():
    train, test = digits("train"), digits("test")
    assert len(train) == 1197
    assert len(test) == 600
    assert np.bincount(test.labels).tolist() == [60] * 10
    assert sorted([*train.ids, *test.ids]) == [f"{row:04d}" for row in range(1797)]


def test_the_split_is_the_one_the_model_was_trained_with():
    # Written down, so that a new split cannot slip in beside old weights.
    assert digits("test").ids[:8] == ["0000", "0001", "0005", "0006", "0009", "0012", "0014", "0015"]
    assert digits("test").labels[:8].tolist() == [0, 1, 5, 6, 9, 2, 4, 5]


def test_images_are_rgb_white_on_black():
    data = digits()
    image = data.read(0)
    assert image.shape == (32, 32, 3)
    assert image.dtype == np.uint8
    assert (image[..., 0] == image[..., 1]).all()
    assert (image[..., 0] == image[..., 2]).all()
    assert data.images.min() == 0
    assert data.images.max() == 255
    assert data.images.mean() < 128
    assert data.classes == tuple("0123456789")


def test_an_image_read_can_be_changed_without_harm():
    data = digits()
    before = data.read(3)
    data.read(3)[:] = 7
    assert (data.read(3) == before).all()


def test_the_digits_are_those_of_scikit_learn():
    source = pytest.importorskip("sklearn.datasets").load_digits()
    data = digits("train")
    rows = [int(name) for name in data.ids]
    assert (source.target[rows] == data.labels).all()
    # Averaging each 4 x 4 block undoes the enlargement but for its smoothing.
    small = data.images[..., 0].reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4)) * (16 / 255)
    assert np.abs(small - source.images[rows]).mean() < 1.0


def test_another_split_is_refused():
    with pytest.raises(OptionError, match="'valid'"):
        digits("valid")  # type: ignore[arg-type]


def test_the_bundled_model_is_as_good_as_it_says():
    data, loaded = digits("test"), load_model("digits")
    with torch.no_grad():
        answers = loaded.model(loaded.preprocess.batch(data.images)).argmax(dim=1).numpy()
    accuracy = float((answers == data.labels).mean())
    assert accuracy >= 0.97
    with safe_open(MODEL, framework="pt") as file:
        said = json.loads(file.metadata()["neotta"])["accuracy"]["clean"]
    assert accuracy == pytest.approx(said, abs=0.002)  # another machine may round one image the other way
    assert loaded.labels == data.classes


def test_the_model_file_is_small_and_says_how_to_use_it():
    with safe_open(MODEL, framework="pt") as file:
        card = json.loads(file.metadata()["neotta"])
    assert sum(tensor.nbytes for tensor in load_file(MODEL).values()) < 2_000_000
    assert card["architecture"] == "timm:VisionTransformer"
    assert card["labels"] == list("0123456789")
    assert card["preprocess"]["size"] == [32, 32]
