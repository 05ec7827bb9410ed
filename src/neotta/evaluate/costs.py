"""What a method costs: time, passes, memory and operations, measured in a process of its own.

```python
costs = measure_costs(["neo", "tent"], "timm:vit_small_patch16_224")
costs["tent"].seconds_per_image, costs["tent"].memory_above_plain
```

A fresh process for each method means that none finds memory which another has left, nor caches that it has filled.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator

from neotta import errors
from neotta.errors import NeottaError, OptionError, WorkerError
from neotta.evaluate.provenance import surroundings
from neotta.evaluate.records import Record, content_key
from neotta.options import Options

Answer = dict[str, Any]
Progress = Callable[[str, int, int], None]

WORKER = "neotta.evaluate._cost_worker"
LAST_LINES = 15
"""Number of lines shown of what a process that died has written."""


class CostConditions(Options):
    """Under which conditions costs are measured.

    Attributes:
        model: What `neotta.load_model` takes.
        model_options: Options of the model, such as `{"pretrained": False}`. The head of an untrained model is
            scaled so that its answers are as sure as those of a trained one: some methods depend on it.
        batch_size: Number of images in a batch. They are random, of the size that the model takes.
        batches: Minimum number of timed batches; the median counts. At least half a second is timed.
        rounds: How often everything is measured again, in turns, so that a machine which is busy for a while disturbs
            all methods alike; medians over the rounds count.
        device: `"cpu"`, or `"cuda"` with or without a number.
        dtype: Name of the torch dtype of model and images.
        threads: Number of threads of torch on the CPU; None for its own choice.
        timeout: Seconds that the process of one method may take.
    """

    model: str
    model_options: dict[str, Any] = Field(default={})
    batch_size: int = Field(64, ge=1)
    batches: int = Field(5, ge=1)
    rounds: int = Field(1, ge=1)
    device: str = Field("cpu", pattern="^(cpu|cuda(:.*)?)$")
    dtype: str = "float32"
    threads: int | None = Field(None, ge=1)
    timeout: float = Field(3600.0, gt=0)

    @field_validator("model_options")
    @classmethod
    def _without_conditions(cls, value: dict[str, Any]) -> dict[str, Any]:
        if both := {"device", "dtype"} & value.keys():
            raise ValueError(f"{both.pop()} is a condition of its own, not an option of the model")
        return value


def measure_costs(
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]],
    model: str,
    *,
    preset: str = "paper",
    progress: Progress | None = None,
    on_measured: Callable[[Record], None] | None = None,
    on_failure: Callable[[str, NeottaError], None] | None = None,
    **conditions: Any,
) -> dict[str, Record]:
    """Measure what several methods cost on a model, one after the other.

    Args:
        methods: Names of methods (a stack is `"neo+lame"`), or options by name of method. A method of your own is
            imported from the module that defines it. Random images serve as source images.
        model: What `neotta.load_model` takes.
        preset: The methods' preset.
        progress: Called with each method before it is measured, the measurements done, and their total.
        on_measured: Given the cost of each method as soon as it is known, to keep it: all together may take long.
        on_failure: Called with a method that fails, which is then left out; without it, the error is raised.
        **conditions: See `CostConditions`.

    Returns:
        By method a record with the median `seconds_per_image`, that of the plain model in the same process, their ratio
        `slowdown` and how far it may be off (`slowdown_error`), passes for a batch, `peak_memory` and
        `memory_above_plain` in bytes (None where the system does not tell; on the CPU a few MB are noise), and
        `flops_per_image` in products of matrices and convolutions. Measured again under the same conditions on the
        same machine, it has the same key.

    Raises:
        OptionError: An option or condition is wrong.
        UnsupportedModelError: A method cannot work on this model.
        WorkerError: A process died or took too long.
    """
    chosen = methods if isinstance(methods, Mapping) else {name: {} for name in methods}
    setting = CostConditions.make(model, {"model": model, **conditions}, kind="the costs of")
    tasks: dict[str | None, str] = {None: _task(None, {}, preset, setting)}
    tasks.update({name: _task(name, options, preset, setting) for name, options in chosen.items()})
    answers: dict[str | None, list[Answer]] = {name: [] for name in tasks}
    costs: dict[str, Record] = {}
    for done, name in enumerate(list(tasks) * setting.rounds):
        if name not in answers:  # it failed in an earlier round
            continue
        if progress is not None:
            progress(name or "the plain model", done, len(tasks) * setting.rounds)
        what = f"measuring {name!r}" if name else "measuring the plain model"
        try:
            answers[name].append(ask(WORKER, tasks[name], what=what, timeout=setting.timeout))
        except NeottaError as error:
            if name is None or on_failure is None:
                raise
            del answers[name]
            on_failure(name, error)
            continue
        if name is not None and len(answers[name]) == setting.rounds:
            about = {"method": name, "preset": preset, "options": dict(chosen[name])}
            costs[name] = cost_record(setting, about, figures(setting, answers[name], answers[None]))
            if on_measured is not None:
                on_measured(costs[name])
    return costs


def _task(method: str | None, options: Mapping[str, Any], preset: str, conditions: CostConditions) -> str:
    task = {**conditions.given(), "method": method, "options": dict(options), "preset": preset}
    task["modules"] = [] if method is None else _modules(method, options, preset)
    try:
        return json.dumps(task)
    except TypeError as error:
        raise OptionError(
            f"options go to another process as JSON, which has no place for some of them: {error}"
        ) from None


def _modules(method: str, options: Mapping[str, Any], preset: str) -> list[str]:
    from neotta.adapters.registry import find, names

    kind = find(method)
    kind.Options.make(kind.name, options, preset)  # before a process starts
    modules = {find(name).__module__ for name in names(method) if not name.startswith("py:")}
    if "__main__" in modules:
        raise OptionError(
            f"method {method!r} is defined in the script that is running: put it into a module of its own, which "
            "another process can import"
        )
    return sorted(module for module in modules if not module.startswith("neotta."))


def figures(conditions: CostConditions, mine: list[Answer], plain: list[Answer]) -> dict[str, Any]:
    first, images = mine[0], conditions.batch_size
    peak, plain_peak = _peak(mine), _peak(plain)
    return {
        "threads": first["threads"],
        "image_size": first["image_size"],
        "seconds_per_image": _seconds(mine, "seconds") / images,
        "plain_seconds_per_image": _seconds(mine, "plain_seconds") / images,
        "slowdown_error": _slowdown_error(mine),
        "forward_passes": statistics.fmean(answer["forward_passes"] for answer in mine),
        "backward_passes": statistics.fmean(answer["backward_passes"] for answer in mine),
        "peak_memory": peak,
        "memory_above_plain": None if peak is None or plain_peak is None else max(peak - plain_peak, 0),
        "flops_per_image": None if first["flops"] is None else first["flops"] / images,
    }


def _seconds(answers: list[Answer], which: str) -> float:
    median: float = statistics.median(seconds for answer in answers for seconds in answer[which])
    return median


def _slowdown_error(answers: list[Answer]) -> float | None:
    """Half the width of the 95 % interval of the median ratio to the plain model, batch by batch; one says nothing."""
    pairs = [pair for answer in answers for pair in zip(answer["seconds"], answer["plain_seconds"], strict=True)]
    if len(pairs) < 2:
        return None
    low, _, high = statistics.quantiles((mine / plain for mine, plain in pairs), n=4)
    error: float = 1.8 * (high - low) / math.sqrt(len(pairs))
    return error


def _peak(answers: list[Answer]) -> int | None:
    peaks = [answer["peak_memory"] for answer in answers]
    return None if None in peaks else int(statistics.median(peaks))


def cost_record(conditions: CostConditions, about: Mapping[str, Any], figures: Mapping[str, Any]) -> Record:
    """A record of the kind `"cost"`, with the machine that it was measured on, which is this one."""
    here = surroundings()
    fixed = {**about, "conditions": conditions.given(), **{name: figures[name] for name in ("threads", "image_size")}}
    key = content_key({"cost": fixed, "machine": here["machine"]})
    slowdown = figures["seconds_per_image"] / figures["plain_seconds_per_image"]
    named = {"key": key, "kind": "cost", "status": "ok", "model": conditions.model}
    return Record.make({**named, **fixed, **figures, "slowdown": slowdown, **here})


def ask(module: str, task: str, *, what: str, timeout: float) -> Answer:
    """Have a task done by a fresh process. The task and the answer travel as JSON, and nothing is pickled."""
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
    if code := process.returncode:
        signal = f"was killed by signal {-code} (9: often for lack of memory)"
        end = f"ended with code {code}" if code > 0 else signal
        raise WorkerError(f"{what} failed: the process {end}{_last_words(process.stderr)}")
    try:
        answer: Answer = json.loads(process.stdout)
    except ValueError:
        raise WorkerError(f"{what} failed: the process gave no answer{_last_words(process.stderr)}") from None
    if "error" not in answer:
        return answer
    kind, message = answer["error"], answer["message"]
    raise _same_error(kind, f"{what}: {message}") or WorkerError(f"{what} failed: {kind}: {message}")


def _same_error(kind: str, message: str) -> NeottaError | None:
    try:
        same = getattr(errors, kind)(message)
    except (AttributeError, TypeError):
        return None
    return same if isinstance(same, NeottaError) else None


def _last_words(text: str) -> str:
    lines = text.strip().splitlines()[-LAST_LINES:]
    return ". Its last words:\n" + "\n".join(lines) if lines else " without a word"
