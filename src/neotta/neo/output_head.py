"""Re-center the output of a model, for heads that are not linear layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neotta.errors import (
    HeadNotFoundError,
    InputError,
    ModelError,
    OptionError,
    StateMismatchError,
    UnsupportedModelError,
)
from neotta.neo.find_head import WHOLE, candidates, heads_in, other_task, tags, uncompiled
from neotta.neo.head import NEOHead
from neotta.neo.head_views import HeadView, exact
from neotta.neo.model_inputs import Inputs, logits_of, run_once, tensors
from neotta.neo.reference_file import HeadReference, Reference
from neotta.neo.statefile import Array, fingerprint
from neotta.neo.stream_ids import StreamId
from neotta.neo.streams import Streams

NAME = "neotta_output"
"""Name of the child that `adapt(model, at="logits")` adds to a model."""


class OutputHead(NEOHead):
    """A NEO head without weights of its own, at the output of a model; a forward hook applies it.

    W (h - c) + b = (W h + b) - W c, and W c is the mean of the logits without their bias: the logits are all it needs.
    Where the bias of the head, (C,), is not known, the logits count as free of it. For the rest see `NEOHead`.
    """

    weight: nn.Parameter | None  # type: ignore[assignment]

    def __init__(
        self,
        bias: nn.Parameter | None,
        streams: Streams,
        *,
        weight: nn.Parameter | None = None,
        uniform_bias: bool = False,
        reference: HeadReference | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features = self.out_features = streams.size
        self.register_parameter("weight", weight)  # the model's own, if they are known; so not in the state dict
        self.register_parameter("bias", bias)
        self._install(streams, reference)
        self.hooked, self.uniform_bias = True, uniform_bias

    @classmethod
    def of(cls, weight: Array | None, bias: Array | None, streams: Streams, **how: Any) -> OutputHead:
        """The head of logits that come from elsewhere, (C, d) and (C,) as far as they are known."""
        own = [
            None if each is None else nn.Parameter(torch.from_numpy(np.array(each)), requires_grad=False)
            for each in (weight, bias)
        ]
        return cls(own[1], streams, weight=own[0], **how)

    def after(self, model: nn.Module, args: Any, output: Any) -> Any:
        """Change the output of the model: its forward hook."""
        return replaced(output, self(logits_of(output), hooked=True))

    def forward(self, input: Any, hooked: bool = False) -> Any:
        """Re-center logits, (B, C).

        An `nn.Sequential` calls all its children, so this one too, with its output; others call it by the hook.
        """
        if hooked is not self.hooked:
            return input
        logits = logits_of(input)
        if logits.dim() != 2:
            raise InputError(f"the model returns logits of shape {tuple(logits.shape)}, expected (batch, classes)")
        self._check_mode()
        answer = self.recentered(logits, self.bias)
        if self.uniform_bias:
            answer = answer + (1.0 / self.out_features - (0.0 if self.bias is None else self.bias.to(answer.dtype)))
        self._check_classes(answer)
        return replaced(input, answer)

    @property
    def space(self) -> Literal["embeddings", "logits"]:
        """What its states were learnt from."""
        return "logits"

    def linear(self) -> tuple[Tensor | None, Tensor | None]:
        """The weight, (C, d), and the bias, (C,), of the last layer, as far as they are known."""
        return None if self.weight is None else self.weight.flatten(1), self.bias

    def folded(self, stream: StreamId | None = None) -> nn.Linear:
        """Not possible: there is no layer to fold into."""
        raise UnsupportedModelError(
            "a model that is re-centered at its logits has no bias to fold into: neotta.head(model).freeze() stops it "
            "from adapting; if its head is a linear layer, adapt it there, without at='logits'"
        )

    def holding(self, streams: Streams) -> NEOHead:
        """Return the same head with other streams."""
        how: Any = {"weight": self.weight, "uniform_bias": self.uniform_bias, "reference": self.reference}
        return OutputHead(self.bias, streams, **how)

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
        model.register_forward_hook(head.after)


def detach(model: nn.Module) -> None:
    """Undo `attach`, if it was done."""
    head = model._modules.get(NAME)
    if not isinstance(head, OutputHead):
        return
    for key, hook in list(model._forward_hooks.items()):
        if getattr(hook, "__self__", None) is head:
            del model._forward_hooks[key]
    del model._modules[NAME]


def replaced(output: Any, logits: Tensor) -> Any:
    """The same output with other logits."""
    if isinstance(output, Tensor):
        return logits
    if isinstance(output, Mapping):
        changed: Any = copy.copy(output)
        changed["logits"] = logits
        return changed
    if hasattr(output, "_fields"):
        return output._replace(**{"logits" if hasattr(output, "logits") else output._fields[0]: logits})
    if hasattr(output, "logits"):
        changed = copy.copy(output)
        changed.logits = logits
        return changed
    return type(output)((logits, *output[1:]))


def at_logits(at: str | None, head: str | Sequence[str] | None) -> bool:
    """Whether the output of a model is to be re-centered, and not a layer."""
    if at not in (None, "head", "logits"):
        raise OptionError(f"at is {at!r}: expected 'head' or 'logits'")
    if at == "logits" and head is not None:
        raise OptionError("at='logits' re-centers the output of the model: omit head")
    return at == "logits"


def output_fingerprint(model: nn.Module) -> str:
    """Hash of the last weights of a model, which its output depends on."""
    return fingerprint(dict([*model.named_parameters()][-2:]))


def fingerprints_of(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, str]:
    """Hashes of the weights of the heads of a model; without heads, of those that its output depends on."""
    hashes = {name: fingerprint(dict(layer.named_parameters())) for name, layer in layers.items()}
    return hashes or {NAME: output_fingerprint(model)}


def output_reference(reference: Reference, owner: str) -> HeadReference:
    """The reference of an output, checked to be that of this model."""
    if NAME not in reference.heads:
        raise StateMismatchError(
            f"the reference was measured at the layer {', '.join(reference.heads)}, and the output of this model is "
            "re-centered: measure it with neotta.reference(model, images, at='logits')"
        )
    reference.check_fingerprints({NAME: owner})
    return reference.heads[NAME]


def read_output(model: nn.Module, example: Inputs | None) -> tuple[int, nn.Parameter | None, nn.Parameter | None]:
    """Run a model once; its number of classes, and the weight and bias of its only linear head, if it has one."""
    if example is not None:
        tensors(example, "example")
    model = uncompiled(model)
    if (reason := other_task(model)) is not None:
        raise reason
    names, kind = candidates(model), type(model).__name__
    seen = run_once(model, names, example)
    if seen is None:
        raise HeadNotFoundError(f"{kind} could not be run on noise: pass a batch that it takes as example=...")
    if seen.logits is None:
        fields = " and ".join(map(repr, seen.output)) if isinstance(seen.output, dict) else ""
        raise HeadNotFoundError(
            f"{kind} returns {f'a dict of {fields}' if fields else 'no tensor'}, and only a tensor, a field 'logits' "
            "or the first entry of a tuple is re-centered: wrap the model in one that returns its logits, or re-center "
            "its linear layer (omit at)"
        )
    if seen.returned and not seen.direct:
        name = names[seen.returned[0]]
        raise HeadNotFoundError(
            f"the output of the layer {name!r} is not the first that {kind} returns, and of a tuple the first "
            f"is re-centered: if that layer returns the logits, use head={name!r} instead of at='logits'; otherwise "
            "let the model return its logits first"
        )
    if seen.logits.dim() != 2 or not seen.logits.is_floating_point():
        raise HeadNotFoundError(f"{kind} returns a tensor of {tuple(seen.logits.shape)}, {WHOLE}")
    if bool((seen.logits >= 0).all()) and bool(((exact(seen.logits).sum(-1) - 1).abs() < 1e-4).all()):
        raise UnsupportedModelError(
            f"{kind} returns probabilities, and re-centering is for logits: let it return those, or re-center its "
            "linear layer (omit at)"
        )
    for layer in seen.joined:
        if (reason := tags(model, names[layer], seen.calls[layer][-1].output, seen.logits)) is not None:
            raise reason
    layers = heads_in(model, names, seen)
    if isinstance(layers, ModelError) or isinstance(layer := next(iter(layers.values())), HeadView):
        return seen.logits.shape[1], None, None
    weight, bias = (each if isinstance(each, nn.Parameter) else None for each in (layer.weight, layer.bias))
    return seen.logits.shape[1], weight, bias


def check_outputs(model: nn.Module, classes: Iterable[int], *, per_output: bool = False) -> None:
    """Raise an error for heads whose outputs are not the scores of classes that exclude each other.

    The configuration of Hugging Face models says so, and a single output; a plain torch module does not say it. Tags
    are allowed if the rule works per output and knows where clean data lies: otherwise the mean holds how often each
    occurs, and a softmax over tags means nothing.
    """
    kind = getattr(getattr(uncompiled(model), "config", None), "problem_type", None)
    if kind == "regression" or 1 in classes:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a head for a single number or for regression, not for classes: re-centering "
            "would subtract the answer itself. A binary classifier needs two outputs"
        )
    if kind == "multi_label_classification" and not per_output:
        raise UnsupportedModelError(
            f"{type(model).__name__} is a multi-label model (config.problem_type): its tags are independent, and how "
            "often each occurs cannot be told from a shift. With clean images it can: neotta.adapt(model, 'neo', "
            "reference=neotta.reference(model, images))"
        )
