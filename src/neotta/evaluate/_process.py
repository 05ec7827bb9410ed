"""Having a piece of work done by a fresh process: the task goes there as JSON, and so does the answer come back.

`ask` is this side; `serve` is the other, called by the module that the process runs. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from neotta.errors import (
    AmbiguousHeadError,
    DataError,
    HeadNotFoundError,
    InputError,
    ModelError,
    ModelLoadError,
    NeottaError,
    OptionError,
    UnsupportedModelError,
    WorkerError,
)

Answer = dict[str, Any]

PASSED_ON: dict[str, type[NeottaError]] = {
    kind.__name__: kind
    for kind in (
        AmbiguousHeadError,
        DataError,
        HeadNotFoundError,
        InputError,
        ModelError,
        ModelLoadError,
        OptionError,
        UnsupportedModelError,
    )
}
"""Errors that are the same on both sides; any other becomes a `WorkerError`."""
LAST_LINES = 15
"""How much is shown of what a process that died has written."""


def ask(module: str, task: str, *, what: str, timeout: float) -> Answer:
    """Let a fresh process do a task.

    Args:
        module: The module to run, which calls `serve`.
        task: The task as JSON.
        what: What is being done, for errors: "measuring 'tent'".
        timeout: Seconds it may take.

    Raises:
        WorkerError: The process died or took too long.
        NeottaError: What went wrong there.
    """
    # The process finds what this one finds, also if its path was extended on the way.
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        process = subprocess.run(
            [sys.executable, "-m", module],
            input=task,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(
            f"{what} took longer than {timeout:g} s and was stopped: give it more time or less to do"
        ) from None
    if process.returncode != 0:
        raise WorkerError(f"{what} failed: the process {_end(process.returncode)}{_last_words(process.stderr)}")
    try:
        answer: Answer = json.loads(process.stdout)
    except ValueError:
        raise WorkerError(f"{what} failed: the process gave no answer{_last_words(process.stderr)}") from None
    if "error" not in answer:
        return answer
    kind, message = answer["error"], answer["message"]
    if kind in PASSED_ON:
        raise PASSED_ON[kind](f"{what}: {message}")
    raise WorkerError(f"{what} failed: {kind}: {message}")


def serve(work: Callable[[Mapping[str, Any]], Answer]) -> None:
    """Read the task, do it, write the answer."""
    answer_here = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no part of the answer
    task = json.load(sys.stdin)
    try:
        answer = work(task)
    except NeottaError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    with answer_here:
        json.dump(answer, answer_here)


def _end(code: int) -> str:
    """How a process ended."""
    return f"ended with code {code}" if code > 0 else f"was killed by signal {-code} (9: often for lack of memory)"


def _last_words(text: str) -> str:
    lines = text.strip().splitlines()[-LAST_LINES:]
    return ". Its last words:\n" + "\n".join(lines) if lines else " without a word"
