from __future__ import annotations

import subprocess
import sys

import neotta


def run(*words):
    return subprocess.run([sys.executable, "-m", "neotta", *words], capture_output=True, text=True)


def test_version():
    assert run("--version").stdout == f"neotta {neotta.__version__}\n"


def test_help_names_the_commands():
    text = run("--help").stdout
    for command in ("methods", "models", "demo"):
        assert command in text


def test_methods():
    text = run("methods").stdout
    for name in neotta.methods():
        assert name in text


def test_the_comparison_table():
    rows = {line.split("  ")[0]: line for line in run("methods", "--table").stdout.splitlines()}
    assert rows["NEO"].count("✓") == 5
    assert rows["TENT"].count("✗") == 4


def test_options_of_a_method():
    text = run("methods", "tent").stdout
    assert "0.00025" in text
    assert "episodic" in text


def test_errors_are_one_line():
    done = run("methods", "tnet")
    assert done.returncode == 2
    assert done.stderr == "neotta: unknown method 'tnet': did you mean 'tent'?\n"
