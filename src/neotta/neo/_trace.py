"""Run a model once to see which layers produce its output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from neotta.errors import InputError
from neotta.neo.model_inputs import Inputs, batch_size, call, each, tensors


class Call(NamedTuple):
    """A call of a layer: its first argument, if that is a tensor, and what it returned."""

    input: Tensor | None
    output: Tensor


class Trace(NamedTuple):
    """Result of a run.

    Attributes:
        samples: Number of samples in the batch.
        answers: The tensors that may be the logits: the field of that name, or else everything returned.
        logits: The one of them that `logits_of` takes, if there is one.
        fields: The names of what is returned, if it is a dict.
        returned: Layers whose output is returned, perhaps changed in place.
        direct: Whether the logits are the output of one of them.
        joined: Layers that the logits are computed from, with no other such layer in between.
        bypassed: Whether the logits also depend on the input by a path through none of these layers.
        calls: The calls of each layer.
    """

    samples: int
    answers: list[Tensor]
    logits: Tensor | None
    fields: list[str]
    returned: list[nn.Module]
    direct: bool
    joined: list[nn.Module]
    bypassed: bool
    calls: dict[nn.Module, list[Call]]


def trace(model: nn.Module, layers: Iterable[nn.Module], inputs: Inputs) -> Trace:
    """Run a model in evaluation mode and trace its output; the model is not changed.

    Raises:
        Exception: Whatever the model raises if it does not accept such an input.
    """
    layers = list(layers)
    try:
        return _trace(model, layers, inputs, grad=True)
    except Exception:  # gradients are not available, for example for weights created in inference mode
        return _trace(model, layers, inputs, grad=False)


def _trace(model: nn.Module, layers: list[nn.Module], inputs: Inputs, grad: bool) -> Trace:
    made: list[tuple[nn.Module, Tensor | None, Tensor, Tensor]] = []
    watched, thread = set(layers), threading.get_ident()

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        if module not in watched or threading.get_ident() != thread or not isinstance(output, Tensor):
            return output  # another layer, or another thread uses the model at the same time
        # Replace the output by a new leaf, so that the graph ends here. The copy may be changed in place.
        leaf = output.detach().requires_grad_(grad and output.is_floating_point())
        first = args[0].detach() if args and isinstance(args[0], Tensor) else None
        made.append((module, first, leaf, leaf.clone()))
        return made[-1][3]

    def leaf_of(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().requires_grad_(grad and tensor.is_floating_point())

    with _hooked(cut), _evaluating(model), torch.inference_mode(False), torch.set_grad_enabled(grad):
        start = each(inputs, leaf_of)
        output = call(model, each(start, torch.clone))
        logits = _logits(output)
        reached = _leaves(logits)
    answers = _answers(output)
    ids = {id(tensor) for tensor in answers}
    calls: dict[nn.Module, list[Call]] = {}
    for module, first, leaf, _ in made:
        calls.setdefault(module, []).append(Call(first, leaf.detach()))
    return Trace(
        samples=batch_size(inputs),
        answers=[answer.detach() for answer in answers],
        logits=None if logits is None else logits.detach(),
        fields=list(map(str, output)) if isinstance(output, dict) else [],
        returned=list(dict.fromkeys(module for module, _, _, copy in made if id(copy) in ids)),
        direct=any(copy is logits for _, _, _, copy in made),
        joined=list(dict.fromkeys(module for module, _, leaf, _ in made if id(leaf) in reached)),
        bypassed=any(id(tensor) in reached for tensor in tensors(start)),
        calls=calls,
    )


def logits_of(output: Any) -> Tensor:
    """Extract the logits from the output of a classifier: a tensor, a Hugging Face output, a dict or a tuple."""
    if isinstance(output, Tensor):
        return output
    logits = _field(output)
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise InputError(f"no logits found in the output of the model, a {type(output).__name__}")
    return logits


def _field(output: Any) -> Any:
    return output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)


def _logits(output: Any) -> Tensor | None:
    try:
        return logits_of(output)
    except InputError:
        return None


def _answers(output: Any) -> list[Tensor]:
    """The tensors that may be the logits: the field of that name, or else everything returned."""
    logits = _field(output)
    return _tensors(output if logits is None else logits)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [t for part in output for t in _tensors(part)] if isinstance(output, (list, tuple)) else []


def _leaves(tensor: Tensor | None) -> set[int]:
    """Ids of the leaves that a tensor was computed from."""
    waiting: list[Any] = [tensor.grad_fn] if tensor is not None else []
    seen, leaves = set(waiting), set()
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        for other, _ in node.next_functions:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return leaves


@contextlib.contextmanager
def _hooked(hook: Any) -> Iterator[None]:
    """Call a hook after every module. The modules themselves hold none, so that other threads can copy the model."""
    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
