"""Run a model: what it takes, a tensor or tensors by name, and which layers produce its output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from neotta.errors import HeadNotFoundError, InputError
from neotta.neo.context import untouched

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]

_BATCH = 2  # two samples show which axis counts them
_TOKENS, _SAMPLES_OF_SOUND = 8, 16000


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a model with a tensor, or with tensors by name."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def tensors(inputs: Any, what: str = "a batch") -> list[Tensor]:
    """The tensors of a batch, which all have the samples on their first axis."""
    if isinstance(inputs, Tensor):
        return [inputs]
    if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise InputError(f"{what} must be a tensor, or a dict of tensors by name, got {type(inputs).__name__}")
    batched = [value for value in inputs.values() if value.dim()]
    if not batched or len({len(value) for value in batched}) > 1:
        shapes = {name: tuple(value.shape) for name, value in inputs.items()}
        raise InputError(f"the tensors of a batch have one row per sample, got {shapes}")
    return batched


def batch_size(inputs: Inputs) -> int:
    """Number of samples in a batch."""
    return len(tensors(inputs)[0])


def each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """A batch of changed tensors; those without a batch axis stay as they are."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return {name: change(value) if value.dim() else value for name, value in inputs.items()}


@contextlib.contextmanager
def switched_off(objects: Iterable[Any], attribute: str) -> Iterator[None]:
    """Set an attribute to False inside a block, for those objects for which it is True."""
    switched = [one for one in objects if getattr(one, attribute)]
    for one in switched:
        setattr(one, attribute, False)
    try:
        yield
    finally:
        for one in switched:
            setattr(one, attribute, True)


def evaluating(modules: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Put modules into evaluation mode inside a block."""
    return switched_off(modules, "training")


# ---- what a model returns


def logits_of(output: Any) -> Tensor:
    """Extract the logits from the output of a classifier: a tensor, a Hugging Face output, a dict or a tuple."""
    logits = _logits(output)
    if logits is None:
        raise InputError(f"no logits found in the output of the model, a {type(output).__name__}")
    return logits


def _logits(output: Any) -> Tensor | None:
    logits = output if isinstance(output, Tensor) else _field(output)
    if logits is None and isinstance(output, (tuple, list)) and output:
        logits = output[0]
    return logits if isinstance(logits, Tensor) else None


def _field(output: Any) -> Any:
    return output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)


def _tensors_in(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [t for part in output for t in _tensors_in(part)] if isinstance(output, (list, tuple)) else []


# ---- made-up batches


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _tokens(vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(min(1, vocabulary - 1), vocabulary, (_BATCH, _TOKENS), generator=generator)


def _made_up(model: nn.Module) -> Iterator[Inputs]:
    like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), torch.zeros(()))
    for inputs in _noise_for(model):
        yield each(inputs, lambda tensor: tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device))


def _noise_for(model: nn.Module) -> Iterator[Inputs]:
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is not None and isinstance(name, str):
        yield from _for_transformers(config, name, model)
    kinds = (nn.Embedding, nn.EmbeddingBag, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    first = next((m for m in model.modules() if isinstance(m, kinds) or hasattr(m, "in_features")), None)
    if isinstance(first, (nn.Embedding, nn.EmbeddingBag)):
        yield _tokens(first.num_embeddings)
    elif isinstance(first, nn.Conv1d):
        yield _noise(_BATCH, first.in_channels, _SAMPLES_OF_SOUND)
    elif isinstance(first, nn.Conv3d):
        yield _noise(_BATCH, first.in_channels, 8, 64, 64)
    elif isinstance(features := getattr(first, "in_features", None), int):
        yield _noise(_BATCH, features)
    yield from _images(model)


def _for_transformers(config: Any, name: str, model: nn.Module) -> Iterator[Inputs]:
    mels, length, positions, frames = (
        getattr(config, field, None) for field in ("num_mel_bins", "max_length", "max_source_positions", "num_frames")
    )
    if name == "input_ids":
        ids = _tokens(getattr(config, "vocab_size", 2))
        yield {name: ids, "attention_mask": torch.ones_like(ids)}
        yield {name: ids[:1], "attention_mask": torch.ones_like(ids[:1])}  # without a padding token, one at a time
    elif name == "input_values":
        if isinstance(mels, int) and isinstance(length, int):
            yield {name: _noise(_BATCH, length, mels)}
        yield {name: _noise(_BATCH, _SAMPLES_OF_SOUND)}
    elif name == "input_features" and isinstance(mels, int) and isinstance(positions, int):
        yield {name: _noise(_BATCH, mels, 2 * positions)}
    elif name == "pixel_values" and isinstance(frames, int):
        for images in _images(model):
            yield {name: images[:, None].expand(-1, frames, -1, -1, -1).contiguous()}


def _images(model: nn.Module) -> Iterator[Tensor]:
    conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    sizes = [
        getattr(getattr(model, "patch_embed", None), "img_size", None),
        (getattr(model, "pretrained_cfg", None) or {}).get("input_size"),
        getattr(getattr(model, "config", None), "image_size", None),
    ]
    sides = [size[-1] if isinstance(size, (tuple, list)) else size for size in sizes] + [224, 32]
    for side in dict.fromkeys(side for side in sides if isinstance(side, int)):
        yield _noise(_BATCH, 3 if conv is None else conv.in_channels, side, side)


# ---- a run


class Call(NamedTuple):
    """A call of a layer: its first argument, if that is a tensor, and what it returned."""

    input: Tensor | None
    output: Tensor


class Trace(NamedTuple):
    """Result of a run."""

    samples: int
    output: Any  # what the model returned
    answers: list[Tensor]  # the tensors that may be the logits: the field of that name, or else everything returned
    logits: Tensor | None  # the one of them that `logits_of` takes, if there is one
    returned: list[nn.Module]  # layers whose output is returned, perhaps changed in place
    direct: bool  # whether the logits are the output of one of them
    joined: list[nn.Module]  # layers that the logits are computed from, with no other such layer in between
    bypassed: bool  # whether the logits also depend on the input by a path through none of these layers
    calls: dict[nn.Module, list[Call]]


def run_once(model: nn.Module, layers: Iterable[nn.Module], example: Inputs | None) -> Trace | None:
    """Run a model on the example, or on the first made-up batch that works; None if none works.

    It runs in evaluation mode and is not changed.
    """
    layers = set(layers)
    for inputs in _made_up(model) if example is None else [example]:
        for grad in (True, False):  # weights that were created in inference mode have no gradients
            try:
                return _traced(model, layers, inputs, grad)
            except Exception as error:  # whatever the model raises for such a batch
                problem = error
    if example is None:
        return None
    raise HeadNotFoundError(f"{type(model).__name__} could not be run on the example: {problem}") from problem


def _traced(model: nn.Module, layers: set[nn.Module], inputs: Inputs, grad: bool) -> Trace:
    made: list[tuple[nn.Module, Tensor | None, Tensor, Tensor]] = []
    thread = threading.get_ident()

    def leaf_of(tensor: Tensor) -> Tensor:
        return tensor.requires_grad_(grad and tensor.is_floating_point())

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        if module not in layers or threading.get_ident() != thread or not isinstance(output, Tensor):
            return output  # another layer, or another thread uses the model at the same time
        # Replace the output by a new leaf, so that the graph ends here. The copy may be changed in place.
        leaf = leaf_of(output.detach())
        first = args[0].detach() if args and isinstance(args[0], Tensor) else None
        made.append((module, first, leaf, leaf.clone()))
        return made[-1][3]

    # A hook of all modules: the modules themselves hold none, so that other threads can copy the model.
    with (
        register_module_forward_hook(cut),
        untouched(model),
        evaluating(model.modules()),
        torch.inference_mode(False),
        torch.set_grad_enabled(grad),
    ):
        start = each(inputs, lambda tensor: leaf_of(tensor.detach().clone()))
        output = call(model, each(start, torch.clone))
    logits, field = _logits(output), _field(output)
    answers = _tensors_in(output if field is None else field)
    ids, reached = {id(tensor) for tensor in answers}, _leaves(logits)
    calls: dict[nn.Module, list[Call]] = {}
    for module, first, leaf, _ in made:
        calls.setdefault(module, []).append(Call(first, leaf.detach()))
    return Trace(
        samples=batch_size(inputs),
        output=output,
        answers=[answer.detach() for answer in answers],
        logits=None if logits is None else logits.detach(),
        returned=list(dict.fromkeys(module for module, _, _, copy in made if id(copy) in ids)),
        direct=any(copy is logits for _, _, _, copy in made),
        joined=list(dict.fromkeys(module for module, _, leaf, _ in made if id(leaf) in reached)),
        bypassed=any(id(tensor) in reached for tensor in tensors(start)),
        calls=calls,
    )


def _leaves(tensor: Tensor | None) -> set[int]:
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
