"""The example on text, run as a reader does, on two made-up wheels in place of those of PyPI."""

from __future__ import annotations

import random
import runpy
import struct
import sys
import zipfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "languages.py"


@pytest.fixture(scope="module")
def example():
    """The names that the script defines."""
    return runpy.run_path(str(EXAMPLE))


def mo_file(messages):
    """A file of gettext with these messages and their translations."""
    originals, translations = ([text.encode() for text in texts] for texts in ([*messages], [*messages.values()]))
    start = 28 + 16 * len(messages)
    tables, content = [], b""
    for text in [*originals, *translations]:
        tables.append(struct.pack("<II", len(text), start + len(content)))
        content += text + b"\0"
    header = struct.pack("<IIIIIII", 0x950412DE, 0, len(messages), 28, 28 + 8 * len(messages), 0, start)
    return header + b"".join(tables) + content


def write_wheel(path, languages, count, seed):
    """A wheel with messages of three made-up words, from an alphabet of each language's own."""
    with zipfile.ZipFile(path, "w") as archive:
        for number, language in enumerate(languages):
            draw = random.Random(f"{seed} {language}")
            letters = [chr(ord("a") + (5 * number + step) % 26) for step in range(5)] + [chr(0x100 + 2 * number)]
            words = ("".join(draw.choices(letters, k=5)) for _ in range(3 * count))
            texts = [" ".join(three) for three in zip(*[words] * 3, strict=True)]
            messages = {f"message {index}": text for index, text in enumerate(texts)}
            archive.writestr(f"{path.stem}/locale/{language}/LC_MESSAGES/x.mo", mo_file({"": "header", **messages}))


def test_a_catalog_gives_its_sentences(example):
    kept = {"": "Content-Type: text/plain", "hello you two": "Hallo %(name)s und <b>Du</b>", "two words": "zwei Wörter"}
    assert example["catalog"](mo_file(kept)) == ["hallo und du"]
    assert example["without_accents"]("zwei Wörter, à côté") == "zwei Worter, a cote"


def test_the_script_prints_its_table(example, tmp_path, monkeypatch, capsys):
    for name, seed in (("django", 1), ("sphinx", 2)):
        write_wheel(tmp_path / f"{name}-1.0-py3-none-any.whl", example["LANGUAGES"], 16, seed)
    words = ["--folder", str(tmp_path), "--seeds", "1", "--each", "2", "--epochs", "4"]
    monkeypatch.setattr(sys, "argv", ["languages.py", *words])
    example["main"]()
    header, _, *rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert header == ["messages", *example["METHODS"]]
    table = {row[0]: dict(zip(header[1:], map(float, row[1:]), strict=True)) for row in rows}
    assert len(table) == 6
    assert table["Django, mixed"]["none"] > 60, "of 25 languages"
    plain = [table[f"Sphinx, {order}"]["none"] for order in ("mixed", "one language after the other")]
    assert plain[0] == plain[1], "a model that does not adapt does not mind the order"
