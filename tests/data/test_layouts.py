"""Each published layout is recognised, and gives the right samples, labels and classes."""

import io
import json
import os
import pickle
import zipfile

import numpy as np
import pytest
from support.data_makers import cifar10_c, class_folders, corrupted, picture, tiny_imagenet, write_image

from neotta.data.decode import decode
from neotta.data.layouts.arrays import load_array
from neotta.data.layouts.cifar import CLASSES as CIFAR
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError, UnknownNameError

WNIDS = imagenet_wnids()


def test_the_wordnet_ids_are_the_thousand_in_class_order():
    assert len(set(WNIDS)) == 1000
    assert list(WNIDS) == sorted(WNIDS)
    assert (WNIDS[0], WNIDS[999]) == ("n01440764", "n15075141")


def test_imagenet_c(tmp_path):
    classes = [WNIDS[7], WNIDS[3], WNIDS[999]]
    corrupted(tmp_path, ["fog", "gaussian_noise"], [5, 1], classes)
    (tmp_path / "fog" / "5" / WNIDS[3] / "notes.txt").write_text("not a sample")
    (tmp_path / "fog" / "5" / WNIDS[3] / ".hidden.jpg").write_bytes(b"")
    source = open_data(tmp_path)
    assert source.layout == "imagenet-c"
    assert source.domains == ("gaussian_noise/1", "gaussian_noise/5", "fog/1", "fog/5")
    assert source.classes == WNIDS
    assert source.class_indices is None
    dataset = source.dataset("fog/5")
    assert dataset.domain == "imagenet-c/fog/5"
    assert dataset.ids == [f"{w}/{w}_{i}.JPEG" for w in (WNIDS[3], WNIDS[7], WNIDS[999]) for i in (0, 1)]
    assert dataset.labels.dtype == np.int64
    assert dataset.labels.tolist() == [3, 3, 7, 7, 999, 999]
    path = tmp_path / "fog" / "5" / WNIDS[3] / f"{WNIDS[3]}_1.JPEG"
    np.testing.assert_array_equal(dataset.read(1), decode(path))


def test_imagenet_c_unpacked_by_archive_is_the_same(tmp_path):
    corrupted(tmp_path / "weather", ["fog"], [1], [WNIDS[0]])
    corrupted(tmp_path / "noise", ["shot_noise"], [1], [WNIDS[0]])
    source = open_data(tmp_path)
    assert (source.layout, source.domains) == ("imagenet-c", ("shot_noise/1", "fog/1"))
    assert source.dataset("fog/1").ids == [f"{WNIDS[0]}/{WNIDS[0]}_{i}.JPEG" for i in (0, 1)]


def test_missing_corruption_or_severity_says_which_exist(tmp_path):
    corrupted(tmp_path, ["fog"], [1, 3], [WNIDS[0]])
    corrupted(tmp_path, ["snow"], [2], [WNIDS[0]])
    source = open_data(tmp_path)
    with pytest.raises(DataError, match=r"no domain 'fog/5'; there is fog/1,3$"):
        source.dataset("fog/5")
    with pytest.raises(DataError, match=r"no domain 'frost/5'; there is snow/2; fog/1,3$"):
        source.dataset("frost/5")
    with pytest.raises(DataError, match=r"no domain 'frost'"):
        open_data(tmp_path, domains=["frost"])
    with pytest.raises(DataError, match="3 domains, name one"):
        source.dataset()


def test_domains_are_kept_by_name_corruption_or_pattern(tmp_path):
    corrupted(tmp_path, ["fog", "snow", "gaussian_noise"], [1, 5], [WNIDS[0]])

    def domains(*wanted):
        return open_data(tmp_path, domains=wanted).domains

    assert domains("snow/5") == ("snow/5",)
    assert domains("imagenet-c/snow/5") == ("snow/5",)
    assert domains("snow") == ("snow/1", "snow/5")
    assert domains("fog/1", "*/5") == ("fog/1", "gaussian_noise/5", "snow/5", "fog/5")


def test_a_class_that_imagenet_does_not_have_is_named(tmp_path):
    corrupted(tmp_path, ["fog"], [1], [WNIDS[0], "n99999999"])
    with pytest.raises(DataError, match=r"none of the 1000 classes: n99999999 \(1 of 2\): move them away"):
        open_data(f"imagenet-c={tmp_path}").dataset("fog/1")


def test_tiny_imagenet_c_is_told_by_the_size_of_its_images(tmp_path):
    corrupted(tmp_path, ["fog"], [1, 2], [WNIDS[30], WNIDS[1]], size=(64, 64))
    source = open_data(tmp_path)
    assert (source.layout, source.classes) == ("tiny-imagenet-c", (WNIDS[1], WNIDS[30]))
    assert source.dataset("fog/2").labels.tolist() == [0, 0, 1, 1]
    (tmp_path / "wnids.txt").write_text(f"{WNIDS[30]}\n{WNIDS[1]}\n")
    dataset = open_data(tmp_path).dataset("fog/2")
    assert dataset.classes == (WNIDS[30], WNIDS[1])
    assert [dataset.classes[label] for label in dataset.labels] == [name.split("/")[0] for name in dataset.ids]


def test_corrupted_copies_of_any_dataset(tmp_path):
    corrupted(tmp_path / "pets", ["fog"], [1, 5], ["dog", "cat"])
    source = open_data(tmp_path / "pets")
    assert (source.layout, source.classes) == ("corrupted", ("cat", "dog"))
    assert source.dataset("fog/5").labels.tolist() == [0, 0, 1, 1]
    write_image(tmp_path / "plain" / "fog" / "3" / "a.png")
    dataset = open_data(tmp_path / "plain").dataset("fog/3")
    assert (dataset.ids, dataset.labels) == (["a.png"], None)


def test_cifar10_c(tmp_path):
    root = cifar10_c(tmp_path)
    source = open_data(root)
    assert source.layout == "cifar10-c"
    assert source.domains == tuple(f"{name}/{s}" for name in ("snow", "fog") for s in range(1, 6))
    assert source.classes == CIFAR
    dataset = source.dataset("fog/2")
    rows = np.load(root / "fog.npy")[6:12]
    assert dataset.domain == "cifar10-c/fog/2"
    assert dataset.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.ids[0] == "00000"
    for index in (0, 5, -1):
        np.testing.assert_array_equal(dataset.read(index), rows[index])
    assert isinstance(dataset.images.base.base, np.memmap)  # a view of the mapped file
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 2000
    np.testing.assert_array_equal(copy.read(3), rows[3])


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (
            lambda r: np.save(r / "labels.npy", np.zeros(29, np.uint8)),
            r"shape \(29,\) for 30",
        ),
        (
            lambda r: np.save(r / "labels.npy", np.full(30, 100, np.uint8)),
            "100 to 100; expected 0 to 99",
        ),
        (lambda r: np.save(r / "labels.npy", np.zeros(30)), "integers, not float64"),
        (lambda r: np.save(r / "fog.npy", np.zeros((7, 32, 32, 3), np.uint8)), "7 images, not a multiple of 5"),
        (lambda r: np.save(r / "fog.npy", np.zeros((5, 32, 32, 3))), "not float64 of shape"),
        (lambda r: np.save(r / "fog.npy", np.zeros((5, 3072), np.uint8)), r"shape \(5, 3072\)"),
        (lambda r: np.save(r / "fog.npy", np.array([{}]), allow_pickle=True), "array of numbers"),
        (lambda r: (r / "fog.npy").write_bytes(b"\x93NUMPY"), "array of numbers"),
        (lambda r: (r / "fog.npy").write_bytes(b""), "array of numbers"),
    ],
)
def test_broken_cifar10_c_is_refused(tmp_path, break_it, message):
    break_it(cifar10_c(tmp_path) and tmp_path)
    with pytest.raises(DataError, match=message):
        open_data(tmp_path).dataset("fog/1")


def test_cifar10_c_without_labels_or_corruptions(tmp_path):
    cifar10_c(tmp_path, corruptions=())
    with pytest.raises(DataError, match=r"no <corruption>\.npy"):
        open_data(f"cifar10-c={tmp_path}")
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(DataError, match=r"no labels\.npy"):
        open_data(f"cifar-10-c={tmp_path}")


def test_cifar10_binary_batches(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    labels = np.array([3, 9, 0], dtype=np.uint8)
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(3, -1)], axis=1)
    records.tofile(tmp_path / "data_batch_1.bin")
    records[:1].tofile(tmp_path / "data_batch_2.bin")
    records[1:].tofile(tmp_path / "test_batch.bin")
    source = open_data(tmp_path)
    assert (source.layout, source.domains, source.classes) == ("cifar-10", ("train", "test"), CIFAR)
    train, test = source.dataset("train"), source.dataset("test")
    assert train.labels.tolist() == [3, 9, 0, 3]
    assert train.ids[2:] == ["data_batch_1/00002", "data_batch_2/00000"]
    assert test.domain == "cifar-10/test"
    np.testing.assert_array_equal(test.read(0), images[1])
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(DataError, match="not a multiple of 3073"):
        open_data(tmp_path).dataset("test")
    (tmp_path / "test_batch.bin").write_bytes(b"\x0a" * 3073)
    with pytest.raises(DataError, match="expected 0 to 9"):
        open_data(tmp_path).dataset("test")


def test_pickled_cifar10_is_refused_unread(tmp_path):
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('unpickled')",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"Python pickles.*binary version"):
        open_data(tmp_path)


def test_npz(tmp_path):
    images = np.stack([picture(i, (32, 32)) for i in range(4)])
    np.savez(tmp_path / "some.npz", images=images, labels=np.array([1, 0, 1, 2], np.uint8))
    source = open_data(tmp_path / "some.npz")
    dataset = source.dataset()
    assert (source.layout, source.domains, dataset.domain) == ("npz", ("some",), "npz/some")
    assert dataset.labels.tolist() == [1, 0, 1, 2]
    np.testing.assert_array_equal(dataset.read(2), images[2])
    assert open_data(f"cifar-10={tmp_path / 'some.npz'}").classes == CIFAR
    np.savez_compressed(tmp_path / "grey.npz", images=images[..., 0], classes=np.array(["a", "b"]))
    grey = open_data(tmp_path / "grey.npz").dataset()
    assert (grey.labels, grey.classes) == (None, ("a", "b"))
    np.testing.assert_array_equal(grey.read(0), np.repeat(images[0, ..., :1], 3, axis=2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros(3)}, "no array 'images', only: x"),
        ({"images": np.zeros((2, 8, 8, 3), np.float32)}, "not float32"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.zeros(3, int)}, "for 2 images"),
        ({"images": np.zeros((2, 8, 8, 3), np.uint8), "labels": np.array([0, -1])}, "from -1 to 0"),
        ({"images": np.array([{}, None])}, "numbers"),
    ],
)
def test_broken_npz_is_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "x.npz")


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    for content in (b"", b"PK\x03\x04broken", b"text"):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"\.npz file"):
            open_data(tmp_path / "x.npz")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("shape", [(2**40, 32, 32, 3), (2**62, 2**62, 3), (2**70, 3)])
def test_arrays_that_claim_more_than_the_memory_are_refused(tmp_path, shape):
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(64))
    (tmp_path / "x.npy").write_bytes(header.getvalue() + bytes(64))
    with pytest.raises(DataError, match=r"\.npz file"):
        open_data(tmp_path / "x.npz")
    with pytest.raises(DataError, match="array of numbers"):
        load_array(tmp_path / "x.npy")


def test_imagenet_r_takes_its_classes_from_the_folders(tmp_path):
    classes = [WNIDS[6], WNIDS[1], WNIDS[998]]
    class_folders(tmp_path, classes, name="art_{i}.jpg")
    (tmp_path / "README.txt").write_text("...")
    source = open_data(tmp_path)
    assert (source.layout, source.domains) == ("imagenet-r", ("imagenet-r",))
    assert source.classes == (WNIDS[1], WNIDS[6], WNIDS[998])
    assert source.class_indices == (1, 6, 998)
    dataset = source.dataset()
    assert dataset.domain == "imagenet-r"
    assert dataset.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert [WNIDS[source.class_indices[label]] for label in dataset.labels] == [i.split("/")[0] for i in dataset.ids]


def test_imagenet_sketch_packed_and_unpacked(tmp_path):
    class_folders(tmp_path / "sketch", [WNIDS[4], WNIDS[2]], name="sketch_{i}.JPEG")
    for root in (tmp_path, tmp_path / "sketch"):
        source = open_data(root)
        assert (source.layout, source.class_indices) == ("imagenet-sketch", None)
        assert source.dataset().labels.tolist() == [2, 2, 4, 4]


def test_imagenet_val_folders(tmp_path):
    class_folders(tmp_path / "val", [WNIDS[500], WNIDS[0]], name="ILSVRC2012_val_0000000{i}.JPEG")
    for root in (tmp_path, tmp_path / "val"):
        source = open_data(root)
        assert (source.layout, source.domains, source.classes) == ("imagenet", ("val",), WNIDS)
        dataset = source.dataset()
        assert (dataset.domain, dataset.labels.tolist()) == ("imagenet/val", [0, 0, 500, 500])


def test_flat_imagenet_val_is_images_without_labels_and_no_imagenet(tmp_path):
    write_image(tmp_path / "ILSVRC2012_val_00000001.JPEG")
    assert open_data(tmp_path).layout == "images"
    with pytest.raises(DataError, match="no class folders such as 'n01440764'"):
        open_data(f"imagenet={tmp_path}")


def test_imagenet_v2_folders_are_numbers_not_text(tmp_path):
    root = class_folders(tmp_path / "imagenetv2-top-images-format-val", ["10", "9", "100"], name="{i}.jpeg")
    for place in (tmp_path, root):
        source = open_data(place)
        assert (source.layout, source.domains, source.classes) == ("imagenet-v2", ("top-images",), WNIDS)
        assert source.dataset().labels.tolist() == [9, 9, 10, 10, 100, 100]
    write_image(root / "1000" / "x.jpeg")
    with pytest.raises(DataError, match=r"class folders 0 to 999, not .*1000"):
        open_data(f"imagenet-v2={root}").dataset()


def test_all_of_v2_is_recognised_under_any_name(tmp_path):
    for number in range(1000):
        (tmp_path / str(number)).mkdir()
    write_image(tmp_path / "123" / "x.jpeg")
    dataset = open_data(tmp_path).dataset()
    assert (dataset.domain, dataset.labels.tolist()) == ("imagenet-v2", [123])


def test_tiny_imagenet(tmp_path):
    root = tiny_imagenet(tmp_path, classes=("n02124075", "n01443537"), count=12)
    write_image(root / "train" / "n01443537" / "images" / "n01443537_0.JPEG", size=(64, 64))
    source = open_data(root)
    assert (source.layout, source.domains) == ("tiny-imagenet", ("val", "train"))
    assert source.classes == ("n02124075", "n01443537")
    val = source.dataset("val")
    assert val.domain == "tiny-imagenet/val"
    assert val.ids[:4] == ["val_0.JPEG", "val_1.JPEG", "val_10.JPEG", "val_11.JPEG"]
    assert val.labels[:4].tolist() == [0, 1, 0, 1]
    assert val.read(0).shape == (64, 64, 3)
    assert source.dataset("train").labels.tolist() == [1]


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda r: (r / "val/images/val_3.JPEG").unlink(), "labels 6 images where the folder holds 5.*val_3"),
        (lambda r: write_image(r / "val/images/more.JPEG"), "labels 6 images where the folder holds 7.*more"),
        (lambda r: (r / "val/val_annotations.txt").write_text("val_0.JPEG n0\n"), "line 1 of"),
        (lambda r: (r / "wnids.txt").write_text("n02124075\nn04067472\n"), "does not: .*n01443537"),
        (lambda r: (r / "wnids.txt").write_text("n1\nn1\n"), "each class once"),
        (lambda r: (r / "wnids.txt").write_bytes(b"\xff"), r"wnids\.txt.*cannot be read"),
    ],
)
def test_broken_tiny_imagenet_is_refused(tmp_path, break_it, message):
    break_it(tiny_imagenet(tmp_path))
    with pytest.raises(DataError, match=message):
        open_data(tmp_path).dataset("val")


def test_folder_with_class_subfolders(tmp_path):
    class_folders(tmp_path / "pets", ["dog", "cat"])
    write_image(tmp_path / "pets" / "cat" / "deep" / "down.png")
    source = open_data(tmp_path / "pets")
    assert (source.layout, source.domains, source.classes) == ("folder", ("pets",), ("cat", "dog"))
    dataset = source.dataset()
    assert dataset.ids == [
        "cat/cat_0.JPEG",
        "cat/cat_1.JPEG",
        "cat/deep/down.png",
        "dog/dog_0.JPEG",
        "dog/dog_1.JPEG",
    ]
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1]


def test_numbered_classes_are_sorted_as_numbers(tmp_path):
    class_folders(tmp_path, ["0", "10", "9"])
    assert open_data(tmp_path).classes == ("0", "9", "10")


def test_splits_are_domains_with_the_same_classes(tmp_path):
    class_folders(tmp_path / "train", ["cat", "dog"])
    class_folders(tmp_path / "test", ["dog", "eel"])
    source = open_data(tmp_path)
    assert (source.domains, source.classes) == (("test", "train"), ("cat", "dog", "eel"))
    assert source.dataset("test").labels.tolist() == [1, 1, 2, 2]


def test_splits_of_classes_called_1_to_5_are_no_corruptions(tmp_path):
    class_folders(tmp_path / "train", ["1", "2", "3", "4", "5"])
    class_folders(tmp_path / "test", ["1", "2", "3", "4", "5"])
    assert open_data(tmp_path).layout == "folder"


def test_classes_with_numbered_subfolders_are_no_corruptions(tmp_path):
    corrupted(tmp_path, ["cat", "dog"], [1, 2], ["monday"])
    assert open_data(tmp_path).classes == ("cat", "dog")
    assert open_data(tmp_path, layout="corrupted").domains == ("cat/1", "cat/2", "dog/1", "dog/2")


def test_folder_without_labels_is_read_recursively(tmp_path):
    for name in ("b.png", "a/c.JPG", "a/d.txt.jpeg"):
        write_image(tmp_path / name)
    with pytest.warns(UserWarning, match="have no labels"):
        source = open_data(tmp_path)
    dataset = source.dataset()
    assert (source.layout, source.classes, dataset.labels) == ("images", None, None)
    assert dataset.ids == ["a/c.JPG", "a/d.txt.jpeg", "b.png"]
    assert dataset.domain == f"images/{tmp_path.name}"
    np.testing.assert_array_equal(dataset.read(2), picture(0))


def test_links_that_lead_back_up_are_followed_once(tmp_path):
    write_image(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos", target_is_directory=True)
    assert open_data(f"images={tmp_path / 'photos'}").dataset().ids == ["a.png"]


def test_file_names_that_are_no_text_are_refused(tmp_path):
    write_image(tmp_path / "a.png")
    try:
        (tmp_path / "a.png").rename(tmp_path / "\udcff.png")
    except (OSError, UnicodeError):
        pytest.skip("this file system allows no such name")
    with pytest.raises(DataError, match="not valid UTF-8"):
        open_data(tmp_path).dataset()


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        open_data(tmp_path / "gone")
    with pytest.raises(DataError, match="is empty or holds no images"):
        open_data(tmp_path)
    for layout in (
        "folder",
        "imagenet",
        "imagenet-r",
        "imagenet-sketch",
        "imagenet-c",
        "cifar-10",
    ):
        with pytest.raises(DataError):
            open_data(f"{layout}={tmp_path}").dataset()
    with pytest.raises(DataError, match="no images in domain"):
        open_data(f"images={tmp_path}").dataset()
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(DataError, match="is a file, and none with a dataset"):
        open_data(tmp_path / "file.txt")


def test_class_folders_without_images(tmp_path):
    (tmp_path / "fog" / "1" / WNIDS[0]).mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images in domain 'fog/1'"):
        open_data(f"imagenet-c={tmp_path}").dataset("fog/1")


def test_layout_is_named_before_the_path_or_beside_it(tmp_path):
    class_folders(tmp_path / "a=b", ["cat", "dog"])
    assert open_data(f"images={tmp_path / 'a=b'}").layout == "images"
    assert open_data(tmp_path / "a=b", layout="images").layout == "images"
    assert open_data(tmp_path / "a=b").layout == "folder"
    with pytest.raises(UnknownNameError, match="unknown layout 'imagenetc2': did you mean"):
        open_data(f"imagenetc2={tmp_path}")
    with pytest.raises(UnknownNameError):
        open_data(tmp_path, layout="nothing like it")


def test_a_relative_path_with_an_equals_sign_is_a_path_if_it_exists(tmp_path, monkeypatch):
    class_folders(tmp_path / "a=b", ["cat", "dog"])
    monkeypatch.chdir(tmp_path)
    assert open_data("a=b").domains == ("a=b",)


def test_sources_and_datasets_travel_to_worker_processes(tmp_path):
    corrupted(tmp_path / "c", ["fog"], [1], [WNIDS[0]])
    class_folders(tmp_path / "pets", ["dog", "cat"])
    for root in ("c", "pets"):
        source = pickle.loads(pickle.dumps(open_data(tmp_path / root)))
        dataset = pickle.loads(pickle.dumps(source.dataset()))
        assert dataset.read(0).dtype == np.uint8


def test_real_imagenet_val(shared):
    source = open_data(shared / "data" / "imagenet-val")
    dataset = source.dataset()
    index = json.loads((shared / "data" / "imagenet-val" / "class_index.json").read_text())
    assert (source.layout, len(dataset)) == ("imagenet", 1000)
    assert dataset.labels.tolist() == list(range(1000))
    assert list(dataset.classes) == [index[str(i)][0] for i in range(1000)]
    assert min(dataset.read(17).shape[:2]) == 256


def test_real_cifar10(shared):
    dataset = open_data(f"cifar-10={shared / 'data' / 'cifar10_test_4000.npz'}").dataset()
    assert len(dataset) == 4000
    assert dataset.read(0).shape == (32, 32, 3)
    assert np.bincount(dataset.labels, minlength=10).min() > 300


def test_bundled_digits():
    pytest.importorskip("neotta.data.handwritten")
    dataset = open_data("digits").dataset()
    assert len(dataset) > 100
    assert set(dataset.labels.tolist()) == set(range(10))
    assert dataset.read(0).shape[2] == 3


def test_a_stray_folder_does_not_make_imagenet_another_dataset(tmp_path):
    class_folders(tmp_path / "val", [*WNIDS[:3], "aaa"])
    class_folders(tmp_path / "r", [*WNIDS[:3], "aaa"], name="art_{i}.jpg")
    class_folders(tmp_path / "sketches", [*WNIDS[:3], "aaa"], name="sketch_{i}.JPEG")
    assert open_data(tmp_path / "val").layout == "imagenet"
    with pytest.raises(DataError, match=r"none of the 1000 classes: aaa \(1 of 4\): move them away"):
        open_data(tmp_path / "val").dataset()
    with pytest.raises(DataError, match=r"none of the 1000 classes: aaa"):
        open_data(tmp_path / "r")
    assert open_data(tmp_path / "sketches").layout == "imagenet-sketch"
    assert open_data(f"folder={tmp_path / 'val'}").dataset().labels.max() == 3  # if it is meant


def test_a_stray_folder_does_not_make_imagenet_v2_another_dataset(tmp_path):
    for number in [*range(1000), "extra"]:
        (tmp_path / str(number)).mkdir()
    write_image(tmp_path / "10" / "a.jpeg")
    assert open_data(tmp_path).layout == "imagenet-v2"
    with pytest.raises(DataError, match=r"0 to 999, not \['extra'\]"):
        open_data(tmp_path).dataset()


@pytest.mark.parametrize(("size", "layout"), [((24, 20), "imagenet-c"), ((64, 64), "tiny-imagenet-c")])
def test_a_stray_folder_does_not_make_imagenet_c_another_dataset(tmp_path, size, layout):
    corrupted(tmp_path, ["gaussian_noise", "fog"], [1, 5], WNIDS[:3], size=size)
    class_folders(tmp_path / "gaussian_noise" / "1", ["aaa"], size=size)
    source = open_data(tmp_path)
    assert source.layout == layout
    assert source.dataset("fog/1").labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(DataError, match=r"classes: aaa \(1 of 4\)"):
        source.dataset("gaussian_noise/1")


def test_an_image_beside_class_folders_is_left_out_with_a_warning(tmp_path):
    class_folders(tmp_path / "pets", ["cat", "dog"])
    write_image(tmp_path / "pets" / "thumb.png")
    with pytest.warns(UserWarning, match=r"thumb\.png .* has no class and is left out; .* images="):
        source = open_data(tmp_path / "pets")
    assert (source.layout, source.dataset().labels.tolist()) == ("folder", [0, 0, 1, 1])
    assert len(open_data(f"images={tmp_path / 'pets'}").dataset()) == 5
    assert len(open_data(f"folder={tmp_path / 'pets'}").dataset()) == 4


def test_an_image_beside_the_classes_of_a_split(tmp_path):
    for split in ("train", "test"):
        class_folders(tmp_path / split, ["cat", "dog"])
    write_image(tmp_path / "train" / "thumb.png")
    with pytest.warns(UserWarning, match="thumb"):
        source = open_data(tmp_path)
    assert (source.domains, source.classes) == (("test", "train"), ("cat", "dog"))


def test_many_images_beside_folders_have_no_labels_and_that_is_said(tmp_path):
    class_folders(tmp_path, ["cat", "dog"])
    for number in range(2):
        write_image(tmp_path / f"{number}.png")
    with pytest.warns(UserWarning, match=r"have no labels: .* such as 'cat'; if these are classes say folder="):
        source = open_data(tmp_path)
    assert (source.layout, len(source.dataset())) == ("images", 6)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"n01440764 n01440764", b""])
def test_a_list_of_classes_that_cannot_be_used_is_named(tmp_path, content):
    corrupted(tmp_path, ["fog"], [1], WNIDS[:2], size=(64, 64))
    (tmp_path / "wnids.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"wnids\.txt' (cannot be read|must name each class once)"):
        open_data(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files here")
def test_what_is_no_regular_file_is_no_image(tmp_path):
    class_folders(tmp_path / "pets", ["cat", "dog"])
    os.mkfifo(tmp_path / "pets" / "cat" / "pipe.jpg")
    os.mkfifo(tmp_path / "pets" / "pipe.jpg")
    (tmp_path / "pets" / "dog" / "link.jpg").symlink_to(tmp_path / "pets" / "cat" / "cat_0.JPEG")
    assert open_data(tmp_path / "pets").dataset().labels.tolist() == [0, 0, 1, 1, 1]
