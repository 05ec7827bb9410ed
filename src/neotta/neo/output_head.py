"""Re-center the output of a model: for heads that are not linear layers, and answers for tokens, pixels or objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta.errors import (
    InputError,
    ModelError,
    OptionError,
    StateMismatchError,
    UnsupportedModelError,
)
from neotta.neo._trace import logits_of
from neotta.neo._transforms import refuse_transforms
from neotta.neo.find_head import find_heads
from neotta.neo.head import NEOHead, subtract
from neotta.neo.memory import Memory
from neotta.neo.model_inputs import Inputs
from neotta.neo.per_call import settings
from neotta.neo.reference_file import HeadReference, Reference
from neotta.neo.row_weights import per_row
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_ids import StreamId
from neotta.neo.training_mode import warn_of_training

NAME = "neotta_output"
"""Name of the child that `adapt(model, at="logits")` adds to a model."""


class OutputHead(NEOHead):
    """A NEO head without weights of its own, at the output of a model; a forward hook applies it.

    W (h - c) + b = (W h + b) - W c, and W c is the mean of the logits without their bias: the logits are all it needs.

    Args:
        classes: Number of classes C.
        memory: Where the moments of the logits are kept.
        axes: The axes of the output that count samples; the one that is left holds the classes.
        bias: The bias of the head, (C,), where it is known; otherwise the logits count as free of it.
        uniform_bias: See `NEOHead`.
        reference: Where clean logits lie, if it was measured.
    """

    def __init__(
        self,
        classes: int,
        memory: Memory,
        axes: tuple[int, ...],
        bias: nn.Parameter | None,
        uniform_bias: bool,
        reference: HeadReference | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = classes
        self.register_parameter("weight", None)
        self.register_parameter("bias", bias)  # the model's own, so not in the state dict
        self.axes = axes
        self.hooked = True
        self._install(memory, uniform_bias)
        self.reference = reference
        if reference is not None:
            mean = reference.origin if memory.rule.space == "logits" else reference.embedding
            with torch.inference_mode(False):
                self.origin = torch.as_tensor(mean, dtype=torch.float32, device=next(memory.buffers()).device)

    def after(self, model: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
        """The forward hook of the model: the same output with other logits."""
        return self._changed(output, kwargs, self)

    def _changed(self, output: Any, kwargs: Mapping[str, Any], recentered: Callable[..., Tensor]) -> Any:
        """The same output with other logits."""
        logits = logits_of(output)
        if logits.dim() != len(self.axes) + 1:
            raise InputError(
                f"the model returns logits of shape {tuple(logits.shape)}, expected {len(self.axes)} axes of samples "
                "and one of classes: neotta.adapt(model, at='logits', sample_axes=...) says which axes are which"
            )
        last, of_classes = classes_last(logits, self.axes)
        centred = recentered(last.reshape(-1, last.shape[-1]), len(last), mask_of(kwargs, last.shape[:-1]))
        return replaced(output, centred.reshape(last.shape).movedim(-1, of_classes))

    def forward(self, input: Any, samples: int | None = None, mask: Tensor | None = None) -> Any:
        """Re-center logits, (N, C).

        An `nn.Sequential` calls all its children, so this one too, with the output itself and no number of samples.

        Args:
            input: The logits, N / samples consecutive rows for each sample.
            samples: Number of samples.
            mask: Which rows count, (N,); the others are padding.
        """
        if samples is None:
            return input if self.hooked else self._changed(input, {}, self._recentered)
        return self._recentered(input, samples, mask)

    def _recentered(self, input: Tensor, samples: int, mask: Tensor | None) -> Tensor:
        if self.adapting and not is_compiling():
            refuse_transforms()
            if self.training:
                warn_of_training(self)
        adapt, weights = settings(self, input, samples)
        watch, ids = None if is_compiling() else self.watch, None
        if watch is not None:
            ids = watch.ids(self.memory, samples)
            weights = watch.held(ids, weights, samples)
        if mask is not None:
            weights = mask.double() if weights is None else mask * per_row(weights, input, samples)
        bias: Tensor | float = 0.0 if self.bias is None else self.bias.to(input.dtype)
        origin = self._buffers["origin"]
        if self.memory.rule.space == "logits":
            known = self.bias if origin is None else origin
            answer = subtract(input, self.memory.step(input, samples, bias=known, adapt=adapt, weights=weights))
        else:
            free = input - bias
            rows = free if origin is None else free.to(origin.dtype) - origin
            centre = self._from_origin(self.memory.step(rows, samples, adapt=adapt, weights=weights))
            centred = subtract(free, centre)
            answer = centred + (1.0 / self.out_features if self.uniform_bias else bias)
        if watch is not None:
            watch.see(self, ids, input, answer, adapt)
        return answer

    def folded(self, stream: StreamId | None = None) -> nn.Linear:
        """Refused: there is no layer to fold into."""
        raise UnsupportedModelError(
            "a model that is re-centered at its logits has no bias to fold into: neotta.head(model).freeze() stops it "
            "from adapting; if its head is a linear layer, adapt it there, without at='logits'"
        )

    def alone(self, stream: StreamId) -> NEOHead:
        """Return a head whose only centroid is a copy of one stream's."""
        memory = self.streams.centroid(stream)
        return OutputHead(self.out_features, memory, self.axes, self.bias, self.uniform_bias, self.reference)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        pass

    def _load_from_state_dict(self, *args: Any) -> None:
        pass


def attach(model: nn.Module, head: OutputHead) -> None:
    """Let a model pass its output through a head; its state dict and its class stay as they are."""
    head.training = model.training
    model.add_module(NAME, head)
    head.hooked = type(model).forward is not nn.Sequential.forward
    if head.hooked:
        model.register_forward_hook(head.after, with_kwargs=True)


def detach(model: nn.Module) -> None:
    """Undo `attach`, if it was done."""
    head = model._modules.get(NAME)
    if not isinstance(head, OutputHead):
        return
    for key, hook in list(model._forward_hooks.items()):
        if getattr(hook, "__self__", None) is head:
            del model._forward_hooks[key]
            model._forward_hooks_with_kwargs.pop(key, None)
    del model._modules[NAME]


def known_bias(model: nn.Module, example: Inputs | None) -> nn.Parameter | None:
    """The bias of the head, if the model ends in a single linear one."""
    try:
        found = list(find_heads(model, None, example).values())
    except ModelError:
        return None
    bias = found[0].bias if len(found) == 1 else None
    return bias if isinstance(bias, nn.Parameter) else None


def replaced(output: Any, logits: Tensor) -> Any:
    """The same output with other logits."""
    if isinstance(output, Tensor):
        return logits
    if isinstance(output, Mapping) or hasattr(output, "logits"):
        changed = copy.copy(output)
        if isinstance(output, Mapping):
            changed["logits"] = logits
        else:
            changed.logits = logits
        return changed
    if hasattr(output, "_fields"):
        return output._replace(**{output._fields[0]: logits})
    return type(output)((logits, *output[1:]))


def output_axes(
    at: str | None, head: str | Sequence[str] | None, sample_axes: Sequence[int] | None
) -> tuple[int, ...] | None:
    """The axes of samples of the output, if that is re-centered."""
    if at not in (None, "head", "logits"):
        raise OptionError(f"at is {at!r}: expected 'head' or 'logits'")
    if at != "logits":
        if sample_axes is not None:
            raise OptionError("sample_axes needs at='logits'")
        return None
    if head is not None:
        raise OptionError("at='logits' re-centers the output of the model: omit head")
    axes = (0,) if sample_axes is None else tuple(sample_axes)
    if not axes or len(set(axes)) != len(axes) or not all(type(axis) is int for axis in axes):
        raise OptionError(f"sample_axes is {sample_axes!r}: expected different whole numbers, such as (0, 1)")
    return axes


def classes_last(logits: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, int]:
    """Logits with the classes on the last axis, and the axis where they were."""
    (of_classes,) = set(range(logits.dim())) - {axis % logits.dim() for axis in axes}
    return logits.movedim(of_classes, -1), of_classes


def output_fingerprint(model: nn.Module) -> str:
    """Hash of the last weights of a model, which its output depends on."""
    return fingerprint(dict([*model.named_parameters()][-2:]))


def output_reference(reference: Reference, owner: str) -> HeadReference:
    """The reference of an output, checked.

    Raises:
        StateMismatchError: It was measured at a linear head, or belongs to another model.
    """
    if NAME not in reference.heads:
        raise StateMismatchError(
            f"the reference was measured at the layer {', '.join(reference.heads)}, and the output of this model is "
            "re-centered: measure it with neotta.reference(model, images, at='logits')"
        )
    reference.check_fingerprints({NAME: owner})
    return reference.heads[NAME]


def mask_of(kwargs: Mapping[str, Any], shape: torch.Size) -> Tensor | None:
    """Which positions are no padding, (N,), if the attention mask of the call says so."""
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != shape or len(shape) < 2:
        return None
    return mask.bool().flatten()
