"""Every write and fsync fails in turn: the old file stays, and the error is the package's own."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import StorageError

CALLS = {"fsync": (os, "fsync"), "replace": (Path, "replace"), "chmod": (Path, "chmod"), "write": (Path, "write_bytes")}


class Failing:
    """Lets the call of a given number fail, as a full or broken disk does."""

    def __init__(self, monkeypatch, name, number, code):
        owner, attribute = CALLS[name]
        real = getattr(owner, attribute)
        self.calls = 0

        def call(*arguments, **options):
            self.calls += 1
            if self.calls == number:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, attribute, call)


def adapted(step):
    model = neotta.adapt(nn.Sequential(nn.Linear(8, 3)), "neo")
    model(torch.full((step, 8), float(step)))
    return model


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("name", CALLS)
def test_a_state_is_the_old_or_the_new_one(tmp_path, monkeypatch, name, code):
    path = tmp_path / "state"
    neotta.save(adapted(1), path)
    old = path.read_bytes()
    for number in range(1, 10):
        with monkeypatch.context() as patch:
            failing = Failing(patch, name, number, code)
            with contextlib.suppress(StorageError):
                neotta.save(adapted(2), path)
                assert failing.calls < number, "an error was swallowed"
                break
        # After the rename only the folder's fsync can fail: then the new file is there, and whole.
        assert path.read_bytes() == old or (name == "fsync" and number == 2)
        neotta.load(adapted(3), path, strict=False)
        assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert number > 1
