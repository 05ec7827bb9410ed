"""The example package of docs/your-own-method.md is installed and run, as its author would."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "neotta-example-method"
CODE = """
import torch, neotta
from neotta.testing import MODELS
adapter = neotta.create("prior", MODELS["vit"]().eval(), strength=0.5)
print(tuple(adapter(torch.randn(4, 3, 32, 32)).shape))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Install the example beside neotta, without network; then run Python with it."""
    pytest.importorskip("typer", reason="needs the command line")
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("needs setuptools, which builds the example")
    folder = tmp_path_factory.mktemp("installed")
    copy = tmp_path_factory.mktemp("source") / "example"
    copy.mkdir()
    for name in ("pyproject.toml", "neotta_example_method.py"):  # building leaves files beside them
        (copy / name).write_bytes((EXAMPLE / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", folder, copy], capture_output=True, text=True, check=False)
    if "No module named pip" in done.stderr:
        pytest.skip("needs pip, which installs the example")
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_it_is_listed(run):
    assert re.search(r"^prior +Divide the predicted distribution by the share", run("-m", "neotta", "methods"), re.M)


def test_it_is_created(run):
    assert run("-c", CODE) == "(4, 7)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["prior", f"py:{EXAMPLE}/neotta_example_method.py:Prior"], ids=["installed", "in a file"]
)
def test_it_is_measured(run, tmp_path, method):
    output = tmp_path / "results.jsonl"
    words = ["digits", "digits", "--corruptions", "fog", "--samples", "64", "--output", str(output)]
    run("-m", "neotta", "run", "--methods", f"{method}:strength=0.5,neo", *words)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert {record["method"]: record["status"] for record in records} == {method: "ok", "neo": "ok"}
    assert {record["method"]: record["options"] for record in records}[method] == {"strength": "0.5"}


@pytest.mark.slow
def test_it_keeps_the_contract(run):
    tests = EXAMPLE / "tests"
    assert "passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tests))
