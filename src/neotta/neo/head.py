"""NEO as a layer: a linear head that subtracts the running mean of its input first.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.errors import InputError
from neotta.neo.centroid import Centroid
from neotta.neo.memory import Memory
from neotta.neo.module_swap import Unregistered
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.rules import MeanRule, Shrinkage, Weighting
from neotta.neo.shift_memory import one_stream
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_memory import StreamMemory
from neotta.neo.variants import rule_of
from neotta.options import Options

Head = TypeVar("Head", bound="NEOHead")


class NEOHead(nn.Linear):
    """A drop-in `nn.Linear` that re-centers its input: W (h - c) + b, c the running mean of h.

    While `adapting` is on, each call first takes its batch into the memory and then answers with the new centroid.
    `weight` and `bias` keep their names, so checkpoints of the plain layer load strictly; what is remembered is in
    buffers that follow the module but stay out of its `state_dict` (save it with `neotta.save`).

    The memory is a `Centroid`, or a `StreamMemory` with one centroid for each stream: then c is that of the stream
    that h comes from. Any leading dimensions are samples: for (B, T, d) every token counts, which is NEO on the mean of
    the tokens.

    Args:
        in_features: The length d of an embedding.
        out_features: The number of classes C.
        bias: Whether there is a bias.
        weighting: `"sample"` or `"batch"`, see `Rule`.
        alpha: Use a moving average instead (NEO-Continual).
        debias: Correct its bias towards the zero start.
        shrinkage: `None` or `"james-stein"`.
        uniform_bias: Answer with 1/C in the place of the bias (NEO-MSE, for heads trained with squared error).
    """

    adapting: bool
    memory: Memory

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        shrinkage: Shrinkage | None = None,
        uniform_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        rule = MeanRule(weighting, alpha, debias, shrinkage)
        self._install(Centroid(in_features, rule, device=self.weight.device), uniform_bias)

    @classmethod
    def from_linear(
        cls: type[Head],
        linear: nn.Linear,
        *,
        memory: Memory | None = None,
        uniform_bias: bool = False,
        **rule: Any,
    ) -> Head:
        """Make a head that shares the parameters, hooks and mode of an existing layer.

        Args:
            linear: The layer.
            memory: Where moments live; by default a new `Centroid`.
            uniform_bias: See the class.
            **rule: Options of the centroid's rule by name, if no memory is given: see the class.
        """
        head = cls.__new__(cls)
        nn.Module.__init__(head)
        head.in_features = linear.in_features
        head.out_features = linear.out_features
        head.weight = linear.weight
        head.register_parameter("bias", linear.bias)
        head.training = linear.training
        _share_hooks(linear, head)
        if memory is None:
            memory = Centroid(linear.in_features, MeanRule.of(rule), device=linear.weight.device)
        head._install(memory, uniform_bias)
        return head

    @classmethod
    def variant(
        cls: type[Head], linear: nn.Linear, method: str, options: Options, memory: Memory | None = None
    ) -> Head:
        """Make the head that a method of the NEO family needs."""
        if memory is None:
            memory = one_stream(linear.in_features, linear.out_features, rule_of(options), linear.weight.device)
        return cls.from_linear(linear, memory=memory, uniform_bias=method == "neo-mse")

    def alone(self, stream: StreamId) -> NEOHead:
        """A head with a copy of one stream's centroid as its only one.

        Raises:
            InputError: The head does not keep streams apart, or there is none of this name.
        """
        memory = self.streams.centroid(stream)
        return NEOHead.from_linear(self, memory=memory, uniform_bias=self.uniform_bias)

    def _install(self, memory: Memory, uniform_bias: bool) -> None:
        self.memory = memory
        self.uniform_bias = uniform_bias
        self.adapting = True
        # Batch-norm layers that adapt together with this head (NEO-BN); not its children.
        self.followers: list[Unregistered[AdaptiveNorm]] = []

    # ---- the layer

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify.

        Args:
            input: Embeddings, (..., d).

        Returns:
            Logits, (..., C).
        """
        modules: Any = self._modules  # as attributes of a module they would be searched for
        weight: Any = self._parameters["weight"]
        flat = input
        if input.dtype is not weight.dtype or input.dim() != 2 or input.size(1) != self.in_features:
            self._check(input)  # not always: a call costs more than the comparison
            flat = input.reshape(-1, self.in_features)
        samples = input.shape[0] if input.dim() > 1 else 1
        if modules["memory"].rule.space == "logits":
            logits = self.classify(flat)
            bias = self._parameters["bias"]
            subtract = modules["memory"].step(logits, samples, bias=bias, adapt=self.adapting)
            return _subtract(logits, subtract).reshape(*input.shape[:-1], self.out_features)
        centred = _subtract(flat, modules["memory"].step(flat, samples, adapt=self.adapting))
        return self.classify(centred if flat is input else centred.reshape(input.shape))

    def recenter(self, embeddings: Tensor) -> Tensor:
        """Subtract the centroid, in float32 or better; (..., d) to (..., d) of the same dtype."""
        return _subtract(embeddings, self.centroid.value(torch.promote_types(embeddings.dtype, torch.float32)))

    def centre(self, dtype: torch.dtype | None = None, *, stream: StreamId | None = None) -> Tensor:
        """A copy of the vector that is subtracted, (d,).

        Raises:
            InputError: There are many streams and none is named, or there is no such stream.
        """
        return self.memory.centroid(stream).value(dtype)

    def classify(self, embeddings: Tensor) -> Tensor:
        """The linear part alone, (..., d) to (..., C)."""
        if not self.uniform_bias:
            return F.linear(embeddings, self.weight, self.bias)
        return F.linear(embeddings, self.weight) + 1.0 / self.out_features

    def _check(self, input: Tensor) -> None:
        if input.dtype == self.weight.dtype and input.shape[-1:] == self.weight.shape[1:]:
            return
        if input.shape[-1:] != (self.in_features,):
            raise InputError(
                f"this head takes embeddings of {self.in_features} numbers, got a tensor of {tuple(input.shape)}"
            )
        if not input.is_floating_point():
            raise InputError(f"embeddings are floating point numbers, got {input.dtype}: convert them first")
        if not torch.is_autocast_enabled(input.device.type):
            wanted = self.weight.dtype
            raise InputError(f"this head is of {wanted}, got embeddings of {input.dtype}: convert them first")

    # ---- the state

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams together."""
        return self.memory.total()

    @property
    def centroid(self) -> Centroid:
        """The only centroid.

        Raises:
            InputError: There is one for each stream: see `streams`.
        """
        if isinstance(self.memory, Centroid):
            return self.memory
        raise InputError("this head keeps one centroid per stream: head.streams.centroid(stream) is a copy of one")

    @property
    def streams(self) -> StreamMemory:
        """The centroids of the streams.

        Raises:
            InputError: There is only one centroid: see `centroid`.
        """
        if isinstance(self.memory, StreamMemory):
            return self.memory
        raise InputError("this model does not keep streams apart: adapt it with streams=True, or name no stream")

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget everything, or what was learnt of one stream."""
        self.memory.reset(stream)
        for follower in self.followers:
            follower.module.reset()

    def freeze(self) -> None:
        """Keep the centroid as it is: answer without adapting."""
        self._adapt(False)

    def unfreeze(self) -> None:
        """Adapt again."""
        self._adapt(True)

    def _adapt(self, on: bool) -> None:
        self.adapting = on
        for follower in self.followers:
            follower.module.adapting = on

    @torch.no_grad()
    @torch.inference_mode(False)
    def folded(self, stream: StreamId | None = None) -> nn.Linear:
        """A plain layer that answers as this one does now, or does now for one stream: the bias becomes b - W c."""
        centre = self.centre(stream=stream)
        bias = self.bias.double() if self.bias is not None else self.weight.new_zeros(self.out_features).double()
        if self.uniform_bias:
            bias = torch.full_like(bias, 1.0 / self.out_features)
        in_logits = self.memory.rule.space == "logits"
        bias = bias - (centre.double() if in_logits else self.weight.double() @ centre.double())
        plain = nn.Linear(self.in_features, self.out_features, device="meta", dtype=self.weight.dtype)
        plain.weight = self.weight
        plain.bias = nn.Parameter(bias.to(self.weight.dtype), requires_grad=self.weight.requires_grad)
        _share_hooks(self, plain)
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """What stands between the brackets when the module is printed."""
        parts = [super().extra_repr()]
        if isinstance(self.memory.rule, MeanRule) and self.memory.rule.shrinkage:
            parts.append(f"shrinkage={self.memory.rule.shrinkage!r}")
        if self.uniform_bias:
            parts.append("uniform_bias=True")
        if not self.adapting:
            parts.append("frozen")
        return ", ".join(parts)


def _subtract(embeddings: Tensor, centre: Tensor) -> Tensor:
    if embeddings.dtype == centre.dtype:
        return embeddings - centre
    return (embeddings.to(centre.dtype) - centre).to(embeddings.dtype)


def _share_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give a layer the very hooks of the one it stands in for: what is added or removed later counts for both."""
    for name, value in vars(old).items():
        if "_hook" in name:
            new.__dict__[name] = value
