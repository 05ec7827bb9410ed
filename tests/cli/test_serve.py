"""`neotta serve` on the command line: what it checks before it starts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import neotta


def test_check_opens_everything_and_says_what_would_be_served(command, tmp_path):
    done = command("serve", "--check", "--store", tmp_path / "state", "--durable", "batch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model     digits: 10 classes, 32 x 32 pixels")
    assert "rule      neo-stream" in done.stdout
    assert "on disk; 0 streams known" in done.stdout
    assert "every batch" in done.stdout
    assert done.stdout.endswith("ok\n")
    assert (tmp_path / "state" / "history.sqlite").exists()


CONFIGS = {
    "name": 'name = "a/b"',
    "rows": "[limits]\nrows = 0",
    "limit": "[limits]\nqeue = 9",
    "level": 'log_level = "loud"',
    "other": "port = 80",
}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--host", "0.0.0.0"], "needs a key"),
        (["--durable", "sometimes"], "expected 'batch', or seconds"),
        (["--config", "name.toml"], "does not fit into an address"),
        (["--config", "rows.toml"], "greater than or equal to 1"),
        (["--config", "limit.toml"], "did you mean 'queue'?"),
        (["--config", "other.toml"], "unknown entry 'port'"),
        (["--method", "neo-strem"], "did you mean 'neo-stream'?"),
        (["--method", "neo-stream:gate=x"], "gate"),
        (["--key-file", "missing"], "cannot be read"),
        (["--labels", "missing.txt"], "cannot be read"),
        (["--shadow", "--method", "none"], "omit one of them"),
        (["--config", "level.toml"], "expected debug, info"),
        (["nothing.onnx"], "there is no file"),
    ],
)
def test_mistakes_are_one_line(command, tmp_path, monkeypatch, words, reason):
    monkeypatch.delenv("NEOTTA_KEY", raising=False)
    for name, text in CONFIGS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    store = [] if "--store" in words else ["--store", "memory"]
    done = command("serve", "--check", *store, *words, folder=tmp_path)
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command("serve", "--store", "memory", "--port", taken.getsockname()[1])
    assert (done.returncode, "choose another --port" in done.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_first_lines_of_the_guide_can_be_pasted(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    install, _, lines = re.search(r"```sh\n(.*?)```", page, re.S)[1].partition("\n")
    assert install == "pip install 'neotta[serve]'"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-e", "-c", lines.replace("8000", str(port))]
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert '"stream":"gate","adapted":true' in done.stdout


def test_a_state_needs_its_model(command, tmp_path):
    digits = neotta.load_model("digits")
    neotta.save(neotta.adapt(digits.model, "neo"), tmp_path / "fog.safetensors")
    done = command("serve", "fog.safetensors", "--check", "--store", "memory", folder=tmp_path)
    assert (done.returncode, "neotta serve MODEL --state" in done.stderr) == (2, True)
    state = ["--state", "fog.safetensors", "--store", "memory", "--check"]
    done = command("serve", "digits", *state, folder=tmp_path)
    assert (done.returncode, "rule      neo\n" in done.stdout) == (0, True)
    done = command("serve", "digits", *state, "--method", "neo", folder=tmp_path)
    assert (done.returncode, "omit --method" in done.stderr) == (2, True)
