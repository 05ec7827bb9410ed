"""Tiny classifiers of the main kinds, a method on one of them, and what all checks do with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.adapters._methods import AnyAdapter
from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import create, data_options, find
from neotta.errors import UnsupportedModelError
from neotta.neo.split import split

State = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A method on one kind of model.

    Attributes:
        method: A name, a stack, or `py:path/to/file.py:Class`.
        kind: What the kind of model is called.
        make_model: Makes a model with random weights.
        options: Options of the method, besides those that follow from the data.
        most_passes: Options with which the method takes the most forward passes.
    """

    method: str | Sequence[str]
    kind: str
    make_model: Callable[[], nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    most_passes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method if isinstance(self.method, str) else '+'.join(self.method)}-on-{self.kind}"

    @property
    def name(self) -> str:
        """The method's own name."""
        return find(self.method).name

    def model(self) -> nn.Module:
        """A model, the same at every call."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = self.make_model()
        with torch.no_grad():  # confident enough for methods that learn from confident samples
            split(model).head.weight.mul_(8)
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    buffer.add_(0.1)
        return model.eval()

    def adapter(self, model: nn.Module | None = None, **options: Any) -> AnyAdapter:
        """The method on a model, by default a fresh one."""
        model = self.model() if model is None else model
        dtype = next(model.parameters()).dtype
        chosen = {**self.options, **options}
        facts = DataFacts(mean=(0.5,) * 3, std=(0.5,) * 3, source=lambda count: images(count, seed=99, dtype=dtype))
        return create(self.method, model, **data_options(self.method, facts, chosen), **chosen)

    def is_supported(self) -> bool:
        """Whether the method works on this kind of model."""
        try:
            self.adapter()
        except UnsupportedModelError:
            return False
        return True


def images(rows: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random images, (rows, 3, 32, 32)."""
    return (torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 0.5).to(dtype)


def same(one: State, other: State) -> bool:
    """Whether two states are equal bit for bit; NaN equals NaN."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.allclose(one[name], other[name], rtol=0, atol=0, equal_nan=True)
        for name in one
    )


@contextlib.contextmanager
def raises(kind: type[Exception], match: str = "") -> Iterator[None]:
    """Fail if an error of this kind, whose message matches, is not raised."""
    try:
        yield
    except kind as error:
        if not re.search(match, str(error)):
            raise AssertionError(f"{kind.__name__} says {str(error)!r}, expected {match!r}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


# ---- models for images of (B, 3, 32, 32) and seven classes; torch is all they need

CLASSES = 7


def batch_norm() -> nn.Module:
    """A convolutional network with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, 2), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


class GroupNormNetwork(nn.Module):
    """A network with GroupNorm whose head has an unusual name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.group = nn.GroupNorm(2, 8)
        self.mix = nn.Linear(8, 12)
        self.out = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 7)."""
        logits: Tensor = self.out(torch.relu(self.mix(self.group(self.stem(images)).mean(dim=(2, 3)))))
        return logits


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Attend and mix, (B, T, width) to the same."""
        batch, length, width = tokens.shape
        qkv = self.qkv(self.norm1(tokens)).view(batch, length, 3, self.heads, width // self.heads)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind())
        tokens = tokens + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.mlp(self.norm2(tokens))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A vision transformer whose head reads the class token."""

    def __init__(self, width: int = 16, depth: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 7)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), patches], dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(tokens)[:, 0]))
        return logits


MODELS: dict[str, Callable[[], nn.Module]] = {
    "vit": VisionTransformer,
    "batch-norm": batch_norm,
    "group-norm": GroupNormNetwork,
}
"""Small models of three kinds, by name: functions that build them with random weights."""
