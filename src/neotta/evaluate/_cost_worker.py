"""The process in which one method is measured, and nothing else happens.

Run by `neotta.evaluate.costs`, which gives it a task and reads the figures.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from neotta.adapters.declaration import DataFacts
from neotta.adapters.losses import entropy
from neotta.adapters.registry import create, data_options
from neotta.errors import NeottaError
from neotta.models.load import load_model
from neotta.neo.find_head import logits_of
from neotta.neo.split import split

IMAGES_TO_SHARPEN = 32
"""Number of images on which the sureness of an untrained model is set."""
LEAST_SECONDS = 0.5
"""Minimum time of the timed batches: a few batches of a small model are over before the machine is steady."""
WARMUP = 2
"""Untimed batches before the timed ones."""
SURENESS = 0.25
"""Entropy of the predictions of a trained model, as a share of that of a guess (ln C)."""

Forward = Callable[[Tensor], object]


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one method, or of the plain model where the method is None."""
    for module in task["modules"]:
        importlib.import_module(module)
    if task["threads"]:
        torch.set_num_threads(task["threads"])
    torch.manual_seed(0)
    device, dtype = torch.device(task["device"]), getattr(torch, task["dtype"], task["dtype"])
    loaded = load_model(task["model"], device=device, dtype=dtype, **task["model_options"])
    height, width = loaded.preprocess.size

    def images(count: int = task["batch_size"]) -> Tensor:
        return torch.randn(count, 3, height, width).to(device, dtype)

    if task["model_options"].get("pretrained") is False:
        sharpen(loaded.model, images(IMAGES_TO_SHARPEN))

    def warm_up(run: Forward) -> None:
        for _ in range(WARMUP):
            run(images())

    facts = DataFacts(mean=loaded.preprocess.mean, std=loaded.preprocess.std, source=images)
    plain, memory, passes = torch.no_grad()(loaded.model), PeakMemory(device), Counter[str]()
    warm_up(plain)
    memory.restart()
    run: Forward = plain
    if task["method"] is not None:
        needed = data_options(task["method"], facts, task["options"])
        run = create(task["method"], loaded.model, preset=task["preset"], **needed, **task["options"])
    warm_up(run)
    seconds: list[float] = []
    plain_seconds: list[float] = []
    while len(seconds) < task["batches"] or sum(seconds) < LEAST_SECONDS:
        with counted_passes(loaded.model, passes):
            seconds.append(timed(run, images(), device))
        # In turns: what else the machine does meets the method and the plain model alike.
        plain_seconds.append(timed(plain, images(), device) if run is not plain else seconds[-1])
    peak_memory = memory.read()
    flops = count_flops(run, images())  # after the peak was read: it takes memory
    return {
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        "forward_passes": passes["forward"] / len(seconds),
        "backward_passes": passes["backward"] / len(seconds),
        "peak_memory": peak_memory,
        "flops": flops,
        "threads": torch.get_num_threads(),
        "image_size": [height, width],
    }


def sharpen(model: nn.Module, images: Tensor) -> None:
    """Scale the head of an untrained model until it is as sure of its answers as a trained one.

    An untrained model just guesses. Methods that look at how sure the model is would then do something else than
    they do in use: SAR skips what is uncertain, CoTTA asks about many augmented views.
    """
    head = split(model).head
    with torch.no_grad():
        logits = logits_of(model(images)).double()
        wanted = SURENESS * math.log(logits.shape[1])
        low, high = 1e-3, 1e6
        for _ in range(40):
            scale = math.sqrt(low * high)
            unsure = bool(entropy(logits * scale).mean() > wanted)
            low, high = (scale, high) if unsure else (low, scale)
        for parameter in head.parameters(recurse=False):
            parameter.mul_(scale)


def timed(run: Forward, images: Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run(images)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


@contextlib.contextmanager
def counted_passes(model: nn.Module, passes: Counter[str]) -> Iterator[None]:
    """Count how often the model is run, and how often gradients flow back through it."""

    def count_backward(grad: Tensor) -> None:
        passes["backward"] += 1

    def count_forward(module: nn.Module, args: Any, output: Any) -> None:
        passes["forward"] += 1
        logits = logits_of(output)
        if logits.requires_grad:
            logits.register_hook(count_backward)  # type: ignore[no-untyped-call]

    hook = model.register_forward_hook(count_forward)
    try:
        yield
    finally:
        hook.remove()


def count_flops(run: Forward, images: Tensor) -> int | None:
    """Floating point operations for a batch; None where torch cannot count them."""
    counter = FlopCounterMode(display=False)
    try:
        # Fused attention is not counted on every device; the plain one does the same sums.
        with sdpa_kernel(SDPBackend.MATH), counter:
            run(images)
    except RuntimeError:
        return None
    return counter.get_total_flops() or None


class PeakMemory:
    """The most memory used at any time since `restart`: of the process, or allocated on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        with contextlib.suppress(OSError):  # another system than Linux
            Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int | None:
        """Bytes; None where the system does not tell."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            return int(fields["VmHWM"].split()[0]) * 1024
        try:
            import resource
        except ImportError:  # Windows
            return None
        # On Linux, this figure would be at least that of the parent process.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def serve(work: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    answer_here = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is not part of the answer
    task = json.load(sys.stdin)
    try:
        answer = work(task)
    except NeottaError as error:
        answer = {"error": type(error).__name__, "message": str(error)}
    with answer_here:
        json.dump(answer, answer_here)


if __name__ == "__main__":
    serve(measure)
