"""`neotta data info` says what is there, and finds what is wrong with it."""

import numpy as np
import pytest
from PIL import Image
from support.data_makers import cifar10_c, class_folders, corrupted, write_image
from support.misbehaving import serving
from test_decode import bomb
from typer.testing import CliRunner

from neotta.cli.app import data_app
from neotta.data.corruptions import CORRUPTIONS, SEVERITIES
from neotta.data.info import describe
from neotta.data.layouts.imagenet import imagenet_wnids
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
    assert "not a multiple of 5" in by_name["fog/1"].problems[0][1]
    assert by_name["snow/1"].problems == []
    assert by_name["snow/1"].sizes == {"32 x 32": 6}


def test_command_shows_domains_and_classes(tmp_path):
    corrupted(tmp_path, ["fog"], [1, 5], WNIDS[:3])
    out = run("info", tmp_path)
    assert "imagenet-c at" in out
    assert "12 images in 2 domains, classes: 1,000" in out
    assert "fog/1,5" in out
    assert "24 x 20" in out
    assert "Headers of 12 of 12 images checked: no problems; --full decodes all." in out
    assert "All 12 images decoded: no problems." in run("info", tmp_path, "--full")


def test_seventy_five_domains_are_readable_in_80_columns(tmp_path):
    corrupted(tmp_path, CORRUPTIONS, SEVERITIES, WNIDS[:1])
    write_image(tmp_path / "fog" / "4" / WNIDS[0] / "another.jpg", size=(300, 200))
    result = CliRunner().invoke(data_app, ["info", str(tmp_path)], env={"COLUMNS": "80"})
    lines = result.stdout.replace(str(tmp_path), "").splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 + 1 + 16 + 1
    names = [line.split()[0] for line in lines[3:-1]]
    assert names[:2] == ["gaussian_noise/1-5", "shot_noise/1-5"]
    assert [name for name in names if name.startswith("fog")] == ["fog/1,2,3,5", "fog/4"]


def test_command_fails_if_no_domain_can_be_opened_and_says_why_once(tmp_path):
    corrupted(tmp_path, ["fog", "snow"], [1, 2], [*WNIDS[:2], "aaa"])
    assert CliRunner().invoke(data_app, ["info", str(tmp_path)]).exit_code == 1
    out = CliRunner().invoke(data_app, ["info", str(tmp_path)]).stdout
    assert out.count("none of the 1000 classes") == 1
    assert "snow/1 and 3 more" in out
    assert out.endswith("No domain can be opened.\n")


def test_command_tells_how_the_data_was_understood(pets):
    write_image(pets / "thumb.png")
    assert "thumb.png" in run("info", pets)


def test_command_shows_the_first_problems(pets):
    assert "pets: dog/none.jpg" in run("info", pets)
    assert "dog_1.JPEG" in run("info", pets, "--full")


def test_equal_problems_are_told_once(tmp_path):
    for corruption in ("fog", "snow"):
        for i in range(8):
            path = tmp_path / corruption / "1" / "cat" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    out = run("info", f"corrupted={tmp_path}")
    assert "snow/1: cat/0.jpg and 15 more" in out
    assert out.count("is not an image") == 1
    assert "Headers of 16 of 16 images checked: 16 bad" in out


def test_many_different_problems_are_cut_short(tmp_path):
    corrupted(tmp_path, ["fog"], [1], ["cat"])
    corrupted(tmp_path, ["snow"], [1], ["cat"])
    for corruption in ("fog", "snow"):
        for number in range(6):
            width = 20_000 + number + 10 * (corruption == "fog")
            (tmp_path / corruption / "1" / "cat" / f"{number}.png").write_bytes(bomb(width, 10_000))
    assert "...: 2 other reasons" in run("info", f"corrupted={tmp_path}")


def test_command_on_nothing(tmp_path):
    with pytest.raises(DataError, match="no file or folder"):
        run("info", tmp_path / "gone")


def test_download_command(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving({"/imagenet-r.tar": b"something else"}) as server:
        arguments = ("download", "imagenet-r", "-o", tmp_path / "data", "--mirror", server.url(""))
        with pytest.raises(DataError, match="does not match the known hash"):
            run(*arguments)
        class_folders(tmp_path / "data" / "imagenet-r", WNIDS[:2], name="art_{i}.jpg")
        assert f"imagenet-r is in {tmp_path / 'data' / 'imagenet-r'}" in run(*arguments)
    assert len(server.seen) == 1


def test_a_folder_of_datasets_says_so(tmp_path):
    corrupted(tmp_path / "photos-c", ["fog"], [1], ["cat"])
    class_folders(tmp_path / "mine", ["cat", "dog"])
    result = CliRunner().invoke(data_app, ["info", str(tmp_path)])
    assert isinstance(result.exception, DataError)
    assert "is a folder of datasets: mine (folder), photos-c (corrupted). Name one of them" in str(result.exception)
    assert "in 1 domain" in run("info", tmp_path / "mine")
