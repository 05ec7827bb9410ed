"""`neotta data info` says what is there, and finds what is wrong with it."""

import json

import numpy as np
import pytest
from data_makers import cifar10_c, class_folders, corrupted, write_image
from loopback import serving
from PIL import Image
from typer.testing import CliRunner

from neotta.cli.data import data_app
from neotta.data.info import describe
from neotta.data.layouts.wordnet import imagenet_wnids
from neotta.data.opening import open_data
from neotta.errors import DataError

WNIDS = imagenet_wnids()


def run(*arguments, output="stdout"):
    result = CliRunner().invoke(data_app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception is not None:
        raise result.exception
    return getattr(result, output)


@pytest.fixture
def pets(tmp_path):
    """Six images: one truncated, one that is none."""
    root = class_folders(tmp_path / "pets", ["cat", "dog"])
    Image.new("L", (30, 10)).save(root / "cat" / "grey.png")
    (root / "dog" / "none.jpg").write_bytes(b"<html>")
    whole = (root / "dog" / "dog_1.JPEG").read_bytes()
    (root / "dog" / "dog_1.JPEG").write_bytes(whole[:-200])
    return root


def test_headers_show_sizes_modes_and_what_is_no_image(pets):
    info = describe(open_data(pets))
    (domain,) = info.domains
    assert (info.layout, info.classes, info.count, info.bad) == ("folder", 2, 6, 1)
    assert (domain.classes, domain.per_class, domain.checked) == (2, (3, 3), 6)
    assert domain.sizes == {"24 x 20": 4, "30 x 10": 1}
    assert domain.modes == {"JPEG RGB": 4, "PNG L": 1}
    assert [name for name, _ in domain.problems] == ["dog/none.jpg"]


def test_full_decodes_everything_and_finds_truncated_files(pets):
    told = []
    info = describe(open_data(pets), full=True, progress=lambda *step: told.append(step))
    assert [name for name, _ in info.domains[0].problems] == ["dog/dog_1.JPEG", "dog/none.jpg"]
    assert info.bad == 2
    assert told[-1] == ("pets", 6, 6)


def test_a_sample_is_spread_over_the_domain(pets):
    assert describe(open_data(pets), sample=2).domains[0].checked == 2
    assert describe(open_data(pets), sample=2).bad == 1  # the last file is always looked at


def test_a_domain_that_cannot_be_opened_is_a_problem_not_the_end(tmp_path):
    root = cifar10_c(tmp_path)
    np.save(root / "fog.npy", np.zeros((7, 32, 32, 3), np.uint8))
    info = describe(open_data(root))
    by_name = {domain.name: domain for domain in info.domains}
    assert "no multiple of 5" in by_name["fog/1"].problems[0][1]
    assert by_name["snow/1"].problems == []
    assert by_name["snow/1"].sizes == {"32 x 32": 6}


def test_command_shows_domains_and_classes(tmp_path):
    corrupted(tmp_path, ["fog"], [1, 5], WNIDS[:3])
    out = run("info", tmp_path)
    assert "imagenet-c at" in out
    assert "12 images in 2 domains, classes: 1,000" in out
    assert "fog/5" in out
    assert "24 x 20" in out
    assert "No problems found." in out
    assert "fog/1" not in run("info", f"imagenet-c={tmp_path}", "--domain", "*/5")


def test_command_shows_the_first_problems(pets):
    assert "pets: dog/none.jpg" in run("info", pets)
    assert "dog_1.JPEG" in run("info", pets, "--full")


def test_command_speaks_json(tmp_path):
    class_folders(tmp_path, [WNIDS[5]], name="art_{i}.jpg")
    found = json.loads(run("info", tmp_path, "--json"))
    assert (found["layout"], found["class_indices"]) == ("imagenet-r", 1)
    assert found["domains"][0]["sizes"] == {"24 x 20": 2}


def test_many_problems_are_cut_short(tmp_path):
    write_image(tmp_path / "good.png")
    for corruption in ("fog", "snow"):
        for i in range(8):
            path = tmp_path / corruption / "1" / "cat" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    assert "... and 6 more" in run("info", f"corrupted={tmp_path}")


def test_command_on_nothing(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        run("info", tmp_path / "gone")


def test_download_command(tmp_path, monkeypatch):
    from test_download import tar_of

    monkeypatch.setenv("no_proxy", "*")
    made = class_folders(tmp_path / "made", WNIDS[:2], name="art_{i}.jpg")
    with serving({"/imagenet-r.tar": tar_of(made, "imagenet-r")}) as server:
        arguments = ("download", "imagenet-r", tmp_path / "data", "--mirror", server.url(""))
        out = run(*arguments, output="output")
        again = run(*arguments, output="output")
    assert "No checksum of imagenet-r.tar is known" in out
    assert "No checksum" not in again  # nothing was downloaded
    assert f"imagenet-r is in {tmp_path / 'data' / 'imagenet-r'}" in out
    assert "imagenet-r at" in run("info", tmp_path / "data" / "imagenet-r")
