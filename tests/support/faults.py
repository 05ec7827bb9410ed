"""Processes that are killed, and a disk that is full."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import traceback
import warnings

import pytest


def chance(salt=""):
    """Random numbers from a seed that is printed, so that a failure can be repeated."""
    seed = int(os.environ.get("NEOTTA_FAULT_SEED") or random.randrange(2**32))
    print(f"seed {seed}: repeat with NEOTTA_FAULT_SEED={seed}")
    return random.Random(f"{seed} {salt}")


class Process:
    """A fork of this process that works until it is killed, and tells what it has done."""

    def __init__(self, work):
        self._told = b""
        self._read, told = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork of a process with threads
            self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._read)
                os.set_blocking(told, False)  # nobody reads until the end: what does not fit is not told
                work(lambda done: os.write(told, f"{done}\n".encode()))
            except BlockingIOError:
                time.sleep(60)
            except BaseException:
                os.write(told, f"!{traceback.format_exc()}".encode())
            finally:
                os._exit(0)
        os.close(told)

    def begin(self):
        """Wait until it has told the first thing, or ended."""
        self._told = os.read(self._read, 100)

    def kill(self):
        """Kill it; returns what it told."""
        os.kill(self._child, signal.SIGKILL)
        return self.wait()

    def wait(self):
        """Wait for its end; returns what it told."""
        with open(self._read, "rb") as pipe:  # noqa: PTH123
            text = (self._told + pipe.read()).decode()
        os.waitpid(self._child, 0)
        assert "!" not in text, text
        return text.split("\n")[:-1]


def killed(work, moment, begun=False):
    """Let a process work, and kill it some seconds after its start or its first word; returns what it told."""
    process = Process(work)
    if begun:
        process.begin()
    time.sleep(moment)
    return process.kill()


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of so many bytes; tests that need it are skipped where it may not be made."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        made = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted: {error}")
    if made.returncode:
        pytest.skip(f"needs the right to mount a file system: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
