"""Find the head of a classifier: the last linear layer, whose input is the embedding and whose output the logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from neotta.errors import AmbiguousHeadError, HeadNotFoundError, ModelError, UnsupportedModelError
from neotta.neo._conventions import by_convention, of_a_library, refuse_detectors, submodule, uncompiled, vouched
from neotta.neo._linear import AT_LOGITS, linear_layer, wrapping
from neotta.neo._trace import Trace, logits_of, trace
from neotta.neo.head_views import Head, close, cosine_view, is_pointwise
from neotta.neo.model_inputs import Inputs, examples, tensors

__all__ = ["by_axes", "candidates", "find_heads", "joined_heads", "logits_of", "refuse_tags"]


def find_heads(
    model: nn.Module, head: str | Sequence[str] | None = None, example: Inputs | None = None
) -> dict[str, Head]:
    """Find the head of a classifier, or the two heads of a distilled one.

    The model is run once, and what the head returns must be what the model returns; only where the structure of a model
    of timm, Hugging Face or torchvision leaves no doubt, it is not run.

    Args:
        model: Any classifier.
        head: Name of the layer, or several names; skips the search.
        example: A batch that the model takes: a tensor, or a dict of tensors. If given, the model is always run.

    Returns:
        By name: linear layers, 1x1 convolutions, or views of cosine classifiers.

    Raises:
        HeadNotFoundError: There is no such head, it does not return what the model returns, or the named layer is none.
        AmbiguousHeadError: Several layers are possible.
        UnsupportedModelError: The model returns independent tags.
    """
    if example is not None:
        tensors(example, "example")  # refuses what is no batch
    if head is not None:
        given = [head] if isinstance(head, str) else list(head)
        return {name: linear_layer(model, name, _named(model, name)) for name in given}
    refuse_detectors(model)
    if isinstance(model, nn.Linear):
        raise HeadNotFoundError("the model is itself a Linear layer: use neotta.NEOHead.from_linear(model)")
    try:
        expected = by_convention(model)
    except ModelError:
        if of_a_library(model):
            raise
        expected = None
    if expected is not None and example is None and vouched(model, expected):
        return expected
    return _by_running(model, expected, example)


def joined_heads(model: nn.Module, example: Inputs | None = None) -> list[str]:
    """Names of the linear layers whose outputs are combined into the logits; empty if unknown."""
    try:
        return list(find_heads(model, None, example))
    except ModelError:
        names = candidates(model)
        seen = _run(model, names, example)
        return [names[module] for module in seen.joined] if seen is not None and not seen.returned else []


def _by_running(model: nn.Module, expected: dict[str, Head] | None, example: Inputs | None) -> dict[str, Head]:
    """The layer that returns the logits, or the expected ones if they do so together."""
    names = candidates(model)
    if not names:
        by_convention(model)  # may raise a more specific error
        raise HeadNotFoundError(f"{_kind(model)} has no linear layer to adapt: {AT_LOGITS}")
    seen = _run(model, names, example)
    if seen is None:
        return _unseen(model, names, expected)
    answers = {module: answer for module in seen.calls if (answer := _answer_of(seen, module)) is not None}
    ends = [module for module in answers if module in seen.returned] or list(answers)
    for module in ends or seen.joined:
        _refuse_wrapped(model, names[module])
    for module in ends:
        _refuse_parts(model, answers[module], seen.samples)
    if expected is not None and ends and set(expected.values()) == set(ends):
        return expected
    if len(ends) > 1:
        found = [names[module] for module in ends]
        raise AmbiguousHeadError(
            f"{_kind(model)} returns the output of several layers ({_some(found)}): "
            f"name one with head={found[0]!r}, or all of them with head={found}"
        )
    if ends:
        return _only(model, names[ends[0]], ends[0], seen)
    if expected is not None and set(expected.values()) == set(seen.joined) and _together(seen):
        return expected
    raise _explained(model, names, seen)


def _only(model: nn.Module, name: str, layer: nn.Module, seen: Trace) -> dict[str, Head]:
    """The only layer that returns the logits, as a head."""
    (call,) = seen.calls[layer]
    if isinstance(layer, nn.Linear) or is_pointwise(layer):
        return {name: linear_layer(model, name, layer)}
    cosine = cosine_view(layer, call.input, call.output)
    if cosine is None:
        linear_layer(model, name, layer)  # explains why this is no head
        raise HeadNotFoundError(f"the head {name!r} of {_kind(model)} is a {_kind(layer)}: {AT_LOGITS}")
    return {name: cosine}


def _answer_of(seen: Trace, layer: nn.Module) -> Tensor | None:
    """The answer of the model that is a layer's only output, or its softmax, in numbers."""
    if len(seen.calls[layer]) != 1 or not (layer in seen.returned or layer in seen.joined or not seen.joined):
        return None
    output = seen.calls[layer][0].output
    outputs = [output, output.mean(dim=(2, 3))] if output.dim() == 4 else [output]  # maps, pooled afterwards
    return next((answer for answer in seen.answers if any(_same(each, answer) for each in outputs)), None)


def _refuse_parts(model: nn.Module, answer: Tensor, samples: int) -> None:
    """Raise an error if the answer is for parts of a sample."""
    if len(answer) != samples or answer.dim() > 2:
        raise HeadNotFoundError(
            f"{_kind(model)} returns {_shape(answer)} for {samples} samples, as models for tokens, pixels or objects "
            f"do: neotta adapts classifiers of whole samples; if each of them is a sample to you, name its axes: "
            f"neotta.adapt(model, at='logits', sample_axes={by_axes(answer)})"
        )


def by_axes(answer: Tensor) -> tuple[int, ...]:
    """The axes of the samples, if each token, (B, T, C), or pixel, (B, C, H, W), is one."""
    return (0, *range(2, answer.dim())) if answer.dim() > 3 else (0, 1)


def refuse_tags(model: nn.Module, name: str, output: Tensor, answer: Tensor) -> None:
    """Raise an error if the answer is the sigmoid of a layer's output: tags that do not exclude each other."""
    if output.shape == answer.shape and close(output.double().sigmoid(), answer):
        raise UnsupportedModelError(
            f"{_kind(model)} returns the sigmoid of the layer {name!r}, so its outputs are independent tags, and how "
            "often each occurs cannot be told from a shift. With clean images it can: neotta.adapt(model, 'neo', "
            f"head={name!r}, reference=neotta.reference(model, images, head={name!r}))"
        )


def _same(output: Tensor, answer: Tensor) -> bool:
    if output.numel() != answer.numel() or not answer.is_floating_point() or answer.dim() == 0:
        return False
    output = output.reshape(answer.shape)
    if close(output, answer):
        return True
    log = output.double().log_softmax(-1)
    return close(log.exp(), answer) or close(log, answer)


def _together(seen: Trace) -> bool:
    """Whether the logits are the mean, or the sum, of all joined layers, each called once."""
    calls = [call for layer in seen.joined for call in seen.calls[layer]]
    if seen.bypassed or len(seen.answers) != 1 or len({call.output.shape for call in calls}) != 1:
        return False
    if len(calls) > len(seen.joined):
        return False  # several views of each sample, which would count as several samples
    total = torch.stack([call.output.double() for call in calls]).sum(0)
    return close(total / len(calls), seen.answers[0]) or close(total, seen.answers[0])


def _explained(model: nn.Module, names: dict[nn.Module, str], seen: Trace) -> ModelError:
    """The error for a model whose output is not that of a layer."""
    found = [names[module] for module in seen.joined]
    if len(found) > 1 and not seen.bypassed:
        return AmbiguousHeadError(
            f"{_kind(model)} computes its logits from several layers ({_some(found)}): "
            f"if all of them should be re-centered, name them with head={found}; {AT_LOGITS}"
        )
    if not seen.answers:
        return HeadNotFoundError(f"the output of {_kind(model)} holds no logits: it is not a classifier of samples")
    by_convention(model)
    if len(found) == 1:
        calls = seen.calls[seen.joined[0]]
        refuse_tags(model, found[0], calls[0].output, seen.answers[0])
        many = f"is called {len(calls)} times" if len(calls) > 1 else f"returns {_shape(calls[0].output)}"
        return HeadNotFoundError(
            f"the output of {_kind(model)}, {_shape(seen.answers[0])}, is computed from the layer {found[0]!r}, which "
            f"{many}, but is not what it returns: it is pooled, scaled, normalised or gated afterwards; {AT_LOGITS}, "
            f"and head={found[0]!r} adapts that layer anyway"
        )
    linear = [name for module, name in names.items() if isinstance(module, nn.Linear)]
    return HeadNotFoundError(
        f"the output of {_kind(model)} is not that of a Linear layer: {AT_LOGITS}; if a layer should be re-centered "
        f"anyway, name it with head='...' (linear layers: {_some(linear)})"
    )


def _unseen(model: nn.Module, names: dict[nn.Module, str], expected: dict[str, Head] | None) -> dict[str, Head]:
    """Raise the error for a model that cannot be run on made-up input."""
    by_convention(model)
    linear = [name for module, name in names.items() if isinstance(module, nn.Linear)]
    example = "or pass a batch that the model takes as example=..."
    if expected is not None and of_a_library(model):
        raise AmbiguousHeadError(
            f"the output of {_kind(model)} may come from several Linear layers ({_some(linear)}): "
            f"name them, for example head={list(expected)}, {example}"
        )
    raise HeadNotFoundError(
        f"the head of {_kind(model)} was not recognised: name it with head='...' (linear layers: {_some(linear)}), "
        f"{example}"
    )


def _run(model: nn.Module, layers: Iterable[nn.Module], example: Inputs | None) -> Trace | None:
    """Run on the example, or on the first made-up input that works; None if none works."""
    inner = uncompiled(model)
    if example is not None:
        try:
            return trace(inner, layers, example)
        except Exception as error:  # whatever the model raises for such an input
            raise HeadNotFoundError(f"{_kind(model)} could not be run on the example: {error}") from error
    for inputs in examples(inner):
        try:
            return trace(inner, layers, inputs)
        except Exception:  # as above
            continue
    return None


# ---- layers and their names


def candidates(model: nn.Module) -> dict[nn.Module, str]:
    """Layers that may be the head, by module: linear ones, 1x1 convolutions, and others with a matrix of weights."""
    return {module: name for name, module in model.named_modules() if name and _may_be_head(module)}


def _may_be_head(module: nn.Module) -> bool:
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        return isinstance(module, nn.Linear) or is_pointwise(module)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or any(True for _ in module.children()):
        return False
    return any(parameter.dim() == 2 for parameter in module.parameters(recurse=False))


def _shape(tensor: Tensor) -> str:
    return f"a tensor of {tuple(tensor.shape)}"


def _refuse_wrapped(model: nn.Module, name: str) -> None:
    """Raise an error if the layer is inside a wrapper of a linear layer."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        parent = ".".join(parts[:end])
        if parts[end] == "base_layer" and wrapping(model.get_submodule(parent)) is not None:
            linear_layer(model, parent, model.get_submodule(parent))


def _named(model: nn.Module, name: str) -> nn.Module:
    module = submodule(model, name)
    if module is None:
        linear = [known for known, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        raise HeadNotFoundError(f"{_kind(model)} has no layer {name!r}: its linear layers are {_some(linear)}")
    return module


def _kind(module: nn.Module) -> str:
    return type(module).__name__


def _some(names: Iterable[str], most: int = 8) -> str:
    names = list(names)
    return ", ".join(map(repr, names[-most:])) + (f" and {len(names) - most} more" if len(names) > most else "")
