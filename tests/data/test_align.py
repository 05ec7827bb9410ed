"""Classes of a dataset find their outputs in a model."""

import json

import numpy as np
import pytest
from support.data_makers import class_folders, tiny_imagenet, write_image

from neotta.data.base import align, class_outputs
from neotta.data.opening import open_data
from neotta.errors import DataError


def test_labels_follow_the_model(tmp_path):
    dataset = open_data(tiny_imagenet(tmp_path)).dataset("val")
    model = ["n09999999", "n01443537", "n02124075", "n04067472"]
    aligned = align(dataset, model)
    assert [model[label] for label in aligned.labels] == [dataset.classes[label] for label in dataset.labels]
    assert aligned.classes == tuple(model)
    assert (aligned.domain, aligned.ids) == (dataset.domain, dataset.ids)
    np.testing.assert_array_equal(aligned.read(2), dataset.read(2))


def test_words_match_whatever_joins_them(tmp_path):
    dataset = open_data(class_folders(tmp_path, ["Polar_bear", "great-white shark"])).dataset()
    aligned = align(dataset, ["great white shark", "tench", "polar bear"])
    assert aligned.labels.tolist() == [2, 2, 0, 0]


def test_classes_the_model_does_not_know_are_named(tmp_path):
    dataset = open_data(class_folders(tmp_path, ["cat", "dog", "eel"])).dataset()
    with pytest.raises(DataError, match=r"2 classes that .* not know: cat, eel .*begin with dog, fox"):
        align(dataset, ["dog", "fox"])


def test_only_classes_with_samples_have_to_be_known(tmp_path):
    class_folders(tmp_path, ["cat", "dog"])
    (tmp_path / "eel").mkdir()
    assert align(open_data(tmp_path).dataset(), ["dog", "cat"]).labels.tolist() == [1, 1, 0, 0]


def test_without_labels_or_names_there_is_nothing_to_align(tmp_path):
    write_image(tmp_path / "a.png")
    with pytest.raises(DataError, match="has no labels"):
        align(open_data(tmp_path).dataset(), ["cat"])
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 8, 8, 3), np.uint8), labels=np.array([0]))
    with pytest.raises(DataError, match="does not name its classes"):
        align(open_data(tmp_path / "x.npz").dataset(), ["cat"])


def test_the_first_of_two_outputs_of_one_name_is_taken():
    assert class_outputs(["crane", "maillot"], ["crane", "maillot", "Crane"]) == (0, 1)


def test_real_tiny_imagenet_in_the_order_of_its_model(shared):
    order = json.loads((shared / "data" / "models" / "vit_tiny_patch16_224-tinyimagenet200.classes.json").read_text())
    source = open_data(shared / "data" / "tiny-imagenet-200")
    dataset = source.dataset("val")
    assert (source.layout, len(dataset)) == ("tiny-imagenet", 4000)
    aligned = align(dataset, order)
    lines = (shared / "data" / "tiny-imagenet-200" / "val" / "val_annotations.txt").read_text().splitlines()
    wnid_of = dict(line.split("\t")[:2] for line in lines)
    assert [order[label] for label in aligned.labels] == [wnid_of[name] for name in aligned.ids]
    assert aligned.read(0).shape == (64, 64, 3)
