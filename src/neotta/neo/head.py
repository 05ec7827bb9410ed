"""NEO as a layer: a linear head that subtracts the running mean of its input first.

Paper: "NEO: No-Optimization Test-Time Adaptation through Latent Re-Centering" (ICLR 2026).
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.errors import InputError, OptionError
from neotta.neo.centroid import Centroid, Weighting
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.swap import Keep
from neotta.options import Options

Head = TypeVar("Head", bound="NEOHead")


class NEOOptions(Options):
    """Options of NEO and NEO-MSE."""

    weighting: Weighting = Field(
        "sample", description='"sample" counts every sample equally, "batch" every batch (the paper\'s pseudo-code).'
    )
    shrinkage: Literal["james-stein"] | None = Field(
        None, description='"james-stein" scales the mean down while few samples have been seen.'
    )


class NEOContinualOptions(Options):
    """Options of NEO-Continual."""

    alpha: float = Field(0.1, ge=0, le=1, description="Weight of a new batch in the moving average.")
    debias: bool = Field(False, description="Correct the bias of the moving average towards its zero start.")


class NEOBNOptions(NEOOptions):
    """Options of NEO-BN."""

    statistics: Literal["batch", "ema"] = Field(
        "batch",
        description='"batch" normalises with the current batch, "ema" with a moving average that starts at the stored '
        "statistics.",
    )
    momentum: float = Field(0.1, ge=0, le=1, description="Weight of a new batch in that moving average.")


VARIANTS: dict[str, type[Options]] = {
    "neo": NEOOptions,
    "neo-continual": NEOContinualOptions,
    "neo-mse": NEOOptions,
    "neo-bn": NEOBNOptions,
}
"""The variants that live in the head (and, for NEO-BN, in the batch-norm layers), with their options."""


class NEOHead(nn.Linear):
    """A drop-in `nn.Linear` that re-centers its input: W (h - c) + b, c the running mean of h.

    While `adapting` is on, each call first takes its batch into the centroid and then answers with the new
    centroid. `weight` and `bias` keep their names, so checkpoints of the plain layer load strictly; the centroid's
    state is in buffers that follow the module but stay out of its `state_dict` (save it with `neotta.save`).

    Any leading dimensions are samples: for (B, T, d) every token counts, which is NEO on the mean of the tokens.

    Args:
        in_features: The length d of an embedding.
        out_features: The number of classes C.
        bias: Whether there is a bias.
        weighting: `"sample"` or `"batch"`, see `Centroid`.
        alpha: Use a moving average instead (NEO-Continual).
        debias: Divide its zero start out.
        shrinkage: `None` or `"james-stein"`.
        uniform_bias: Answer with 1/C in the place of the bias (NEO-MSE, for heads trained with squared error).
    """

    adapting: bool
    centroid: Centroid

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        shrinkage: Literal["james-stein"] | None = None,
        uniform_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._install(weighting, alpha, debias, shrinkage, uniform_bias)

    @classmethod
    def from_linear(cls: type[Head], linear: nn.Linear, **options: Any) -> Head:
        """Make a head that shares the parameters, hooks and mode of an existing layer."""
        unknown = [name for name in options if name not in _DEFAULTS]
        if unknown:
            raise OptionError(f"a NEO head has no option {unknown[0]!r}: it takes {', '.join(_DEFAULTS)}")
        head = cls.__new__(cls)
        nn.Module.__init__(head)
        head.in_features = linear.in_features
        head.out_features = linear.out_features
        head.weight = linear.weight
        head.register_parameter("bias", linear.bias)
        head.training = linear.training
        _share_hooks(linear, head)
        head._install(**{**_DEFAULTS, **options})
        return head

    @classmethod
    def variant(cls: type[Head], linear: nn.Linear, method: str, options: Options) -> Head:
        """Make the head that a method of the NEO family needs."""
        names = ("weighting", "alpha", "debias", "shrinkage")
        given = {name: value for name, value in options.given().items() if name in names}
        return cls.from_linear(linear, **given, uniform_bias=method == "neo-mse")

    def _install(
        self,
        weighting: Weighting,
        alpha: float | None,
        debias: bool,
        shrinkage: Literal["james-stein"] | None,
        uniform_bias: bool,
    ) -> None:
        if shrinkage not in (None, "james-stein"):
            raise OptionError(f"shrinkage is {shrinkage!r}: it is None or 'james-stein'")
        if shrinkage and (alpha is not None or weighting != "sample"):
            raise OptionError("shrinkage goes with weighting='sample' and no alpha: it needs a count of samples")
        self.shrinkage = shrinkage
        self.uniform_bias = uniform_bias
        self.adapting = True
        # Batch-norm layers that adapt together with this head (NEO-BN); not its children.
        self.followers: list[Keep[AdaptiveNorm]] = []
        self._remember({"weighting": weighting, "alpha": alpha, "debias": debias, "variance": shrinkage is not None})

    def _remember(self, rule: dict[str, Any]) -> None:
        """Make what keeps the mean."""
        self.centroid = Centroid(self.in_features, **rule, device=self.weight.device)

    # ---- the layer

    def forward(self, input: Tensor) -> Tensor:
        """Re-center and classify.

        Args:
            input: Embeddings, (..., d).

        Returns:
            Logits, (..., C).
        """
        weight: Any = self._parameters["weight"]  # as attributes of a module they would be searched for
        flat = input
        if input.dtype is not weight.dtype or input.dim() != 2 or input.size(1) != self.in_features:
            self._check(input)  # not always: a call costs more than the comparison
            flat = input.reshape(-1, self.in_features)
        if not self.adapting:
            return self.classify(self.recenter(input))
        centroid: Any = self._modules["centroid"]
        centre = centroid.step(flat, self.shrinkage is not None)
        if self.uniform_bias or centre.dtype is not input.dtype:
            return self.classify(_subtract(input, centre))
        return F.linear(input - centre, weight, self._parameters["bias"])

    def recenter(self, embeddings: Tensor) -> Tensor:
        """Subtract the centroid, in float32 or better; (..., d) to (..., d) of the same dtype."""
        return _subtract(embeddings, self.centre(_wide(embeddings.dtype)))

    def centre(self, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the vector that is subtracted, (d,)."""
        return self.centroid.shrunk(dtype) if self.shrinkage else self.centroid.value(dtype)

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
        """How many samples stand behind the centroid."""
        return int(self.centroid.count)

    def reset(self) -> None:
        """Forget the centroid."""
        self.centroid.reset()
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
    def folded(self) -> nn.Linear:
        """A plain layer that answers as this one does now: the bias becomes b - W c."""
        return self._folded(self.centre())

    @torch.no_grad()
    @torch.inference_mode(False)
    def _folded(self, centre: Tensor) -> nn.Linear:
        bias = self.bias.double() if self.bias is not None else self.weight.new_zeros(self.out_features).double()
        if self.uniform_bias:
            bias = torch.full_like(bias, 1.0 / self.out_features)
        bias = bias - self.weight.double() @ centre.double()
        plain = nn.Linear(self.in_features, self.out_features, device="meta", dtype=self.weight.dtype)
        plain.weight = self.weight
        plain.bias = nn.Parameter(bias.to(self.weight.dtype), requires_grad=self.weight.requires_grad)
        _share_hooks(self, plain)
        return plain.train(self.training)

    def extra_repr(self) -> str:
        """What stands between the brackets when the module is printed."""
        parts = [super().extra_repr()]
        if self.shrinkage:
            parts.append(f"shrinkage={self.shrinkage!r}")
        if self.uniform_bias:
            parts.append("uniform_bias=True")
        if not self.adapting:
            parts.append("frozen")
        return ", ".join(parts)


_DEFAULTS: dict[str, Any] = {
    "weighting": "sample",
    "alpha": None,
    "debias": False,
    "shrinkage": None,
    "uniform_bias": False,
}


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 or better."""
    return dtype if dtype.itemsize >= 4 else torch.float32


def _subtract(embeddings: Tensor, centre: Tensor) -> Tensor:
    if embeddings.dtype == centre.dtype:
        return embeddings - centre
    return (embeddings.to(centre.dtype) - centre).to(embeddings.dtype)


def _share_hooks(old: nn.Module, new: nn.Module) -> None:
    """Give a layer the very hooks of the one it stands in for: what is added or removed later counts for both."""
    for name, value in vars(old).items():
        if "_hook" in name:
            new.__dict__[name] = value
