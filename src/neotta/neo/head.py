"""NEO as a layer: a linear head that first subtracts the running mean of its input.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling
from torch.nn import functional as F

from neotta._warning import warn
from neotta.errors import InputError, UnsupportedModelError
from neotta.neo.codec import owner_of
from neotta.neo.context import CALL, current_weights, weights_in_graph
from neotta.neo.mean import MeanRule
from neotta.neo.module_swap import Unregistered
from neotta.neo.norms import AdaptiveNorm, warned_of_few_classes
from neotta.neo.recenter import from_origin, recenter
from neotta.neo.stream_ids import StreamId
from neotta.neo.streams import Streams

if TYPE_CHECKING:
    from neotta.neo.reference_file import HeadReference

CANNOT_ADAPT = (
    "cannot run a head that adapts: neotta.fold(model) first, or use torch.compile, torch.export or neotta export"
)


class NEOHead(nn.Linear):
    """A drop-in `nn.Linear` that asks its streams what to subtract: W (h - c) + b, c the running mean of h.

    While `adapting` is True, each call first learns from its batch. `weight` and `bias` are those of the layer it
    replaces and keep their names, so checkpoints load with `strict=True`. States are in a buffer that moves with the
    module but is not in its `state_dict` (use `neotta.save`).

    ```python
    head = neotta.NEOHead(torch.nn.Linear(8, 3))
    logits = head(torch.randn(4, 8))
    ```

    Args:
        layer: The layer it replaces, whose parameters, hooks and mode it shares.
        streams: The states; by default those of NEO for one stream.
        uniform_bias: Use 1/C instead of the bias (NEO-MSE, for heads trained with squared error).
        reference: Where clean data lies, if it was measured: re-center towards it instead of the origin.
    """

    adapting: bool
    streams: Streams
    reference: HeadReference | None

    def __init__(
        self,
        layer: nn.Linear | nn.Conv2d,
        streams: Streams | None = None,
        *,
        uniform_bias: bool = False,
        reference: HeadReference | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = layer.weight.shape[:2]  # also of a 1x1 convolution
        self.training = layer.training
        self.weight = layer.weight
        self.register_parameter("bias", layer.bias)  # type: ignore[arg-type]
        share_hooks(layer, self)
        self._install(streams or Streams(MeanRule(), self.in_features, device=layer.weight.device), reference)
        self.uniform_bias = uniform_bias

    def _install(self, streams: Streams, reference: HeadReference | None) -> None:
        self.streams, self.reference, self.adapting, self._warned = streams, reference, True, False
        self.last: str | None = None  # a hash of the weights that an output comes from, where it has no linear head
        origin = None
        if reference is not None:
            streams.rule = streams.rule.knowing(reference)
            mean = reference.origin if streams.rule.space == "logits" else reference.embedding
            with torch.inference_mode(False):
                origin = torch.as_tensor(mean).to(streams.table.device, streams.table.dtype)
        # The point to re-center towards: in place of the bias for rules on logits, of zero for those on embeddings.
        self.register_buffer("origin", origin, persistent=False)
        # BatchNorm layers that adapt together with this head (NEO-BN); not its children.
        self.followers: list[Unregistered[AdaptiveNorm]] = []
        self._warns_in_training = False  # whether its model has layers that behave differently then

    def holding(self, streams: Streams) -> NEOHead:
        """Return the same head with other streams."""
        return type(self)(self, streams, uniform_bias=self.uniform_bias, reference=self.reference)

    # ---- the layer

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify, (B, d) to (B, C)."""
        self._check_mode()
        self._check(input)
        if self.streams.rule.space == "logits":
            return self.recentered(self.classify(input), self.bias)
        logits = self.classify(self.recentered(input))
        self._check_classes(logits)
        return logits

    def recentered(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        """Re-center embeddings, or logits with this bias, as the rule wants them."""
        if is_compiling():
            adapt, weights = self.adapting, weights_in_graph(rows, self)
        else:
            call = CALL.get()
            adapt = self.adapting and id(self) not in call.paused
            weights = None if call.weights is None else current_weights(len(rows))
            if weights is not None and self.followers:
                raise InputError("neo-bn normalises whole batches, so its rows cannot have weights: leave bad ones out")
        return recenter(self.streams, rows, bias, self._buffers["origin"], adapt=adapt, weights=weights)

    def _check_classes(self, logits: Tensor) -> None:
        if self.followers and self.adapting and not is_compiling() and not self._warned:
            self._warned = warned_of_few_classes(logits)

    def _check_mode(self) -> None:
        """Raise an error where this head cannot adapt, and warn of training mode, the first time."""
        if not self.adapting or is_compiling():
            return
        if peek_interpreter_stack() is not None:  # each call would see one sample, or a tensor without values
            raise UnsupportedModelError(
                "torch.vmap and torch.func cannot run a head that adapts: call the model on whole batches, or "
                "neotta.fold(model) first"
            )
        if torch._C._is_tracing():
            raise UnsupportedModelError(f"torch.jit.trace {CANNOT_ADAPT}")
        if self.training and self._warns_in_training:
            self._warns_in_training = False
            warn(
                "the model adapts in training mode, in which dropout and batch normalisation change its embeddings: "
                "call model.eval() first"
            )

    # ---- what its states belong to

    @property
    def space(self) -> Literal["embeddings", "logits"]:
        """What its states were learnt from."""
        return self.streams.rule.space

    def linear(self) -> tuple[Tensor | None, Tensor | None]:
        """The weight, (C, d), and the bias, (C,), that its answers are made with, as far as they are known."""
        return self.weight.flatten(1), self.bias

    def owner(self) -> dict[str, str]:
        """Hashes of the weight and the bias; see `codec`."""
        weight, bias = (None if each is None else each.detach().float().cpu().numpy() for each in self.linear())
        return owner_of(weight, bias, self.streams.size if self.space == "logits" else self.out_features, self.last)

    def offset(self, stream: StreamId | None = None) -> Tensor:
        """Return a copy of what is subtracted of embeddings, (d,), or of logits, (C,).

        Raises:
            InputError: No stream is named for a head with streams, or it does not exist.
        """
        offset, origin = self.streams.rule.offset(self.streams.state(stream))[0], self._buffers["origin"]
        if origin is None or self.streams.rule.space == "logits":
            return offset.clone()
        return from_origin(offset, origin)

    def classify(self, embeddings: Tensor) -> Tensor:
        """Apply only the linear layer, (..., d) to (..., C)."""
        weight = self.weight if self.weight.dim() == 2 else self.weight.flatten(1)  # that of a 1x1 convolution
        if not self.uniform_bias:
            return F.linear(embeddings, weight, self.bias)
        return F.linear(embeddings, weight) + 1.0 / self.out_features

    def __prepare_scriptable__(self) -> None:
        """Called by `torch.jit.script`."""
        raise UnsupportedModelError(f"TorchScript {CANNOT_ADAPT}")

    def _check(self, input: Tensor) -> None:
        if not isinstance(input, Tensor):  # a proxy
            raise UnsupportedModelError(f"torch.fx {CANNOT_ADAPT}")
        if input.shape[1:] != (self.in_features,):
            raise InputError(
                f"expected embeddings of shape (batch, {self.in_features}), got {tuple(input.shape)}: if the head runs "
                "on tokens, neotta.adapt(model, at='logits') re-centers the answers for whole samples"
            )
        if input.dtype == self.weight.dtype:
            return
        if not input.is_floating_point():
            raise InputError(f"expected floating point embeddings, got {input.dtype}: convert them first")
        if not torch.is_autocast_enabled(input.device.type):
            wanted = self.weight.dtype
            raise InputError(f"the head is {wanted}, got embeddings of {input.dtype}: convert them first")

    # ---- the state

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams."""
        return self.streams.total()

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget everything, or one stream."""
        self.streams.reset(stream)
        for follower in self.followers:
            follower.module.reset()

    def freeze(self) -> None:
        """Stop adapting; the state stays as it is."""
        self._adapt(False)

    def unfreeze(self) -> None:
        """Resume adapting."""
        self._adapt(True)

    def _adapt(self, on: bool) -> None:
        self.adapting = on
        for follower in self.followers:
            follower.module.adapting = on

    @torch.no_grad()
    @torch.inference_mode(False)
    def folded(self, stream: StreamId | None = None) -> nn.Linear:
        """Return a plain layer with the bias b - W c: it predicts as this head does now (for one stream)."""
        offset = self.offset(stream)
        bias = offset.new_zeros(self.out_features) if self.bias is None else self.bias.to(offset.dtype)
        if self.uniform_bias:
            bias = torch.full_like(bias, 1.0 / self.out_features)
        in_logits = self.streams.rule.space == "logits"
        bias = bias - (offset if in_logits else self.weight.flatten(1).to(offset.dtype) @ offset)
        plain = self._plain()
        plain.weight = self.weight
        plain.bias = nn.Parameter(bias.to(self.weight.dtype), requires_grad=self.weight.requires_grad)
        share_hooks(self, plain)
        return plain.train(self.training)

    def _plain(self) -> nn.Linear:
        return nn.Linear(self.in_features, self.out_features, device="meta", dtype=self.weight.dtype)

    def extra_repr(self) -> str:
        """Arguments shown when the module is printed."""
        parts = [super().extra_repr()]
        if self.uniform_bias:
            parts.append("uniform_bias=True")
        if not self.adapting:
            parts.append("frozen")
        return ", ".join(parts)


def share_hooks(old: nn.Module, new: nn.Module) -> None:
    """Let two layers share the same hooks, including those added or removed later."""
    for name, value in vars(old).items():
        if "_hook" in name:
            new.__dict__[name] = value
