from __future__ import annotations

import subprocess
import sys

import pytest

from neotta.cli import main


@pytest.fixture
def command(capfd, monkeypatch):
    """Does what the command line does with some words, without a process of its own, which takes seconds to start."""

    def run(*words, folder=".", width=80):
        capfd.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("COLUMNS", str(width))
            patch.setattr(sys, "argv", ["neotta", *map(str, words)])
            with pytest.raises(SystemExit) as end:
                main()
        return subprocess.CompletedProcess(sys.argv, end.value.code, *capfd.readouterr())

    return run
