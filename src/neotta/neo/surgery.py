"""Insert NEO heads into a model, and find them again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import nn

from neotta.errors import ModelError, NotAdaptedError, UnsupportedModelError
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import Unregistered
from neotta.neo.state import Rule
from neotta.neo.stream_ids import StreamId

if TYPE_CHECKING:
    from neotta.neo.reference_file import Reference

Model = TypeVar("Model", bound=nn.Module)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


# Held to exchange modules of any model, or while they must stay the same. Take it before the lock of streams, never
# after it.
_SWAPPING = threading.RLock()


def one_at_a_time(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let functions that exchange modules, or need them to stay, run one after the other in a process."""

    @functools.wraps(function)
    def locked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with _SWAPPING:
            return function(*args, **kwargs)

    return locked


class StreamSettings(NamedTuple):
    """Settings for one state per stream."""

    capacity: int | None  # the maximum number in memory
    folder: str | None  # the folder of the others


class Adaptation(NamedTuple):
    """Arguments of `adapt`, stored as `_adaptation` in every module that it inserts, beside the `_original` one."""

    method: str
    rule: Rule
    streams: StreamSettings | None = None
    reference: Reference | None = None
    output: bool = False
    """Whether the output of the model is re-centered, and not its head."""

    def __str__(self) -> str:
        where = " at the logits" if self.output else ""
        streams = "" if self.streams is None else "; one state per stream"
        reference = "" if self.reference is None else f"; reference {self.reference.digest[:8]}"
        return f"{self.method}{where} ({self.rule}{streams}{reference})"


def stand_ins(model: nn.Module) -> list[nn.Module]:
    """The modules that `adapt` inserted into a model."""
    return [module for module in model.modules() if "_adaptation" in module.__dict__]


def original(module: nn.Module) -> nn.Module | None:
    """The module that an inserted module replaced, or None."""
    holder: Unregistered[nn.Module] | None = module.__dict__.get("_original")
    return None if holder is None else holder.module


def adaptation(model: nn.Module) -> Adaptation:
    """The arguments that a model was adapted with."""
    settings: Adaptation = next(iter(heads(model).values())).__dict__["_adaptation"]
    return settings


def check_module(model: Any) -> None:
    """Raise an error if this is not a module, with a hint for what `load_model` returns, or if it is TorchScript."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedModelError(
            "a TorchScript module cannot be changed: adapt the model before torch.jit.script or torch.jit.trace and "
            "neotta.fold it, or re-center its logits with neotta.deploy.logits"
        )
    if not isinstance(model, nn.Module):
        inner = isinstance(getattr(model, "model", None), nn.Module)
        raise ModelError(
            f"expected a torch.nn.Module, got {type(model).__name__}{': pass its .model' if inner else ''}"
        )


def heads(model: Any) -> dict[str, NEOHead]:
    """Return the NEO heads of an adapted model by name (two for a distilled model, otherwise one).

    Args:
        model: An adapted model, or an adapter of the NEO family, also inside a stack.

    Raises:
        NotAdaptedError: The model is not adapted, or the adapter has no NEO head.
    """
    if not isinstance(model, nn.Module) and isinstance(own := getattr(model, "heads", None), Mapping):  # an adapter
        if not own:
            raise NotAdaptedError(f"{model!r} has no NEO head: only the methods of the NEO family have one")
        return dict(own)
    check_module(model)
    neo_heads = {name: module for name, module in model.named_modules() if isinstance(module, NEOHead)}
    if not neo_heads:
        raise NotAdaptedError(f"this {type(model).__name__} is not adapted: call neotta.adapt(model) first")
    return neo_heads


def head(model: Any) -> NEOHead:
    """Return the NEO head of an adapted model, or of an adapter.

    Raises:
        NotAdaptedError: The model is not adapted.
        ModelError: It has several heads: see `heads`.
    """
    neo_heads = heads(model)
    if len(neo_heads) > 1:
        raise ModelError(f"the model has {len(neo_heads)} heads ({', '.join(neo_heads)}): use neotta.heads(model)")
    return next(iter(neo_heads.values()))


def reset(model: nn.Module, *, stream: StreamId | None = None) -> None:
    """Reset the adaptation state of a model, or of one stream.

    Raises:
        InputError: A stream is given, but the model has no streams.
    """
    for neo in heads(model).values():
        neo.reset(stream)


def check_stream(model: nn.Module, stream: StreamId | None) -> None:
    """Check that a stream is named if, and only if, the model has streams."""
    for neo in heads(model).values():
        neo.streams.check_stream(stream)
