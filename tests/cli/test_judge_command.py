"""`neotta judge`: from a folder to a line, by a page, by a CSV file, by labels."""

from __future__ import annotations

import csv
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from neotta.data.handwritten import digits


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    data = digits("all")
    for number in range(300):
        Image.fromarray(data.read(number)).save(folder / f"{number:03}.png")
    return folder


def right(name):
    return str(digits("all").labels[int(name[:3])])


@pytest.mark.slow
def test_a_session_on_the_page_is_told_in_the_terminal_and_continues(tmp_path, photos, interruptible):
    words = [sys.executable, "-m", "neotta", "judge", "mnist", "photos", "--methods", "neo"]
    environment = {**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    given = 0
    for most in (3, 100):
        process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
        lines = iter(process.stdout.readline, "")
        address = urlsplit(next(found[0] for line in lines if (found := re.search(r"http://\S+", line))))
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)

        def ask(method, path, content=None, connection=connection, address=address):
            connection.request(method, address.path + path, content and json.dumps(content))
            return connection.getresponse().read()

        state = json.loads(ask("GET", "state"))
        assert state["image"] == given
        while not state["finished"] and state["image"] < most:
            digit, shown = label(ask("GET", f"image/{state['image']}")), state["candidates"]
            choice = shown.index(digit) if digit in shown else "none"
            state = json.loads(ask("POST", "answer", {"image": state["image"], "choice": choice}))
        given = state["image"]
        connection.close()
        process.send_signal(signal.SIGINT)
        output = "".join(lines)
        assert process.wait(20) == 0
        process.stdout.close()
        assert f"{given} answers" in output
    assert 'Write: model = neotta.adapt(model, "neo")' in output
    assert len((tmp_path / "judged-photos.jsonl").read_text().splitlines()) == given
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert 'Write: model = neotta.adapt(model, "neo")' in done.stdout, "what is decided is told without a page"
    assert "http://" not in done.stdout


def label(picture):
    """The digit on a picture."""
    shown = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"), np.int64)
    differences = np.abs(digits("all").images.astype(np.int64) - shown).reshape(1797, -1).sum(axis=1)
    return str(digits("all").labels[differences.argmin()])


def test_by_csv_files_of_a_spreadsheet(command, tmp_path, photos):
    done = command("judge", "mnist", "photos", "--ask", "ask.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "60 images to judge" in done.stdout
    assert done.stderr.endswith("Next: the same command with --answers ask.csv in place of --ask\n")
    with (tmp_path / "ask.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    heading, *rows = rows
    place = heading.index("right")
    for row in rows:
        row[place] = right(row[0]) if right(row[0]) in row[1:place] else "none"
    with (tmp_path / "back.csv").open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, delimiter=";").writerows([heading, *rows])
    done = command("judge", "mnist", "photos", "--answers", "back.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "neo helps" in done.stdout
    assert "Write: model = neotta.adapt(model" in done.stdout
    done = command("judge", "mnist", "photos", folder=tmp_path)
    assert "neo helps" in done.stdout, "the answers were kept"


def test_labels_in_a_csv_file_are_used_and_nothing_is_asked(command, tmp_path, photos):
    with (tmp_path / "known.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "class"), *((path.name, right(path.name)) for path in photos.iterdir())])
        file.write("elsewhere.png,\n")
    done = command("judge", "mnist", "photos", "--answers", "known.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"neo helps: \+\d+\.\d points", done.stdout)
    assert "about these 300 images" in done.stdout


def test_what_is_wrong_is_said_in_one_line(command, tmp_path, photos):
    (tmp_path / "empty").mkdir()
    (tmp_path / "folders.csv").write_text("zero,0\none,1\n")
    (tmp_path / "predicted.csv").write_text("image,class,confidence,plain,plain_confidence\n0.png,8,0.7,8,0.7\n")
    (tmp_path / "model.onnx").touch()
    for words in (
        ["mnist", "nothing"],
        ["mnist", "empty"],
        ["mnist", "photos", "--methods", "nero"],
        ["mnist", "photos", "--methods", "none"],
        ["mnist", "photos", "--ask", "ask.xlsx"],
        ["mnist", "photos", "--answers", "nothing.csv"],
        ["mnist", "photos", "--answers", "folders.csv"],
        ["mnist", "photos", "--answers", "predicted.csv"],
        ["mnist", "photos", "--labels", "folders.csv"],
        ["model.onnx", "photos"],
    ):
        done = command("judge", *words, folder=tmp_path)
        assert done.returncode == 2, words
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "predict and serve" in done.stderr
