"""Labels of a plan's data are positions in the model's output: found by name, and by order only where that is safe."""

import warnings

import numpy as np
import PIL.Image
import pytest

from neotta.data.corruptions import CORRUPTIONS
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.errors import DataError
from neotta.evaluate.domains import Domains
from neotta.evaluate.plan import Plan
from neotta.models.preprocess import Preprocess


def opened(tmp_path, classes, labels):
    """What becomes of the labels 0, 1 and 2 of data with these classes, for a model with these labels."""
    images = np.zeros((3, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(3), classes=np.array(classes))
    domains = Domains(Plan(data=str(tmp_path / "set.npz")), labels, Preprocess(size=(8, 8)))
    return domains.dataset(domains.names()[0]).labels.tolist()


def test_names_decide_whatever_joins_their_words(tmp_path):
    assert opened(tmp_path, ["polar_bear", "cat", "dog"], ["Dog", "Polar bear", "Cat"]) == [1, 2, 0]


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (["0", "1", "2"], ["cat", "dog", "bird"]),
        (["cat", "dog", "bird"], ["LABEL_0", "LABEL_1", "LABEL_2"]),
        (list(imagenet_wnids()), [f"thing number {i}" for i in range(1000)]),
    ],
)
def test_names_that_are_only_numbers_stand_for_positions(tmp_path, classes, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert opened(tmp_path, classes, labels) == [0, 1, 2]


def test_other_names_of_the_same_number_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"none of the 3 classes of the data \(Hund, .*model's \(cat, .*same order"):
        assert opened(tmp_path, ["Hund", "Katze", "Vogel"], ["cat", "dog", "bird"]) == [0, 1, 2]


def test_names_that_are_shared_in_part_are_refused(tmp_path):
    with pytest.raises(DataError, match="2 classes that the model does not know: Katze, Vogel"):
        opened(tmp_path, ["dog", "Katze", "Vogel"], ["cat", "dog", "bird"])


def test_clean_images_stand_beside_all_corruptions():
    names = Domains(Plan(corruptions=["all"]), None, Preprocess(size=(8, 8))).names(["clean", "all", "fog"], [3])
    assert names == ("clean", *(f"{name}/3" for name in CORRUPTIONS))


@pytest.mark.parametrize("corruptions", [[], ["contrast"]])
def test_a_broken_first_image_does_not_decide(tmp_path, corruptions):
    for number in range(1, 3):
        PIL.Image.new("RGB", (32, 32)).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").write_bytes(b"no image")
    domains = Domains(Plan(data=str(tmp_path), corruptions=corruptions), None, Preprocess((32, 32), 40, crop=True))
    assert domains.preprocess.resize is None
    assert domains.dataset(domains.names(corruptions)[0]).read(1).shape == (32, 32, 3)
