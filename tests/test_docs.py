"""The code blocks of the README and the guides are run, each file as one program."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from support.registered import forget_afterwards
from torch import nn

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    monkeypatch.chdir(tmp_path)
    forget_afterwards(monkeypatch)
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = nn.Sequential(OrderedDict(body=body, classes=nn.Linear(8, 5))).eval()
    names = {"model": network, "images": torch.randn(8, 3, 32, 32)}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


LOOKED_UP = {"guarantees.md", "policy.md", "README.md", "text.md", "index.md"}  # not instructions: nothing to avoid


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_every_guide_says_when_not_to_use_it(page):
    if page.name not in LOOKED_UP and "generated" not in page.parts:
        assert re.search(r"when (not )?to use", page.read_text(), re.I), page


def test_ci_runs_exactly_the_test_command_of_the_readme():
    text = (ROOT / "README.md").read_text()
    command = re.search(r"<!-- test command -->\n```sh\n(.*?)```", text, re.S)[1]
    assert "constraints.txt" in command
    assert "pytest" in command
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text()
