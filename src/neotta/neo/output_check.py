"""Find the logits in the output of a model, before it is re-centered there."""

from __future__ import annotations

from torch import Tensor, nn

from neotta.errors import HeadNotFoundError, UnsupportedModelError
from neotta.neo._conventions import refuse_detectors, uncompiled
from neotta.neo._trace import Trace, trace
from neotta.neo.find_head import by_axes, candidates, refuse_tags
from neotta.neo.model_inputs import Inputs, examples, tensors


def count_classes(model: nn.Module, axes: tuple[int, ...], example: Inputs | None) -> int:
    """Run a model once and return the number of classes in its output.

    Args:
        model: Any model.
        axes: The axes of its output that count samples.
        example: A batch that it takes; by default it is run on noise.

    Raises:
        HeadNotFoundError: It could not be run, its logits were not found, or they have no such axes.
        UnsupportedModelError: It returns probabilities.
    """
    refuse_detectors(model)
    names = candidates(uncompiled(model))
    seen = _run(model, list(names), example)
    logits = _logits_of(model, names, seen)
    if logits.dim() != len(axes) + 1 or not logits.is_floating_point():
        raise HeadNotFoundError(
            f"{_kind(model)} returns a tensor of {tuple(logits.shape)}, expected {len(axes)} "
            f"{'axis' if len(axes) == 1 else 'axes'} of samples and one of classes. Models for tokens, pixels or "
            f"objects need sample_axes, for example sample_axes={by_axes(logits)}"
        )
    (classes,) = set(range(logits.dim())) - {axis % logits.dim() for axis in axes}
    _refuse_probabilities(model, names, seen, logits.movedim(classes, -1))
    return logits.shape[classes]


def _run(model: nn.Module, layers: list[nn.Module], example: Inputs | None) -> Trace:
    if example is not None:
        tensors(example, "example")  # refuses what is no batch
    for inputs in examples(model) if example is None else [example]:
        try:
            return trace(uncompiled(model), layers, inputs)
        except Exception as error:  # whatever the model raises for such an input
            if example is not None:
                raise HeadNotFoundError(f"{_kind(model)} could not be run on the example: {error}") from error
    raise HeadNotFoundError(f"{_kind(model)} could not be run on noise: pass a batch that it takes as example=...")


def _logits_of(model: nn.Module, names: dict[nn.Module, str], seen: Trace) -> Tensor:
    """The tensor that is re-centered: the field `logits`, or the first one of a tuple."""
    if seen.logits is None:
        fields = " and ".join(map(repr, seen.fields))
        found = f"a dict of {fields}" if fields else "no tensor"
        raise HeadNotFoundError(
            f"{_kind(model)} returns {found}, and only a tensor, a field 'logits' or the first entry of a tuple is "
            "re-centered: wrap the model in one that returns its logits, or re-center its linear layer (omit at)"
        )
    if seen.returned and not seen.direct:
        name = names[seen.returned[0]]
        raise HeadNotFoundError(
            f"the output of the layer {name!r} is not the first that {_kind(model)} returns, and of a tuple the first "
            f"is re-centered: if that layer returns the logits, use head={name!r} instead of at='logits'; otherwise "
            "let the model return its logits first"
        )
    return seen.logits


def _refuse_probabilities(model: nn.Module, names: dict[nn.Module, str], seen: Trace, answer: Tensor) -> None:
    """Raise an error for a softmax, and for the sigmoid of a layer. `answer` has the classes on its last axis."""
    sums = answer.double().sum(-1)
    if bool((answer >= 0).all()) and answer.shape[-1] > 1 and bool(((sums - 1).abs() < 1e-4).all()):
        raise UnsupportedModelError(
            f"{_kind(model)} returns probabilities, and re-centering is for logits: let it return those, or re-center "
            "its linear layer (omit at)"
        )
    for layer in seen.joined:
        for made in seen.calls[layer]:
            refuse_tags(model, names[layer], made.output, answer)


def _kind(model: nn.Module) -> str:
    return type(model).__name__
