"""Which linear layers the answer of a model is made of, seen by running it once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neotta.errors import InputError


class Trace(NamedTuple):
    """What a run has shown.

    Attributes:
        returned: The layers whose output is returned as it is.
        joined: The layers that the logits are computed from, with no other linear layer in between.
        bypassed: The logits depend on the images in some way that leads through none of these layers.
    """

    returned: list[nn.Module]
    joined: list[nn.Module]
    bypassed: bool


def trace(model: nn.Module, layers: Iterable[nn.Module], images: Tensor) -> Trace:
    """Run a model in evaluation mode and see what its answer is made of; it stays as it was.

    Raises:
        Exception: Whatever the model raises when it does not take such images.
    """
    layers = list(layers)
    try:
        return _trace(model, layers, images, grad=True)
    except Exception:  # no gradients can be taken, for instance of weights made in inference mode
        return _trace(model, layers, images, grad=False)


def _trace(model: nn.Module, layers: list[nn.Module], images: Tensor, grad: bool) -> Trace:
    made: list[tuple[nn.Module, Tensor, Tensor]] = []

    def cut(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        # A new leaf in the place of the output: the graph behind it ends here. The copy may be changed in place.
        leaf = output.detach().requires_grad_(grad)
        made.append((module, leaf, leaf.clone()))
        return made[-1][2]

    with _hooked(layers, cut), _evaluating(model), torch.inference_mode(False), torch.set_grad_enabled(grad):
        start = images.detach().clone().requires_grad_(grad)
        output = model(start.clone())
        reached = _leaves(_logits(output))
    answers = {id(tensor) for tensor in _answers(output)}
    return Trace(
        returned=list(dict.fromkeys(module for module, _, copy in made if id(copy) in answers)),
        joined=list(dict.fromkeys(module for module, leaf, _ in made if id(leaf) in reached)),
        bypassed=id(start) in reached,
    )


def logits_of(output: Any) -> Tensor:
    """The logits in what a classifier returns: a tensor, or Hugging Face's output object, or a dict or tuple."""
    if isinstance(output, Tensor):
        return output
    logits = _field(output)
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    if not isinstance(logits, Tensor):
        raise InputError(f"the model returned {type(output).__name__}, in which no logits were found")
    return logits


def _field(output: Any) -> Any:
    return output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)


def _logits(output: Any) -> Tensor | None:
    try:
        return logits_of(output)
    except InputError:
        return None


def _answers(output: Any) -> list[Tensor]:
    """The tensors that can be the answer: what is called logits, or else all that is returned."""
    logits = _field(output)
    return _tensors(output if logits is None else logits)


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [t for part in output for t in _tensors(part)] if isinstance(output, (list, tuple)) else []


def _leaves(tensor: Tensor | None) -> set[int]:
    """The ids of the leaves that a tensor was computed from."""
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
def _hooked(layers: list[nn.Module], hook: Any) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
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
