"""A corrupted copy of a folder: layout, what is kept, errors, and the command."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image as Pillow
from typer.testing import CliRunner

from neotta.cli.corrupt import corrupt as command
from neotta.data.corrupted import corrupt_folder, prepare
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.data.decode import decode
from neotta.errors import DataError, NeottaError, OptionError, UnknownNameError

IMAGES = ("cat/1.png", "cat/2.jpg", "dog/deep/3.JPEG", "4.png")


@pytest.fixture
def src(tmp_path):
    rng = np.random.default_rng(0)
    for number, name in enumerate(IMAGES):
        file = tmp_path / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 256, (6, 8 + number, 3)).astype(np.uint8)
        Pillow.fromarray(small).resize((90 + number, 70)).save(file)
    (tmp_path / "src" / "README.txt").write_text("no image")
    (tmp_path / "src" / ".hidden.png").write_bytes(b"no image")
    return tmp_path / "src"


def content(folder):
    """Relative path to hash of every file below a folder."""
    files = (file for file in sorted(Path(folder).rglob("*")) if file.is_file())
    return {f.relative_to(folder).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_the_layout_is_that_of_imagenet_c(src, tmp_path):
    result = corrupt_folder(src, tmp_path / "dst", ["fog", "snow"], [2, 5], "tiny", jobs=1)
    assert (result.written, result.kept, result.unreadable) == (16, 0, {})
    expected = {
        f"{name}/{severity}/{image}.JPEG"
        for name in ("fog", "snow")
        for severity in (2, 5)
        for image in ("cat/1", "cat/2", "dog/deep/3", "4")
    }
    assert set(content(tmp_path / "dst")) == expected


def test_a_file_holds_the_corrupted_picture(src, tmp_path):
    corrupt_folder(src, tmp_path / "dst", ["gaussian_noise"], [3], "cifar", 7, jobs=1)
    clean = prepare(decode(src / "cat/2.jpg"), "cifar")
    expected = corrupt(clean, "gaussian_noise", 3, "cifar", 7, image_id="cat/2.jpg")
    assert np.array_equal(decode(tmp_path / "dst/gaussian_noise/3/cat/2.png"), expected)  # cifar: no loss


@pytest.mark.parametrize(("preset", "size"), [("imagenet", (224, 224)), ("tiny", (64, 64)), ("cifar", (32, 32))])
def test_pictures_have_the_size_of_their_preset(src, tmp_path, preset, size):
    corrupt_folder(src, tmp_path / "dst", ["contrast"], [1], preset, jobs=1)
    corrupt_folder(src, tmp_path / "kept", ["contrast"], [1], preset, keep_size=True, jobs=1)
    suffix = "png" if preset == "cifar" else "JPEG"
    assert decode(tmp_path / f"dst/contrast/1/cat/1.{suffix}").shape[:2] == size
    assert decode(tmp_path / f"kept/contrast/1/cat/1.{suffix}").shape[:2] == (70, 90)


def test_the_shorter_side_becomes_256_before_the_crop():
    """A tall picture with a white bar at mid-height: it is in the middle of the crop too."""
    image = np.zeros((1000, 500, 3), np.uint8)
    image[490:510] = 255
    crop = prepare(image, "imagenet")
    assert crop.shape == (224, 224, 3)
    rows = np.flatnonzero(crop[:, 0, 0] > 128)
    assert (rows.min() + rows.max()) / 2 == pytest.approx(111.5, abs=1)
    assert len(rows) == pytest.approx(20 * 256 / 500, abs=1.5)


def test_jobs_do_not_change_a_byte(src, tmp_path):
    names = ["frost", "glass_blur", "elastic_transform"]
    corrupt_folder(src, tmp_path / "one", names, [1, 5], "tiny", jobs=1)
    corrupt_folder(src, tmp_path / "three", names, [1, 5], "tiny", jobs=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")


def test_a_second_run_completes_what_is_missing(src, tmp_path):
    dst = tmp_path / "dst"
    corrupt_folder(src, dst, ["fog", "snow"], [1], "tiny", jobs=1)
    whole = content(dst)
    (dst / "fog/1/cat/1.JPEG").unlink()
    (dst / "snow/1/4.JPEG").unlink()
    (dst / "snow/1/.4.JPEG.tmp").write_bytes(b"half")
    untouched = (dst / "fog/1/cat/2.JPEG").stat().st_mtime_ns
    seen = []
    result = corrupt_folder(src, dst, ["fog", "snow"], [1], "tiny", jobs=1, progress=lambda *p: seen.append(p))
    assert (result.written, result.kept) == (2, 6)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert content(dst) == whole
    assert (dst / "fog/1/cat/2.JPEG").stat().st_mtime_ns == untouched


def test_corruptions_and_severities_may_be_added(src, tmp_path):
    corrupt_folder(src, tmp_path / "dst", ["fog"], [1], "tiny", jobs=1)
    result = corrupt_folder(src, tmp_path / "dst", ["fog", "contrast"], [1, 2], "tiny", jobs=1)
    assert (result.written, result.kept) == (12, 4)


@pytest.mark.parametrize("jobs", [1, 2])
def test_unreadable_images_are_skipped_warned_of_and_counted(src, tmp_path, jobs):
    (src / "cat" / "broken.png").write_bytes(b"no image")
    whole = (src / "cat/2.jpg").read_bytes()
    (src / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"cat/(broken\.png|cut\.jpg)' is skipped") as caught:
        result = corrupt_folder(src, tmp_path / "dst", ["fog"], [1], "tiny", jobs=jobs)
    assert len(caught) == 2
    assert set(result.unreadable) == {"cat/broken.png", "cat/cut.jpg"}
    assert result.written == len(IMAGES)


def test_grey_palette_and_transparent_images_are_converted(tmp_path):
    for mode in ("L", "P", "RGBA", "CMYK", "1"):
        suffix = ".jpg" if mode == "CMYK" else ".png"
        (tmp_path / "src").mkdir(exist_ok=True)
        Pillow.new(mode, (40, 40)).save(tmp_path / "src" / f"{mode}{suffix}")
    assert corrupt_folder(tmp_path / "src", tmp_path / "dst", ["fog"], [1], "tiny", jobs=1).written == 5


def test_sources_that_cannot_be_used_are_refused(src, tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        corrupt_folder(tmp_path / "nowhere", tmp_path / "dst", jobs=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images below"):
        corrupt_folder(tmp_path / "empty", tmp_path / "dst", jobs=1)
    for inside in (src, src / "dst"):
        with pytest.raises(OptionError, match="inside the source"):
            corrupt_folder(src, inside, jobs=1)
    Pillow.new("RGB", (50, 50)).save(src / "cat/1.jpg")
    with pytest.raises(DataError, match=r"2 images in .* are called 'cat/1'"):
        corrupt_folder(src, tmp_path / "dst", jobs=1)
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"names": ["mist"]}, UnknownNameError, "unknown corruption 'mist'"),
        ({"names": "fog"}, OptionError, "lists"),
        ({"names": []}, OptionError, "nothing to do"),
        ({"severities": [0]}, OptionError, "1, 2, 3, 4, 5"),
        ({"severities": 3}, OptionError, "lists"),
        ({"preset": "coco"}, UnknownNameError, "unknown preset"),
        ({"seed": "x"}, OptionError, "seed"),
        ({"jobs": 0}, OptionError, "jobs"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(src, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        corrupt_folder(src, tmp_path / "dst", **options)
    assert not (tmp_path / "dst").exists()


# The command


@pytest.fixture
def app():
    application = typer.Typer()
    application.command()(command)
    return application


def test_the_command_writes_and_tells(app, src, tmp_path):
    arguments = [str(src), "-o", str(tmp_path / "dst"), "--severities", "5", "--preset", "cifar", "--jobs", "1"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.startswith("60 pictures written, 0 kept, 0 images unreadable")
    assert {path.name for path in (tmp_path / "dst").iterdir()} == {*CORRUPTIONS}
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "0 pictures written, 60 kept" in again.output


def test_the_command_lists_what_it_skipped(app, src, tmp_path):
    (src / "broken.png").write_bytes(b"no image")
    arguments = [
        str(src),
        "-o",
        str(tmp_path / "dst"),
        "--corruptions",
        "saturate",
        "--severities",
        "1",
        "--preset",
        "cifar",
    ]
    with pytest.warns(UserWarning, match=r"broken\.png' is skipped"):
        result = CliRunner().invoke(app, [*arguments, "--jobs", "1"], catch_exceptions=False)
    assert "4 pictures written, 0 kept, 1 image unreadable" in result.output
    assert (tmp_path / "dst/saturate/1/cat/1.png").exists()


def test_the_command_lets_errors_through(app, src, tmp_path):
    for arguments in (["--corruptions", "mist"], ["--severities", "9"], ["--severities", "x"], ["--preset", "x"]):
        result = CliRunner().invoke(app, [str(src), "-o", str(tmp_path / "dst"), *arguments])
        assert isinstance(result.exception, NeottaError)


def test_the_extra_corruptions_are_asked_for_apart(app, src, tmp_path):
    arguments = [
        str(src),
        "-o",
        str(tmp_path / "dst"),
        "--corruptions",
        "extra",
        "--severities",
        "1",
        "--preset",
        "cifar",
        "--jobs",
        "1",
    ]
    CliRunner().invoke(app, arguments, catch_exceptions=False)
    folders = {path.name for path in (tmp_path / "dst").iterdir() if path.is_dir()}
    assert folders == {"speckle_noise", "gaussian_blur", "spatter", "saturate"}


def started(src, dst):
    """The command as a process with two jobs, that has begun to write."""
    for number in range(16):
        Pillow.new("RGB", (80, 80), (number, 100, 200)).save(src / f"more{number}.png")
    arguments = [str(src), "-o", str(dst), "--preset", "cifar", "--jobs", "2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "neotta", "corrupt", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(dst.glob("*/*/*.png")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_after_an_interruption_the_same_command_completes_the_folder(src, tmp_path, interruptible, send, number, code):
    process = started(src, tmp_path / "dst")
    send(process.pid, number)
    output, _ = process.communicate(timeout=60)  # the pipe ends when the workers have ended too
    assert process.returncode == code
    assert "Traceback" not in output
    begun = len(list((tmp_path / "dst").glob("**/*.png")))
    assert 0 < begun < 20 * 75

    result = corrupt_folder(src, tmp_path / "dst", preset="cifar", jobs=1)
    assert result.kept == begun
    assert result.written == 20 * 75 - begun


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_workers_end_with_the_command_even_if_it_is_killed(src, tmp_path):
    process = started(src, tmp_path / "dst")
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(map(running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [worker for worker in workers if running(worker)]
    for worker in left:
        os.kill(worker, signal.SIGKILL)
    process.stdout.close()
    assert left == []
