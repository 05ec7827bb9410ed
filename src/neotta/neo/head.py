"""NEO as a layer: a linear head that first subtracts the running mean of its input.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F

from neotta.errors import InputError, UnsupportedModelError
from neotta.neo._transforms import CANNOT_ADAPT, refuse_transforms
from neotta.neo.centroid import Centroid
from neotta.neo.harm_watch import HarmWatch
from neotta.neo.memory import Memory
from neotta.neo.module_swap import Unregistered
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.per_call import register, settings
from neotta.neo.rules import MeanRule, Shrinkage, Weighting
from neotta.neo.shift_memory import one_stream
from neotta.neo.stream_ids import StreamId
from neotta.neo.training_mode import warn_of_training
from neotta.neo.variants import rule_of
from neotta.options import Options

if TYPE_CHECKING:
    from neotta.neo.reference_file import HeadReference
    from neotta.neo.stream_memory import (
        StreamMemory,  # and with it the table and the store, which most heads never need
    )

Head = TypeVar("Head", bound="NEOHead")
Plain = TypeVar("Plain", nn.Linear, nn.Conv2d)


class NEOHead(nn.Linear):
    """A drop-in `nn.Linear` that re-centers its input: W (h - c) + b, c the running mean of h.

    While `adapting` is True, each call first adds its batch to the memory and then uses the new centroid. `weight` and
    `bias` keep their names, so checkpoints of the plain layer load with `strict=True`. The memory is in buffers that
    move with the module but are not in its `state_dict` (use `neotta.save`).

    The memory is a `Centroid`, or a `StreamMemory` with one centroid per stream; c is then that of the sample's stream.
    All leading dimensions are samples: for (B, T, d) every token counts, which is NEO on the mean of the tokens.

    Args:
        in_features: Length d of an embedding.
        out_features: Number of classes C.
        bias: Whether there is a bias.
        weighting: `"sample"` or `"batch"`, see `Rule`.
        alpha: Weight of a new batch in a moving average (NEO-Continual).
        debias: Correct the bias of the moving average towards its zero start.
        shrinkage: `None` or `"james-stein"`.
        uniform_bias: Use 1/C instead of the bias (NEO-MSE, for heads trained with squared error).
    """

    adapting: bool
    memory: Memory
    reference: HeadReference | None

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
        reference: HeadReference | None = None,
        **rule: Any,
    ) -> Head:
        """Create a head that shares the parameters, hooks and mode of an existing layer.

        Args:
            linear: The layer.
            memory: Where the moments are kept; by default a new `Centroid`.
            uniform_bias: See the class.
            reference: Where clean data lies, if it was measured: re-center towards it instead of the origin.
            **rule: Options of the rule, if no memory is given: see the class.
        """
        head = cls.__new__(cls)
        nn.Module.__init__(head)
        head.in_features = linear.in_features
        head.out_features = linear.out_features
        head.weight = linear.weight
        head.register_parameter("bias", linear.bias)
        head.training = linear.training
        share_hooks(linear, head)
        if memory is None:
            memory = Centroid(linear.in_features, MeanRule.of(rule), device=linear.weight.device)
        head._install(memory, uniform_bias, reference)
        return head

    @classmethod
    def variant(
        cls: type[Head],
        linear: nn.Linear,
        method: str,
        options: Options,
        memory: Memory | None = None,
        reference: HeadReference | None = None,
    ) -> Head:
        """Create the head of a variant of NEO."""
        if memory is None:
            rule = rule_of(options, None if reference is None else reference.classes)
            memory = one_stream(linear.in_features, linear.out_features, rule, linear.weight.device)
        return cls.from_linear(linear, memory=memory, uniform_bias=method == "neo-mse", reference=reference)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        register(self)

    def alone(self, stream: StreamId) -> NEOHead:
        """Return a head whose only centroid is a copy of one stream's.

        Raises:
            InputError: The head has no streams, or the stream does not exist.
        """
        memory = self.streams.centroid(stream)
        return NEOHead.from_linear(self, memory=memory, uniform_bias=self.uniform_bias, reference=self.reference)

    def _install(self, memory: Memory, uniform_bias: bool, reference: HeadReference | None = None) -> None:
        self.memory = memory
        self.reference = reference
        origin = None
        if reference is not None:
            mean = reference.origin if memory.rule.space == "logits" else reference.embedding
            with torch.inference_mode(False):
                origin = torch.as_tensor(mean).to(
                    self.weight.device, torch.promote_types(self.weight.dtype, torch.float32)
                )
        # The point to re-center towards: in place of the bias for rules on logits, of zero for those on embeddings.
        self.register_buffer("origin", origin, persistent=False)
        self.uniform_bias = uniform_bias
        self.watch: HarmWatch | None = HarmWatch(self, None) if memory.rule.space == "logits" else None
        self.adapting = True
        register(self)
        # BatchNorm layers that adapt together with this head (NEO-BN); not its children.
        self.followers: list[Unregistered[AdaptiveNorm]] = []

    # ---- the layer

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify.

        Args:
            input: Embeddings, (..., d).

        Returns:
            Logits, (..., C).
        """
        modules: Any = self._modules  # faster than looking up attributes of a module
        weight: Any = self._parameters["weight"]
        flat = input
        if input.dtype is not weight.dtype or input.dim() != 2 or input.size(1) != self.in_features:
            self._check(input)  # only then: a call costs more than the comparison
            flat = input.reshape(-1, self.in_features)
        if self.adapting and not is_compiling():
            refuse_transforms()
            if self.training:
                warn_of_training(self)
        samples = input.shape[0] if input.dim() > 1 else 1
        adapt, weights = settings(self, flat, samples)
        watch, ids = None if is_compiling() else self.watch, None
        if watch is not None:
            ids = watch.ids(modules["memory"], samples)
            weights = watch.held(ids, weights, samples)
        if modules["memory"].rule.space == "logits":
            logits = self.classify(flat)
            bias = self._parameters["bias"] if self._buffers["origin"] is None else self._buffers["origin"]
            shift = modules["memory"].step(logits, samples, bias=bias, adapt=adapt, weights=weights)
            answer = subtract(logits, shift)
            if watch is not None:
                watch.see(self, ids, logits, answer, adapt)
            return answer.reshape(*input.shape[:-1], self.out_features)
        origin = self._buffers["origin"]
        rows = flat if origin is None else flat.to(origin.dtype) - origin
        centre = self._from_origin(modules["memory"].step(rows, samples, adapt=adapt, weights=weights))
        centred = subtract(flat, centre)
        answer = self.classify(centred if flat is input else centred.reshape(input.shape))
        if watch is not None and watch.judges:
            watch.see(self, ids, self.classify(flat), answer.reshape(-1, self.out_features), adapt)
        return answer

    def recenter(self, embeddings: Tensor) -> Tensor:
        """Subtract the centroid, in float32 or better; (..., d) to (..., d) of the same dtype."""
        centre = self.centroid.value(torch.promote_types(embeddings.dtype, torch.float32))
        return subtract(embeddings, self._from_origin(centre))

    def _from_origin(self, centre: Tensor) -> Tensor:
        """What to subtract, (..., d), given the mean relative to the reference's, c - c₀.

        Under a shift embeddings often shrink, c = a c₀ + v with a < 1: subtracting c - c₀ would add (1 - a) c₀ to what
        is left of them, and let c₀ decide. So a is estimated by a projection, and c - a c₀ subtracted.
        """
        origin = self._buffers["origin"]
        if origin is None or self.memory.rule.space == "logits":
            return centre
        origin = origin.to(centre.dtype)
        along = (centre @ origin) / (origin @ origin).clip(min=1e-12)
        return centre + (-along).clip(min=0.0, max=1.0)[..., None] * origin

    def centre(self, dtype: torch.dtype | None = None, *, stream: StreamId | None = None) -> Tensor:
        """Return a copy of the vector that is subtracted, (d,).

        Raises:
            InputError: No stream is given for a head with streams, or it does not exist.
        """
        centre = self._from_origin(self.memory.centroid(stream).value())
        return centre if dtype is None else centre.to(dtype)

    def classify(self, embeddings: Tensor) -> Tensor:
        """Apply only the linear layer, (..., d) to (..., C)."""
        if not self.uniform_bias:
            return F.linear(embeddings, self.weight, self.bias)
        return F.linear(embeddings, self.weight) + 1.0 / self.out_features

    def __dir__(self) -> list[str]:
        """Only what this head has: `torch.jit.trace` looks at everything that is listed."""
        absent = {"centroid"} if not isinstance(self.memory, Centroid) else set()
        absent |= set() if self.memory.many else {"streams"}
        return [name for name in super().__dir__() if name not in absent]  # type: ignore[no-untyped-call]

    def __prepare_scriptable__(self) -> None:
        """Called by `torch.jit.script`."""
        raise UnsupportedModelError(f"TorchScript {CANNOT_ADAPT}")

    def _check(self, input: Tensor) -> None:
        if not isinstance(input, Tensor):  # a proxy
            raise UnsupportedModelError(f"torch.fx {CANNOT_ADAPT}")
        if input.dtype == self.weight.dtype and input.shape[-1:] == self.weight.shape[1:]:
            return
        if input.shape[-1:] != (self.in_features,):
            raise InputError(
                f"expected embeddings of {self.in_features} numbers, got a tensor of shape {tuple(input.shape)}"
            )
        if not input.is_floating_point():
            raise InputError(f"expected floating point embeddings, got {input.dtype}: convert them first")
        if not torch.is_autocast_enabled(input.device.type):
            wanted = self.weight.dtype
            raise InputError(f"the head is {wanted}, got embeddings of {input.dtype}: convert them first")

    # ---- the state

    @property
    def count(self) -> int:
        """Number of samples seen, in all streams."""
        return self.memory.total()

    @property
    def centroid(self) -> Centroid:
        """The centroid.

        Raises:
            InputError: The head has one per stream: see `streams`.
        """
        if isinstance(self.memory, Centroid):
            return self.memory
        if not self.memory.many:
            raise InputError("this head keeps no centroid of embeddings: head.centre() is the shift of its logits")
        raise InputError("this head has one centroid per stream: head.streams.centroid(stream) returns a copy")

    @property
    def streams(self) -> StreamMemory:
        """The centroids of the streams.

        Raises:
            InputError: The head has a single centroid: see `centroid`.
        """
        if self.memory.many:
            return cast("StreamMemory", self.memory)
        raise InputError("this model has no streams: adapt it with streams=True, or omit the stream")

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget everything, or one stream."""
        self.memory.reset(stream)
        if self.watch is not None:
            self.watch.forget(stream)
        for follower in self.followers:
            follower.module.reset()

    def freeze(self) -> None:
        """Stop adapting; the centroid stays as it is."""
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
        plain = nn.Linear(self.in_features, self.out_features, device="meta", dtype=self.weight.dtype)
        return self._fold_into(plain, stream)

    def _fold_into(self, plain: Plain, stream: StreamId | None) -> Plain:
        """Give the weight and the folded bias to a plain layer."""
        centre = self.centre(stream=stream)
        bias = self.bias.double() if self.bias is not None else self.weight.new_zeros(self.out_features).double()
        if self.uniform_bias:
            bias = torch.full_like(bias, 1.0 / self.out_features)
        in_logits = self.memory.rule.space == "logits"
        bias = bias - (centre.double() if in_logits else self.weight.flatten(1).double() @ centre.double())
        plain.weight = self.weight
        plain.bias = nn.Parameter(bias.to(self.weight.dtype), requires_grad=self.weight.requires_grad)
        share_hooks(self, plain)
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """Arguments shown when the module is printed."""
        parts = [super().extra_repr()]
        if isinstance(self.memory.rule, MeanRule) and self.memory.rule.shrinkage:
            parts.append(f"shrinkage={self.memory.rule.shrinkage!r}")
        if self.uniform_bias:
            parts.append("uniform_bias=True")
        if not self.adapting:
            parts.append("frozen")
        return ", ".join(parts)


def subtract(embeddings: Tensor, centre: Tensor) -> Tensor:
    """Subtract in the precision of the centre; the result has the dtype of the embeddings."""
    if embeddings.dtype == centre.dtype:
        return embeddings - centre
    return (embeddings.to(centre.dtype) - centre).to(embeddings.dtype)


def share_hooks(old: nn.Module, new: nn.Module) -> None:
    """Let two layers share the same hooks, including those added or removed later."""
    for name, value in vars(old).items():
        if "_hook" in name:
            new.__dict__[name] = value
