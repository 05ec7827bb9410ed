"""What `adapt` puts into a model, and how it is found there again."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from torch import nn

from neotta.errors import InputError, ModelError, NotAdaptedError
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap, Unregistered
from neotta.neo.stream_ids import StreamId
from neotta.options import Options

Model = TypeVar("Model", bound=nn.Module)


class Streams(NamedTuple):
    """One centroid per stream: the number of them held in memory at most, and the folder of the others."""

    capacity: int | None
    folder: str | None


class Adaptation(NamedTuple):
    """What `adapt` was asked for; every stand-in remembers it, and the module it stands in for."""

    method: str
    options: Options
    streams: Streams | None = None

    def __str__(self) -> str:
        return f"{self.method} ({self.options}{'' if self.streams is None else '; one centroid per stream'})"


def put_in(model: nn.Module, pairs: dict[nn.Module, nn.Module], asked: Adaptation) -> None:
    """Exchange modules for good; each new one remembers what it stands in for."""
    for old, new in pairs.items():
        mark(new, asked)
        new.__dict__["_original"] = Unregistered(old)
    ModuleSwap(model, pairs).do()


def mark(module: nn.Module, asked: Adaptation) -> None:
    """Let a stand-in remember what it was made for."""
    module.__dict__["_adaptation"] = asked


def stand_ins(model: nn.Module) -> list[nn.Module]:
    """The modules that `adapt` has put into a model."""
    return [module for module in model.modules() if "_adaptation" in module.__dict__]


def original(module: nn.Module) -> nn.Module | None:
    """What a module stands in for, or None."""
    kept: Unregistered[nn.Module] | None = module.__dict__.get("_original")
    return None if kept is None else kept.module


def adaptation(model: nn.Module) -> Adaptation:
    """How a model is adapted: the method and its options."""
    heads(model)
    asked: Adaptation = stand_ins(model)[0].__dict__["_adaptation"]
    return asked


def check_module(model: Any) -> None:
    """Refuse what is no module, with a hint for what `load_model` returns."""
    if not isinstance(model, nn.Module):
        inner = isinstance(getattr(model, "model", None), nn.Module)
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}{': give its .model' if inner else ''}"
        )


def heads(model: nn.Module) -> dict[str, NEOHead]:
    """The NEO heads of an adapted model by name (two for a distilled model, else one).

    Raises:
        NotAdaptedError: The model has none.
    """
    check_module(model)
    found = {name: module for name, module in model.named_modules() if isinstance(module, NEOHead)}
    if not found:
        raise NotAdaptedError(f"this {type(model).__name__} is not adapted: call neotta.adapt(model) first")
    return found


def head(model: nn.Module) -> NEOHead:
    """The NEO head of an adapted model.

    Raises:
        NotAdaptedError: The model has none.
        ModelError: It has several: see `heads`.
    """
    found = heads(model)
    if len(found) > 1:
        raise ModelError(f"the model has {len(found)} heads ({', '.join(found)}): use neotta.heads(model)")
    return next(iter(found.values()))


def reset(model: nn.Module, *, stream: StreamId | None = None) -> None:
    """Forget everything an adapted model has learnt since `adapt`, or what it has learnt of one stream.

    Raises:
        InputError: A stream is named and the model does not keep streams apart.
    """
    for neo in heads(model).values():
        neo.reset(stream)


def need_stream(model: nn.Module, stream: StreamId | None, example: str) -> None:
    """Refuse a model of many streams where one centroid is needed and no stream is named, and a name without streams.

    Args:
        model: The adapted model.
        stream: The stream, if one is named.
        example: What the caller should write.
    """
    for neo in heads(model).values():
        if stream is not None:
            _ = neo.streams
        elif neo.memory.many:
            raise InputError(f"this model keeps one centroid per stream: name one of them, as in {example}")
