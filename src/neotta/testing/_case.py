"""A method on one kind of model, and what all checks do with it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

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
        given = {**self.options, **options}
        facts = DataFacts(mean=(0.5,) * 3, std=(0.5,) * 3, source=lambda count: images(count, seed=99, dtype=dtype))
        return create(self.method, model, **data_options(self.method, facts, given), **given)

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
