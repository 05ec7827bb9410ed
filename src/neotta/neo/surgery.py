"""NEO in the place of a model's linear head: put it in, and find it there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn

from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    ModelError,
    NotAdaptedError,
    OptionError,
    UnknownMethodError,
    UnsupportedModelError,
)
from neotta.neo.find_head import find_heads
from neotta.neo.head import VARIANTS, NEOHead
from neotta.neo.norms import AdaptiveNorm, adaptive_norm, norm_layers
from neotta.neo.stream_head import StreamHead
from neotta.neo.stream_ids import StreamId, one
from neotta.neo.swap import Keep, Swap
from neotta.options import Options

Model = TypeVar("Model", bound=nn.Module)


class Streams(NamedTuple):
    """One centroid per stream: how many of them are held in memory at most, and the folder of the others."""

    capacity: int | None
    folder: str | None


class Adaptation(NamedTuple):
    """What `adapt` was asked for; every stand-in remembers it, and the module it stands in for."""

    method: str
    options: Options
    streams: Streams | None = None

    def __str__(self) -> str:
        return f"{self.method} ({self.options}{'' if self.streams is None else '; one centroid per stream'})"


def adapt(
    model: Model,
    method: str = "neo",
    *,
    head: str | Sequence[str] | None = None,
    example: Tensor | None = None,
    streams: bool = False,
    capacity: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    sync: bool = False,
    **options: Any,
) -> Model:
    """Make a classifier adapt to the images it meets: NEO takes the place of its linear head.

    The same model object comes back; from then on every call adapts and predicts. A model adapted in the same way
    already is left as it is, with its state.

    Args:
        model: A classifier of timm, Hugging Face or torchvision, or any module that ends in a linear layer.
        method: `"neo"`, `"neo-continual"`, `"neo-mse"` or `"neo-bn"`.
        head: The name of the linear layer (or several), if it cannot be found.
        example: A batch of images to run the model with, if that is what it takes to find the head.
        streams: Keep one centroid per stream; the model is then called inside `with neotta.streams(ids):`.
        capacity: How many streams are held in memory at most; the least recently used ones go to `folder`.
        folder: Where they go. Streams that are there already are taken up again.
        sync: Keep this model equal to its replicas in the other processes of torch.distributed; see `neotta.sync`.
        **options: The method's options, such as `alpha=0.1` or `shrinkage="james-stein"`.

    Raises:
        HeadNotFoundError: There is no linear head, or it is of a kind that cannot be re-centered.
        AlreadyAdaptedError: The model is adapted in another way, or at another layer.
        OptionError: An option is unknown or wrong.
    """
    check_module(model)
    if method not in VARIANTS:
        raise _not_a_variant(method)
    checked = VARIANTS[method].make(method, options)
    asked = Adaptation(method, checked, _streams(method, streams, capacity, folder))
    present = _present(model)
    if not present:
        _put_in(model, head, example, asked)
    elif head is not None and set(find_heads(model, head).values()) != set(heads(model).values()):
        raise AlreadyAdaptedError(
            f"the model is adapted at {', '.join(heads(model))} already, not at {head}: neotta.restore(model) first"
        )
    elif (now := _adaptation(present[0])) != asked:
        raise AlreadyAdaptedError(f"the model is adapted with {now} already: neotta.restore(model) first")
    if sync:
        _synchronize(model, undo=not present)
    return model


def _put_in(model: nn.Module, head: str | Sequence[str] | None, example: Tensor | None, asked: Adaptation) -> None:
    norms = _norm_pairs(model, asked.options) if asked.method == "neo-bn" else {}
    pairs: dict[nn.Module, nn.Module] = {**norms}
    for name, linear in find_heads(model, head, example).items():
        neo = _make_head(name, linear, asked)
        neo.followers = [Keep(norm) for norm in norms.values()]
        pairs[linear] = neo
    for old, new in pairs.items():
        new.__dict__["_adaptation"] = asked
        new.__dict__["_original"] = Keep(old)
    Swap(model, pairs).do()


def _synchronize(model: nn.Module, undo: bool) -> None:
    from neotta.neo.fold import restore
    from neotta.neo.sync.syncing import sync  # they build on this module

    try:
        sync(model)
    except Exception:
        if undo:
            restore(model)
        raise


def _streams(method: str, streams: bool, capacity: int | None, folder: str | os.PathLike[str] | None) -> Streams | None:
    if not streams:
        if capacity is not None or folder is not None:
            raise OptionError("capacity and folder are for many streams: give streams=True too")
        return None
    if method == "neo-bn":
        raise OptionError("neo-bn normalises a batch as a whole and cannot keep streams apart: use 'neo'")
    return Streams(capacity, None if folder is None else os.fspath(folder))


def _make_head(name: str, linear: nn.Linear, asked: Adaptation) -> NEOHead:
    if asked.streams is None:
        return NEOHead.variant(linear, asked.method, asked.options)
    capacity, folder = asked.streams
    mine = None if folder is None else Path(folder) / name
    return StreamHead.with_streams(linear, asked.method, asked.options, capacity=capacity, folder=mine)


def check_module(model: Any) -> None:
    """Refuse what is no module, with a hint for what `load_model` returns."""
    if not isinstance(model, nn.Module):
        inner = isinstance(getattr(model, "model", None), nn.Module)
        hint = ": give its .model" if inner else ", which is no torch.nn.Module"
        raise ModelError(f"a model was expected, got {type(model).__name__}{hint}")


def _not_a_variant(method: str) -> OptionError | UnknownMethodError:
    from neotta.adapters.registry import methods  # they need this module

    if isinstance(method, str) and set(method.split("+")) <= set(methods()):
        return OptionError(
            f"method {method!r} is not one that lives in the head ({', '.join(VARIANTS)}): "
            f"use neotta.create({method!r}, model)"
        )
    return UnknownMethodError(str(method), VARIANTS)


def _norm_pairs(model: nn.Module, options: Options) -> dict[nn.Module, AdaptiveNorm]:
    given = options.given()
    layers = norm_layers(model)
    if not layers:
        raise UnsupportedModelError(
            f"neo-bn needs BatchNorm layers, and {type(model).__name__} has none: use neotta.adapt(model, 'neo')"
        )
    return {layer: adaptive_norm(layer, given["statistics"], given["momentum"]) for _, layer in layers}


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
    """Forget everything an adapted model has learnt since `adapt`, or what it has learnt of one stream."""
    if stream is None:
        for neo in heads(model).values():
            neo.reset()
    else:
        for streaming in stream_heads(model).values():
            streaming.reset(one(stream))


def stream_heads(model: nn.Module) -> dict[str, StreamHead]:
    """The heads by name, of a model adapted with `streams=True`."""
    found = {name: neo for name, neo in heads(model).items() if isinstance(neo, StreamHead)}
    if not found:
        raise InputError("this model keeps no streams apart: adapt it with streams=True, or name no stream")
    return found


def need_stream(model: nn.Module, stream: StreamId | None, example: str) -> None:
    """Refuse a model of many streams where one centroid is needed and no stream is named, and a name without streams.

    Args:
        model: The adapted model.
        stream: The stream, if one is named.
        example: What the caller should write.
    """
    many = any(isinstance(neo, StreamHead) for neo in heads(model).values())
    if many and stream is None:
        raise InputError(f"this model keeps one centroid per stream: name one of them, as in {example}")
    if stream is not None:
        stream_heads(model)


def _present(model: nn.Module) -> list[nn.Module]:
    """The stand-ins that `adapt` has put into a model."""
    return [module for module in model.modules() if "_adaptation" in module.__dict__]


def _adaptation(module: nn.Module) -> Adaptation:
    adaptation: Adaptation = module.__dict__["_adaptation"]
    return adaptation


def adaptation(model: nn.Module) -> Adaptation:
    """How a model is adapted: the method and its options."""
    heads(model)
    return _adaptation(_present(model)[0])
