from __future__ import annotations

import io
import os
import re
import sys

import pytest
from PIL import Image
from rich.padding import Padding
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from neotta.cli.console import Console
from neotta.evaluate.records import Record, Records


def test_names_of_files_do_not_control_the_terminal(command, tmp_path):
    for name in ("evil\x1b[2J\x07", "good"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "a.png")
        (tmp_path / "photos" / name / "bad\x1b]0;title\x07.png").write_bytes(b"no image")
    done = command("data", "info", "photos", "--full", folder=tmp_path, width=200)
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}
    done = command("data", "info", "no\x1b[2Jthing", folder=tmp_path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "no\\x1b[2Jthing" in done.stderr


def test_names_in_records_do_not_control_the_terminal(command, tmp_path):
    for method in ("none", "evil\x1b[2J"):
        content = {"method": method, "preset": "paper", "options": {}, "model": "a\x1b[31m", "data": "b\x07"}
        content |= {"domains": ["c\x1b[1m"], "domain": "c\x1b[1m", "order": "iid"}
        content |= {
            "order_options": {},
            "samples": 10,
            "held_out_samples": -1,
            "seed": 1,
            "batch_size": 2,
            "status": "ok",
        }
        Records(tmp_path / "r.jsonl").append(Record.make({"key": method, **content, "metrics": {"top1": 1.0}}))
    for form in ("table", "markdown", "csv"):
        done = command("compare", "r.jsonl", "--format", form, folder=tmp_path, width=200)
        assert done.returncode == 0
        assert "\\x1b" in done.stdout
        assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}


@pytest.mark.parametrize(("form", "rows"), [("md", "| a\\nb | "), ("latex", "a\\textbackslash{}nb & ")])
def test_a_line_break_in_a_name_breaks_no_table(command, tmp_path, form, rows):
    """In LaTeX the rest of a comment would be taken for text."""
    for method in ("none", "evil\n$x$"):
        content = {"method": method, "preset": "paper", "options": {}, "model": "m\no", "data": "d\nx"}
        content |= {"domains": ["a\nb"], "domain": "a\nb", "order": "iid"}
        content |= {
            "order_options": {},
            "samples": 10,
            "held_out_samples": -1,
            "seed": 1,
            "batch_size": 2,
            "status": "ok",
        }
        Records(tmp_path / "r.jsonl").append(Record.make({"key": method, **content, "metrics": {"top1": 1.0}}))
    done = command("compare", "r.jsonl", "--format", form, folder=tmp_path, width=200)
    assert done.returncode == 0
    assert rows in done.stdout.replace("**", "")
    assert not [line for line in done.stdout.splitlines() if line.startswith(("$x$", "\\$x", "b |", "b &", "o,"))]


def test_no_text_that_is_printed_controls_the_terminal():
    """Whatever prints it: a table, a bar, a line, with markup or without."""
    evil, page = "\x1b[2J\x07\x9b1m", io.StringIO()
    console = Console(file=page, force_terminal=True, color_system="standard", width=200)
    table = Table(evil, title=evil)
    table.add_row(Text(evil, style="red"))
    with Progress(TextColumn("{task.description}"), console=console) as bar:
        bar.add_task(evil, total=2)
        console.print(table, evil, f"[bold]{evil}[/bold]", Padding(evil, 1))
    text = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*m|\dA|2K)|\r", "", page.getvalue())  # what rich itself sends
    assert "\\x1b[2J" in text
    assert all(each.isprintable() or each == "\n" for each in text)


@pytest.mark.filterwarnings("default:image .* is skipped")
def test_names_of_folders_do_not_control_the_terminal(command, tmp_path):
    (tmp_path / "pictures\x1b[2J").mkdir()
    (tmp_path / "pictures\x1b[2J" / "bad\x07.png").write_bytes(b"no image")
    Image.new("RGB", (32, 32)).save(tmp_path / "pictures\x1b[2J" / "good.png")
    words = (
        "corrupt",
        "pictures\x1b[2J",
        "-o",
        "out\x1b[2J",
        "--corruptions",
        "fog",
        "--severities",
        "1",
        "--jobs",
        "1",
    )
    done = command(*words, folder=tmp_path, width=300)
    assert "\\x1b" in done.stdout, done
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not text")
def test_names_that_are_no_text_are_one_line(command, tmp_path):
    folder = os.fsencode(tmp_path) + b"/photos/cl\xffass"
    os.makedirs(folder)  # noqa: PTH103  # a name of bytes
    Image.new("RGB", (8, 8)).save(folder + b"/a.png")
    done = command("data", "info", "photos", folder=tmp_path, width=200)
    assert "a folder whose name is not valid UTF-8: rename it" in done.stderr
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    done = command("data", "info", os.fsdecode(b"gone\xff"), folder=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "gone\\udcff" in done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a reference of")
@pytest.mark.parametrize(
    "words",
    [
        ["check", "digits", "pictures\x1b[2J", "--samples", "32", "-o", "r\x1b[2J.safetensors"],
        ["demo", "--samples", "20", "--output", "page\x1b[2J.html"],
        ["serve", "digits", "--config", "my\x1b[2Jnet.toml", "--store", "states\x1b[2J", "--check"],
    ],
    ids=lambda words: words[0],
)
def test_no_command_lets_its_arguments_control_the_terminal(command, tmp_path, words):
    for number in range(40):
        place = tmp_path / "pictures\x1b[2J" / f"{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number, 0, 0)).save(place / f"{number}.png")
    done = command(*words, folder=tmp_path, width=300)
    assert "\\x1b[2J" in done.stdout + done.stderr, done
    assert "\x1b" not in done.stdout + done.stderr
