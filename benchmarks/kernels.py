"""How many operations a call of an adapted head dispatches, and how long it takes to compile.

    python benchmarks/kernels.py

On a GPU each operation is a kernel to launch, some 5 to 10 µs, and a read-back to the host waits for all of them. They
are counted on the meta device, where a read-back raises an error; views are not counted. The operations of the plain
layer (a flattening and a linear layer) are part of the count.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import neotta

LIMITS = {"neo-stream": {1: 120, 64: 290}, "neo": {1: 30, 64: 30}}  # by batch
VIEWS = ("view", "t.", "slice", "select", "unsqueeze", "squeeze", "expand", "permute", "transpose", "detach", "alias",
         "unbind", "split", "as_strided", "_unsafe_view")  # fmt: skip


class Count(TorchDispatchMode):
    """Counts operations that are no views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not str(func).removeprefix("aten.").startswith(VIEWS)
        return func(*args, **(kwargs or {}))


def adapted(method: str) -> torch.nn.Module:
    return neotta.adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 1000)).eval(), method)


def counted(method: str, batch: int) -> int:
    """Operations of a call; a read-back raises an error."""
    model, images = adapted(method).to("meta"), torch.randn(batch, 3, 4, 4, device="meta")
    with torch.inference_mode():
        model(images)
        with Count() as mode:
            model(images)
    return mode.count


def compiled(method: str) -> float:
    """Seconds of CPU time to compile a head, without a code generator."""
    torch._dynamo.reset()
    run, images = torch.compile(adapted(method), fullgraph=True, backend="aot_eager"), torch.randn(64, 3, 4, 4)
    started = time.process_time()
    with torch.no_grad():
        run(images)
    return time.process_time() - started


if __name__ == "__main__":
    for method, limits in LIMITS.items():
        found = {batch: counted(method, batch) for batch in (1, 64, 256)}
        print(f"{method}, 1000 classes: {', '.join(f'{n} operations at batch {b}' for b, n in found.items())}")
        assert all(found[batch] <= most for batch, most in limits.items()), f"more operations than {limits}"
    print(f"compiled: the first graph, with what torch imports for it, {compiled('neo'):.1f} s")
    print(", ".join(f"{method} then {compiled(method):.1f} s" for method in LIMITS))
