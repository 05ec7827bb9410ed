"""Layouts and corruptions from outside: registered, announced by an installed package, or named by their file."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.data_makers import class_folders, write_image
from support.registered import forget_afterwards

from neotta.data import (
    ArrayDataset,
    CorruptedDataset,
    DataSource,
    corrupt,
    corrupt_folder,
    digits,
    open_data,
    register_corruption,
    register_layout,
)
from neotta.data.corruptions.registry import version
from neotta.errors import CodeError, InputError, NeottaError, OptionError, UnknownNameError

PICTURE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
LAYOUT = """
import numpy as np
from neotta.data import ArrayDataset, DataSource, register_layout

@register_layout("raw", recognises=lambda path: path.suffix == ".raw")
def open_raw(path):
    images = np.fromfile(path, np.uint8).reshape(-1, 8, 8, 3)
    return DataSource("raw", path, ("all",), lambda domain: ArrayDataset(images, None, domain=f"raw/{domain}"))
"""
CORRUPTION = """
from neotta.data import register_corruption

@register_corruption("mist")
def mist(image, severity, random):
    return (image // 2 + random.integers(0, 10 * severity, image.shape)).astype("uint8")
"""
PACKAGE = """[neotta.layouts]
raw = lab_plugin:open_raw
gone = lab_plugin:no_such_function
[neotta.corruptions]
mist = lab_plugin:mist
"""


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    forget_afterwards(monkeypatch)


def test_a_registered_layout_is_named_and_recognised(tmp_path):
    @register_layout("raw-test", recognises=lambda path: path.suffix == ".rawtest")
    def open_raw(path):
        images = np.fromfile(path, np.uint8).reshape(-1, 8, 8, 3)
        return DataSource("raw-test", path, ("all",), lambda domain: ArrayDataset(images, None, domain=domain))

    PICTURE.tofile(tmp_path / "a.rawtest")
    for spec in (f"raw-test={tmp_path}/a.rawtest", f"RAW_test={tmp_path}/a.rawtest", tmp_path / "a.rawtest"):
        assert np.array_equal(open_data(spec).dataset().read(0), PICTURE)
    with pytest.raises(ValueError, match="already a layout 'raw-test'"):
        register_layout("raw-test")(print)
    with pytest.raises(UnknownNameError, match="did you mean 'raw-test'"):
        open_data(f"raw-tset={tmp_path}/a.rawtest")


def test_a_layout_is_asked_before_those_of_any_images_but_after_the_known_ones(tmp_path):
    register_layout("keen-test", recognises=lambda path: (path / "keen").exists())(
        lambda path: DataSource("keen-test", path, ("a",), lambda domain: digits())
    )
    class_folders(tmp_path / "photos", ["cat", "dog"])
    assert open_data(tmp_path / "photos").layout == "folder"
    (tmp_path / "photos" / "keen").touch()
    assert open_data(tmp_path / "photos").layout == "keen-test"
    np.savez(tmp_path / "a.npz", images=PICTURE[None])
    assert open_data(tmp_path / "a.npz").layout == "npz"


def test_a_layout_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(LAYOUT.replace('"raw"', '"raw-of-a-file"'))
    (tmp_path / "wrong.py").write_text("def wrong(path): return 7\n")
    PICTURE.tofile(tmp_path / "a.bin")
    for _ in range(2):  # the file is executed once: its decorator would complain
        assert len(open_data(f"py:{tmp_path}/mine.py:open_raw={tmp_path}/a.bin").dataset()) == 1
    with pytest.raises(CodeError, match="returned a int, not a DataSource"):
        open_data(f"py:{tmp_path}/wrong.py:wrong={tmp_path}/a.bin")
    with pytest.raises(NeottaError, match="there is no file"):
        open_data(f"py:{tmp_path}/none.py:open_raw={tmp_path}/a.bin")


def test_a_registered_corruption_is_used_by_its_name(tmp_path):
    @register_corruption("invert-test")
    def invert(image, severity, random):
        image[:] = 255 - image  # a copy: it may be changed
        return image

    assert np.array_equal(corrupt(PICTURE, "invert-test"), 255 - PICTURE)
    assert PICTURE[0, 0, 0] == 0
    dataset = CorruptedDataset(digits(), "invert-test", 2)
    assert dataset.domain == "digits/test/invert-test/2"
    assert np.array_equal(dataset.read(3), 255 - digits().read(3))
    write_image(tmp_path / "src" / "cat" / "a.png", (8, 8))
    corrupt_folder(tmp_path / "src", tmp_path / "dst", ["invert-test"], [1], keep_size=True, jobs=1)
    assert (tmp_path / "dst" / "invert-test" / "1" / "cat" / "a.JPEG").is_file()
    assert re.fullmatch("[0-9a-f]{16}", version("invert-test"))
    with pytest.raises(InputError, match=r"^expected an RGB image .* got shape \(4, 4\)"):
        corrupt(np.zeros((4, 4), np.uint8), "invert-test")
    with pytest.raises(UnknownNameError, match="did you mean 'invert-test'"):
        corrupt(PICTURE, "inverttest")


def test_a_corruption_in_a_file_draws_by_seed_and_id(tmp_path):
    (tmp_path / "mine.py").write_text(CORRUPTION.replace('"mist"', '"mist-of-a-file"'))
    name = f"py:{tmp_path}/mine.py:mist"
    assert np.array_equal(corrupt(PICTURE, name, 3), corrupt(PICTURE, name, 3))
    others = [corrupt(PICTURE, name, 3, seed=1), corrupt(PICTURE, name, 3, image_id="b"), corrupt(PICTURE, name, 4)]
    assert not any(np.array_equal(other, corrupt(PICTURE, name, 3)) for other in others)
    dataset = CorruptedDataset(digits(), name, 3)
    assert dataset.domain == "digits/test/mist/3"
    (tmp_path / "other.py").write_text(CORRUPTION.replace('"mist"', '"mist-of-another"').replace("// 2", "// 3"))
    other = CorruptedDataset(digits(), f"py:{tmp_path}/other.py:mist", 3)
    assert dataset.digest(0).rpartition("-")[2] != other.digest(0).rpartition("-")[2]  # other code, other pictures
    with pytest.raises(OptionError, match="share a folder"):
        corrupt_folder(tmp_path, tmp_path / "dst", [name, f"py:{tmp_path}/other.py:mist"], jobs=1)


def test_what_is_no_corruption_is_refused(tmp_path):
    with pytest.raises(OptionError, match="cannot be the name"):
        register_corruption("fog")(print)
    with pytest.raises(OptionError, match="cannot be the name"):
        register_corruption("a/b")(print)
    with pytest.raises(OptionError, match="is a function"):
        register_corruption("seven")(7)
    register_corruption("none-test")(lambda image, severity, random: None)
    with pytest.raises(InputError, match="'none-test' returned no image: expected an RGB image"):
        corrupt(PICTURE, "none-test")


def test_an_installed_package_announces_its_own(tmp_path):
    (tmp_path / "lab_plugin.py").write_text(LAYOUT + CORRUPTION)
    (tmp_path / "lab_plugin-1.0.dist-info").mkdir()
    (tmp_path / "lab_plugin-1.0.dist-info" / "entry_points.txt").write_text(PACKAGE)
    (tmp_path / "lab_plugin-1.0.dist-info" / "METADATA").write_text("Name: lab_plugin\nVersion: 1.0\n")
    PICTURE.tofile(tmp_path / "a.raw")
    write_image(tmp_path / "src" / "cat" / "a.png", (8, 8))
    code = (
        "import sys, warnings\nfrom neotta.data import corrupt, open_data\n"
        "assert open_data('raw=a.raw').layout == 'raw'\n"
        "assert open_data('a.raw').layout == 'raw'\n"
        "with warnings.catch_warnings(record=True) as found: assert open_data('src').layout == 'folder'\n"
        "assert \"'gone' of 'lab_plugin:no_such_function' cannot be loaded\" in str(found[0].message)\n"
        "corrupt(open_data('raw=a.raw').dataset().read(0), 'mist')\n"
        "from neotta.cli import main\n"
        "sys.argv = 'neotta corrupt src -o dst --corruptions mist --severities 1,2 --jobs 2 --keep-size'.split()\n"
        "main()\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "2 pictures written" in done.stdout
    assert (tmp_path / "dst" / "mist" / "2" / "cat" / "a.JPEG").is_file()
