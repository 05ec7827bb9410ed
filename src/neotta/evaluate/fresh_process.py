"""Work done by a fresh process: the task and the answer travel as JSON, and nothing is pickled.

`ask` is this side; `serve` is the other, called by the module that the process runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from neotta import errors
from neotta.errors import NeottaError, WorkerError

Answer = dict[str, Any]

LAST_LINES = 15
"""Number of lines shown of what a process that died has written."""


def ask(module: str, task: str, *, what: str, timeout: float) -> Answer:
    """Have a task done by a fresh process.

    Args:
        module: The module to run, which calls `serve`.
        task: The task as JSON.
        what: A description for errors: "measuring 'tent'".
        timeout: Seconds it may take.

    Raises:
        WorkerError: The process died or took too long.
        NeottaError: The task failed.
    """
    # The process can import what this one can, even if sys.path was extended.
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
    raise _same_error(kind, f"{what}: {message}") or WorkerError(f"{what} failed: {kind}: {message}")


def _same_error(kind: str, message: str) -> NeottaError | None:
    """The error of the other process, if it is one of neotta's that is made from a message alone."""
    try:
        found = getattr(errors, kind)(message)
    except (AttributeError, TypeError):
        return None
    return found if isinstance(found, NeottaError) else None


def serve(work: Callable[[Mapping[str, Any]], Answer]) -> None:
    """Read the task, do it, and write the answer."""
    answer_here = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not part of the answer
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
