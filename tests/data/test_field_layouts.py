"""Datasets of the field, made up in the form in which they are published: recognised, opened and described."""

from __future__ import annotations

import numpy as np
import pytest
from support.data_makers import class_folders, corrupted, picture, write_image
from support.opened import opened

from neotta.data.layouts.cifar100 import CLASSES as CIFAR100
from neotta.data.layouts.domain_folders import VISDA_CLASSES
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError
from neotta.evaluate.domains import Domains
from neotta.models.preprocess import Preprocess

WNIDS = imagenet_wnids()


def test_imagenet_a_keeps_its_classes(tmp_path):
    class_folders(tmp_path, [WNIDS[30], WNIDS[6]], name="0.00{i}116_{wnid} clock _ clock_0.8656.jpg")
    source = opened(tmp_path, "imagenet-a", 4)
    assert source.class_indices == (6, 30)
    assert source.dataset().labels.tolist() == [0, 0, 1, 1]
    found = Domains(source, list(WNIDS), Preprocess(size=(20, 24)))
    assert found.kept == [6, 30]
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


def test_pacs(tmp_path):
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        class_folders(tmp_path / "kfold" / domain, ["person", "dog"], name="pic_{i}.jpg")
    source = opened(tmp_path, "pacs", 16)
    assert source.domains == ("photo", "art_painting", "cartoon", "sketch")
    assert source.classes[0] == "dog"
    assert source.dataset("sketch").labels.tolist() == [0, 0, 6, 6]


@pytest.mark.parametrize("real", ["Real World", "RealWorld"])
def test_office_home(tmp_path, real):
    for domain in ("Art", "Clipart", "Product", real):
        class_folders(tmp_path / domain, ["Alarm_Clock", "Bike"], name="0000{i}.jpg")
    source = opened(tmp_path, "office-home", 16)
    assert source.domains == ("Art", "Clipart", "Product", "Real World")
    assert source.classes == ("Alarm_Clock", "Bike")
    assert source.dataset("Real World").domain == "office-home/Real World"


def domainnet(root):
    for domain in ("clipart", "real", "sketch"):
        class_folders(root / domain, ["airplane", "zebra"], name=domain + "_{i}.jpg")


def test_domainnet(tmp_path):
    domainnet(tmp_path)
    source = opened(tmp_path, "domainnet", 12)
    assert source.domains == ("clipart", "real", "sketch")
    (tmp_path / "real_test.txt").write_text("real/zebra/real_1.jpg 1\nreal/airplane/real_0.jpg 0\n")
    (tmp_path / "real_train.txt").write_text("real/zebra/real_0.jpg 1\n")
    source = opened(tmp_path, "domainnet", 3)
    assert source.domains == ("real/test", "real/train")
    dataset = source.dataset("real/test")
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.ids[0] == "real/zebra/real_1.jpg"
    np.testing.assert_array_equal(dataset.read(0).shape, picture(0).shape)


def test_domainnet_126(tmp_path):
    domainnet(tmp_path)
    for domain in ("real", "sketch"):
        lines = [f"{domain}/zebra/{domain}_0.jpg 0", f"{domain}/airplane/{domain}_1.jpg 1"]
        (tmp_path / f"{domain}_list.txt").write_text("\n".join(lines))
    source = opened(tmp_path, "domainnet-126", 4)
    assert source.domains == ("real", "sketch")
    assert source.classes == ("zebra", "airplane"), "as the lists number them"
    (tmp_path / "sketch_list.txt").write_text("sketch/airplane/sketch_0.jpg 0\n")
    with pytest.raises(DataError, match="gives the label 0 to zebra and to sketch/airplane"):
        open_data(tmp_path)
    (tmp_path / "sketch_list.txt").write_text("sketch/airplane/sketch_0.jpg\n")
    with pytest.raises(DataError, match=r"line 1 of .* is not a file and its label"):
        open_data(tmp_path)


def test_visda_c(tmp_path):
    for part in ("train", "validation"):
        class_folders(tmp_path / part, VISDA_CLASSES, per_class=1)
    assert opened(tmp_path, "visda-c", 24).domains == ("validation", "train")
    write_image(tmp_path / "test" / "trunk00" / "a.jpg")
    (tmp_path / "test" / "image_list.txt").write_text("trunk00/a.jpg 11\n")
    source = opened(tmp_path, "visda-c", 25)
    assert source.domains == ("validation", "train", "test")
    assert source.dataset("test").labels.tolist() == [11]
    (tmp_path / "test" / "image_list.txt").write_text("trunk00/a.jpg 12\n")
    with pytest.raises(DataError, match="label 12, there are 12 classes"):
        source.dataset("test")


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
    with pytest.raises(DataError, match="pickled"):
        open_data(tmp_path)


def test_cifar_100_c_is_told_by_its_labels(tmp_path):
    np.save(tmp_path / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 99], np.uint8), 5))
    source = opened(tmp_path, "cifar100-c", 10)
    assert source.classes == CIFAR100
    assert source.dataset("fog/5").labels.tolist() == [3, 99]
    np.save(tmp_path / "labels.npy", np.tile(np.array([3, 9], np.uint8), 5))
    assert open_data(tmp_path).layout == "cifar10-c"
