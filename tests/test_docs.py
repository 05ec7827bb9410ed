"""Code of the README and the guides is run, each page as one program; its commands are run, or parsed."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import click
import pytest
import torch
import typer
from support.registered import forget_afterwards
from torch import nn

from neotta.cli.app import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "ideas").glob("*.md"))]
TUTORIALS = [page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if page.name != "index.md"]
WRITTEN = [page for page in (ROOT / "docs").rglob("*.md") if not {"generated", "_site"} & set(page.parts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    forget_afterwards(monkeypatch)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(OrderedDict(body=body, classes=nn.Linear(8, 5))).eval()
    names = {"model": network, "images": torch.randn(8, 3, 32, 32)}
    for block in blocks:
        if file := re.match(r"# (\S+\.py)\n", block):  # a program of its own, which sees nothing of the page
            Path(file[1]).parent.mkdir(parents=True, exist_ok=True)
            Path(file[1]).write_text(block)
            block = "".join(f"{named}\n" for named in uses_of(file[1], page.read_text()))
        exec(compile(block, str(page), "exec"), names)
    promised = re.findall(r"^ *print\(.*?\)  # (\d+\.\d%)", "".join(blocks), re.M)
    printed = re.findall(r"\d+\.\d%", capsys.readouterr().out)
    assert promised == printed[: len(promised)], page


def uses_of(path, text):
    """What the commands of a page do with a file that the page defines: load a model, or use a method."""
    named = set(re.findall(rf"(py:{re.escape(path)}:(\w+))", text))
    assert named, f"the page names nothing of {path}"
    uses = {True: "neotta.create({!r}, model)", False: "neotta.load_model({!r})"}
    return ["import neotta", *(uses[name[0].isupper()].format(whole) for whole, name in sorted(named))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert target.startswith("generated/") or (page.parent / target).exists(), target


LOOKED_UP = {
    "guarantees.md",
    "policy.md",
    "glossary.md",
    "start.md",
    "README.md",
    "index.md",
}  # not instructions: nothing to avoid


@pytest.mark.parametrize("page", sorted(WRITTEN), ids=lambda page: page.name)
def test_every_guide_says_when_not_to_use_it(page):
    if page.name not in LOOKED_UP:
        assert re.search(r"when (not )?to use", page.read_text(), re.I), page


def test_ci_runs_exactly_the_test_command_of_the_readme():
    text = (ROOT / "README.md").read_text()
    command = re.search(r"<!-- test command -->\n```sh\n(.*?)```", text, re.S)[1]
    assert "constraints.txt" in command
    assert "pytest" in command
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text()


def test_the_pages_stay_short():
    assert len((ROOT / "README.md").read_text().split()) <= 650
    words = [word for page in WRITTEN for word in page.read_text().split() if re.search("[A-Za-z]", word)]
    assert len(words) <= 15_000  # beside the numbers of tables


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_tutorials_open_as_notebooks(page, tmp_path):
    pytest.importorskip("jupytext")
    target = tmp_path / "notebook.ipynb"
    command = [sys.executable, "-m", "jupytext", "--to", "ipynb", str(page), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert '"display_name": "Python 3"' in target.read_text()


# ---- commands

OTHER_PROGRAMS = {
    *("cat", "cd", "chmod", "curl", "docker", "echo", "export", "grep", "helm", "kill", "kubectl", "mkdir", "nginx"),
    *(
        "openssl",
        "redis-server",
        "sleep",
        "sqlite3",
        "sphinx-build",
        "sudo",
        "systemctl",
        "trtexec",
        "until",
        "do",
        "done",
    ),
    *(".", "serve", "ray", "head", "litserve", "uvicorn", "fastapi", "bentoml", "tritonserver", "jupytext"),
}
"""What pages call besides neotta, Python and pip: not ours, so not checked."""


def commands(page):
    """The commands of the sh blocks of a page, as lists of words."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.S):
        unfinished = ""
        for line in block.replace("\\\n", " ").splitlines():
            unfinished += line.replace("; ", " ; ") + "\n"
            try:
                words = shlex.split(unfinished, comments=True)
            except ValueError:  # a quotation goes on in the next line
                continue
            unfinished, command = "", []
            for word in [*words, ";"]:
                if word in (";", "&&", "||", "|", "&"):
                    yield from [command] if command else []
                    command = []
                else:
                    command.append(word)


def without_redirections(words):
    """The words before `>`, `2>` or `<`, and without assignments such as `OMP_NUM_THREADS=4` in front."""
    kept = []
    for word in words:
        if re.match(r"\d?[<>]", word):
            break
        if kept or not re.match(r"[A-Z_]+=", word):
            kept.append(word)
    return kept


ALL_COMMANDS = [
    (page, words)
    for page in [ROOT / "README.md", *sorted(WRITTEN)]
    for words in map(without_redirections, commands(page))
    if words
]


@pytest.mark.parametrize(
    ("page", "words"), ALL_COMMANDS, ids=[f"{p.stem}: {' '.join(w)[:60]}" for p, w in ALL_COMMANDS]
)
def test_commands_are_understood(page, words):
    program, *rest = words
    name = program.rpartition("/")[2]
    if name == "neotta":
        parse(typer.main.get_command(app), "neotta", rest)
    elif name in ("python", "python3", "pytest"):
        check_python(name, rest)
    elif name == "pip":
        check_extras(rest)
    else:
        assert name in OTHER_PROGRAMS, f"{page.name}: is {program!r} a program?"


def parse(command, name, words):
    """Parse a command line without running it; an unknown command, option or value is an error."""
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]!r}"
        parse(command.commands[words[0]], words[0], words[1:])
        return
    command.make_context(name, list(words))


def check_python(program, words):
    """The file or module exists, and knows the options."""
    if program == "pytest":
        assert all((ROOT / word).exists() for word in words if "/" in word)
    elif words[0] == "-c":
        compile(words[1], "-c", "exec")
    elif words[0] == "-m":
        assert words[1].startswith("tests.") or importlib.util.find_spec(words[1]), words[1]
    else:
        text = (ROOT / words[0]).read_text()
        for option in words[1:]:
            assert not option.startswith("--") or option.partition("=")[0] in text, option


def check_extras(words):
    """The extras that are installed exist."""
    known = re.search(r"optional-dependencies\](.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.S)[1]
    for extras in re.findall(r"(?:neotta|\.)\[([\w,]+)\]", " ".join(words)):
        for extra in extras.split(","):
            assert re.search(rf"^{extra} = ", known, re.M), extra


NOT_HERE = re.compile(
    r"PATH|FOLDER|path/|timm:|hf:|py:|photos|/data|data/|plan\.toml|study\.toml|docs/results|records\.jsonl|--open|\ball\b|"
    r"FILE|--state|serve|download"
)
"""Commands that need something a page does not bring, or minutes: these are parsed, not run."""
BY_PAGE = {
    page: [words for where, words in ALL_COMMANDS if where == page and words[0].endswith("neotta")]
    for page, _ in ALL_COMMANDS
}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, found in BY_PAGE.items() if found], ids=lambda page: page.stem)
def test_commands_on_bundled_data_run(page, tmp_path):
    for words in BY_PAGE[page]:
        missing = "results.jsonl" in words and not (tmp_path / "results.jsonl").exists()  # its run was only parsed
        if not missing and not NOT_HERE.search(" ".join(words)):
            command = [sys.executable, "-m", "neotta", *words[1:]]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{' '.join(words)}: {done.stderr[-2000:]}"
