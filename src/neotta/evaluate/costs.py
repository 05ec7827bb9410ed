"""What a method costs: time, passes, memory and operations, measured in a process of its own.

```python
costs = measure_costs(["neo", "tent"], "timm:vit_small_patch16_224")
costs["tent"].seconds_per_image, costs["tent"].memory_above_plain
```

A fresh process for each method means that none finds memory which another has left, nor caches that it has filled.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neotta import errors
from neotta.errors import NeottaError, OptionError, WorkerError
from neotta.evaluate.provenance import surroundings
from neotta.evaluate.records import Record, content_key

Answer = dict[str, Any]
Options = Mapping[str, Any]
Progress = Callable[[str, int, int], None]

WORKER = "neotta.evaluate._cost_worker"
LAST_LINES = 15
"""Number of lines shown of what a process that died has written."""


@dataclasses.dataclass(frozen=True)
class CostConditions:
    """Under which conditions costs are measured.

    Attributes:
        model: What `neotta.load_model` takes.
        model_options: Options of the model, such as `{"pretrained": False}`. The head of an untrained model is
            scaled so that its answers are as sure as those of a trained one: some methods depend on it.
        batch_size: Number of images in a batch. They are random.
        batches: Minimum number of timed batches; the median counts. At least half a second is timed.
        warmup: Number of untimed batches before them.
        rounds: How often everything is measured again, in turns, so that a machine which is busy for a while disturbs
            all methods alike; medians over the rounds count.
        image_size: Height and width of the images; None for what the model was trained on.
        device: `"cpu"`, or `"cuda"` with or without a number.
        dtype: Name of the torch dtype of model and images.
        threads: Number of threads of torch on the CPU; None for its own choice.
        timeout: Seconds that the process of one method may take.
    """

    model: str
    model_options: Options = dataclasses.field(default_factory=dict)
    batch_size: int = 64
    batches: int = 5
    warmup: int = 2
    rounds: int = 1
    image_size: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int | None = None
    timeout: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("batch_size", "batches", "warmup", "rounds", "image_size", "threads"):
            value, least = getattr(self, name), 0 if name == "warmup" else 1
            if value is None and name in ("image_size", "threads"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise OptionError(f"{name} takes a whole number, at least {least}, got {value!r}")
        for name in ("device", "dtype"):
            if name in self.model_options:
                raise OptionError(f"{name} is a condition of its own, not an option of the model: give {name}=...")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise OptionError(f"costs are measured on 'cpu' or 'cuda', got device {self.device!r}")
        if self.timeout <= 0:
            raise OptionError(f"timeout takes a number of seconds above 0, got {self.timeout!r}")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a method costs; `dataclasses.asdict` makes it ready for JSON.

    Attributes:
        method: The name of the method.
        preset: The preset of the method.
        options: Options that differ from the preset.
        conditions: What it was measured on, and how.
        threads: Number of threads.
        image_size: Height and width of the images.
        seconds_per_image: Median over the batches, after a warm-up.
        plain_seconds_per_image: Median for the model without a method, measured in turns in the same process.
        forward_passes: How often the model was run for a batch, on average.
        backward_passes: How often gradients flowed back through the model for a batch, on average.
        peak_memory: The most memory that the process (CUDA: its tensors on the device) took after the model was
            loaded, in bytes; None where the system does not tell.
        memory_above_plain: By how much that exceeds the plain model's, in bytes. On the CPU, a few MB are noise.
        flops_per_image: Floating point operations in products of matrices and convolutions, two for each
            multiplication with addition; None where torch cannot count them.
    """

    method: str
    preset: str
    options: Options
    conditions: CostConditions
    threads: int
    image_size: tuple[int, int]
    seconds_per_image: float
    plain_seconds_per_image: float
    forward_passes: float
    backward_passes: float
    peak_memory: int | None
    memory_above_plain: int | None
    flops_per_image: float | None

    @property
    def slowdown(self) -> float:
        """Time per image, as a multiple of the plain model's."""
        return self.seconds_per_image / self.plain_seconds_per_image


def measure_costs(
    methods: Sequence[str] | Mapping[str, Options],
    model: str,
    *,
    preset: str = "paper",
    progress: Progress | None = None,
    on_measured: Callable[[Cost], None] | None = None,
    on_failure: Callable[[str, NeottaError], None] | None = None,
    **conditions: Any,
) -> dict[str, Cost]:
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
        The cost of each method, by name.

    Raises:
        OptionError: An option or condition is wrong.
        UnsupportedModelError: A method cannot work on this model.
        WorkerError: A process died or took too long.
    """
    chosen = methods if isinstance(methods, Mapping) else {name: {} for name in methods}
    setting = _conditions(model, conditions)
    tasks: dict[str | None, str] = {None: _task(None, {}, preset, setting)}
    tasks.update({name: _task(name, options, preset, setting) for name, options in chosen.items()})
    answers: dict[str | None, list[Answer]] = {name: [] for name in tasks}
    costs: dict[str, Cost] = {}
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
            costs[name] = _cost(name, preset, chosen[name], setting, answers[name], answers[None])
            if on_measured is not None:
                on_measured(costs[name])
    return costs


def _conditions(model: str, options: Mapping[str, Any]) -> CostConditions:
    known = {field.name for field in dataclasses.fields(CostConditions)}
    for name in options:
        if name not in known:
            raise OptionError(f"a measurement of costs has no condition {name!r}: it takes {', '.join(sorted(known))}")
    return CostConditions(model, **options)


def _task(method: str | None, options: Options, preset: str, conditions: CostConditions) -> str:
    task = {**dataclasses.asdict(conditions), "method": method, "options": dict(options), "preset": preset}
    task["modules"] = [] if method is None else _modules(method, options, preset)
    try:
        return json.dumps(task)
    except TypeError as error:
        raise OptionError(
            f"options go to another process as JSON, which has no place for some of them: {error}"
        ) from None


def _modules(method: str, options: Options, preset: str) -> list[str]:
    from neotta.adapters.registry import find, names

    kind = find(method)
    kind.Options.make(kind.name, options, preset)
    modules = {find(name).__module__ for name in names(method) if not name.startswith("py:")}
    if "__main__" in modules:
        raise OptionError(
            f"method {method!r} is defined in the script that is running: put it into a module of its own, which "
            "another process can import"
        )
    return sorted(module for module in modules if not module.startswith("neotta."))


def _cost(
    method: str, preset: str, options: Options, conditions: CostConditions, mine: list[Answer], plain: list[Answer]
) -> Cost:
    first, images = mine[0], conditions.batch_size
    peak, plain_peak = _peak(mine), _peak(plain)
    return Cost(
        method,
        preset,
        dict(options),
        conditions,
        threads=first["threads"],
        image_size=(first["image_size"][0], first["image_size"][1]),
        seconds_per_image=_seconds(mine, "seconds") / images,
        plain_seconds_per_image=_seconds(mine, "plain_seconds") / images,
        forward_passes=statistics.fmean(answer["forward_passes"] for answer in mine),
        backward_passes=statistics.fmean(answer["backward_passes"] for answer in mine),
        peak_memory=peak,
        memory_above_plain=None if peak is None or plain_peak is None else max(peak - plain_peak, 0),
        flops_per_image=None if first["flops"] is None else first["flops"] / images,
    )


def _seconds(answers: list[Answer], which: str) -> float:
    median: float = statistics.median(seconds for answer in answers for seconds in answer[which])
    return median


def _peak(answers: list[Answer]) -> int | None:
    peaks = [answer["peak_memory"] for answer in answers]
    return None if None in peaks else int(statistics.median(peaks))


def cost_record(cost: Cost) -> Record:
    """A cost as a record of the kind `"cost"`, with the machine that it was measured on, which is this one.

    Measured again under the same conditions on the same machine, it has the same key: the later record counts.
    """
    about, figures = surroundings(), dataclasses.asdict(cost)
    fixed = {name: figures[name] for name in ("method", "preset", "options", "conditions", "threads", "image_size")}
    key = content_key({"cost": fixed, "machine": about["machine"]})
    named = {"key": key, "kind": "cost", "status": "ok", "model": cost.conditions.model}
    return Record.make({**named, **figures, "slowdown": cost.slowdown, **about})


def ask(module: str, task: str, *, what: str, timeout: float) -> Answer:
    """Have a task done by a fresh process.

    The task and the answer travel as JSON, and nothing is pickled.
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
    try:
        same = getattr(errors, kind)(message)
    except (AttributeError, TypeError):
        return None
    return same if isinstance(same, NeottaError) else None


def _end(code: int) -> str:
    return f"ended with code {code}" if code > 0 else f"was killed by signal {-code} (9: often for lack of memory)"


def _last_words(text: str) -> str:
    lines = text.strip().splitlines()[-LAST_LINES:]
    return ". Its last words:\n" + "\n".join(lines) if lines else " without a word"
