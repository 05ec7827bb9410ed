"""Datasets of the field, made up in the form in which they are published: recognised, opened and described."""

from __future__ import annotations

import numpy as np
import pytest
from support.data_makers import class_folders, corrupted
from support.opened import opened

from neotta.data.layouts.cifar import CLASSES_100 as CIFAR100
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError
from neotta.evaluate.domains import Domains
from neotta.evaluate.plan import Plan
from neotta.models.preprocess import Preprocess

WNIDS = imagenet_wnids()


def test_imagenet_a_keeps_its_classes(tmp_path):
    class_folders(tmp_path, [WNIDS[30], WNIDS[6]], name="0.00{i}116_{wnid} clock _ clock_0.8656.jpg")
    source = opened(tmp_path, "imagenet-a", 4)
    assert source.class_indices == (6, 30)
    assert source.dataset().labels.tolist() == [0, 0, 1, 1]
    found = Domains(Plan(), list(WNIDS), Preprocess(size=(20, 24)), source=source)
    assert found.class_indices == [6, 30]
    assert not found.has_clean


@pytest.mark.parametrize(
    ("layout", "kinds"),
    [("imagenet-3dcc", ("near_focus", "fog_3d")), ("imagenet-c-bar", ("plasma_noise", "sparkles"))],
)
def test_relatives_of_imagenet_c(tmp_path, layout, kinds):
    corrupted(tmp_path, kinds, [3, 5], [WNIDS[2], WNIDS[9]])
    source = opened(tmp_path, layout, 16)
    assert source.domains == tuple(f"{kind}/{level}" for kind in sorted(kinds) for level in (3, 5))
    assert source.dataset(f"{kinds[0]}/3").labels.tolist() == [2, 2, 9, 9]
    corrupted(tmp_path, ["fog"], [3, 5], [WNIDS[2]])
    assert open_data(tmp_path).layout == "imagenet-c", "others beside them"


def test_anybodys_domain_folders_have_to_be_named(tmp_path):
    for domain in ("day", "night"):
        class_folders(tmp_path / domain, ["cat", "dog"])
    source = open_data(f"domain-folders={tmp_path}")
    assert source.domains == ("day", "night")
    assert source.dataset("night").labels.tolist() == [0, 0, 1, 1]


def test_cifar_100(tmp_path):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    rows = [bytes([7, label]) + image.tobytes() for label, image in zip((99, 0, 41), pixels, strict=True)]
    (tmp_path / "test.bin").write_bytes(b"".join(rows))
    source = opened(tmp_path, "cifar-100", 3)
    dataset = source.dataset()
    assert [CIFAR100[label] for label in dataset.labels] == ["worm", "apple", "lawn_mower"]
    np.testing.assert_array_equal(dataset.read(1), pixels[1].transpose(1, 2, 0))
    (tmp_path / "test.bin").write_bytes(rows[0][:-1])
    with pytest.raises(DataError, match="truncated"):
        open_data(f"cifar-100={tmp_path}").dataset()
    (tmp_path / "test.bin").unlink()
    for name in ("meta", "train", "test"):
        (tmp_path / name).write_bytes(b"pickle")
    with pytest.raises(DataError, match="are Python pickles"):
        open_data(tmp_path)


def test_cifar_100_c_is_told_by_its_labels(tmp_path):
    np.save(tmp_path / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 99], np.uint8), 5))
    source = opened(tmp_path, "cifar100-c", 10)
    assert source.classes == CIFAR100
    assert source.dataset("fog/5").labels.tolist() == [3, 99]
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 9], np.uint8), 5))
    assert open_data(tmp_path).layout == "cifar10-c"
