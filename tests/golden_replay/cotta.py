import re

import numpy as np
import torch

from golden_replay.replay import recorded_parameter


class Roll:
    """The recorded augmentation: each call rolls by one pixel more."""

    def __init__(self, period):
        self.period = period
        self.calls = 0

    def __call__(self, images):
        self.calls += 1
        return torch.roll(images, (self.calls - 1) % self.period, dims=3)


def options(trace, context):
    given = {
        name: value for name, value in trace["hyperparameters"].items() if name not in ("head_scale", "class_subset")
    }
    period = int(re.search(r"torch\.roll\(x, k % (\d+), dims=3\)", given["augmentation"]).group(1))
    context.memory["roll"] = Roll(period)
    return {**given, "augmentation": context.memory["roll"], "augment_domain": "normalised"}


def start(adapter, trace, context):
    """Take the recorded masks, one bit per number, for the steps that have them."""
    masks = {}
    for index in range(len(trace["steps"])):
        packed = context.tensors.get(f"step{index}/restore_mask_packed")
        if packed is not None:
            masks[index] = np.unpackbits(packed.numpy())
    context.memory.update(step=0, used=0)

    def recorded(name, tensor):
        bits, used = masks[context.memory["step"]], context.memory["used"]
        context.memory["used"] += tensor.numel()
        return torch.from_numpy(bits[used : used + tensor.numel()].astype(bool)).reshape(tensor.shape)

    if masks:
        adapter._restore_mask = recorded


def step(adapter, trace, context, index):
    calls = f"step{index}/augmentation_calls_so_far"
    if calls in context.tensors:
        context.close(calls, context.memory["roll"].calls)
    packed = f"step{index}/restore_mask_packed"
    if packed in context.tensors:
        assert (context.memory["used"] + 7) // 8 == len(context.tensors[packed]), "every bit of the masks is used"
        context.compared.add(packed)
    context.memory.update(step=index + 1, used=0)


def finish(adapter, trace, context):
    for name in context.tensors:
        for kind, params in (("student", adapter.params), ("teacher", adapter.teacher)):
            prefix = f"final/{kind}/"
            if name.startswith(prefix):
                context.close(name, recorded_parameter(adapter, params, name.removeprefix(prefix)))
