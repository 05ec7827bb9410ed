"""Remove NEO from a model: fold it into the bias, or restore the original."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

from torch import nn

from neotta.errors import UnsupportedModelError
from neotta.neo.module_swap import ModuleSwap, give_back
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.output_head import detach
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import (
    Model,
    adaptation,
    check_module,
    check_stream,
    heads,
    one_at_a_time,
    original,
    stand_ins,
)

# The module that each folded layer replaced. Kept here because a folded layer must be a plain one.
_FOLDED: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


@one_at_a_time
def fold(model: Model, *, stream: StreamId | None = None) -> Model:
    """Fold the centroid into the bias, b - W c, and replace the head by a plain `nn.Linear`.

    The model predicts as before, stops adapting, and costs exactly what it cost before `adapt`. `restore` undoes it in
    the same process; to keep the adaptation state, call `neotta.save` first.

    Args:
        model: The adapted model.
        stream: The stream whose centroid is folded, for a model with streams.

    Raises:
        InputError: No stream is given for a model with streams, or it does not exist.
        NotAdaptedError: The model has no NEO head.
        UnsupportedModelError: NEO-BN with the statistics of the current batch cannot be folded.
    """
    pairs = folded(model, stream)
    for new, plain in pairs.items():
        before = _stands_for(new)
        if before is not None:
            give_back(before, new)
            _FOLDED[plain] = before
    ModuleSwap(model, pairs).do()
    return model


def folded(model: nn.Module, stream: StreamId | None = None) -> dict[nn.Module, nn.Module]:
    """Return the plain layers for `fold`, by the layers they replace; the model is not changed."""
    check_stream(model, stream)
    norms = [module for module in model.modules() if isinstance(module, AdaptiveNorm)]
    if any(norm.statistics == "batch" for norm in norms):
        raise UnsupportedModelError(
            "neo-bn with the statistics of the current batch cannot be folded: adapt with statistics='ema'"
        )
    pairs: dict[nn.Module, nn.Module] = {neo: neo.folded(stream) for neo in heads(model).values()}
    pairs.update({norm: _folded_norm(norm) for norm in norms})
    return pairs


def _folded_norm(norm: AdaptiveNorm) -> nn.Module:
    plain = copy.copy(_stands_for(norm)) or norm
    plain._parameters = norm._parameters.copy()
    plain._buffers = {
        name: norm._buffers.get(f"ema_{name}", buffer) for name, buffer in norm._buffers.items() if "ema_" not in name
    }
    return plain


@one_at_a_time
def restore(model: Model) -> Model:
    """Undo `adapt` and `fold`: the model is, bit for bit, the original.

    Raises:
        NotAdaptedError: The model is neither adapted nor folded (a copy of a folded model cannot be restored).
    """
    check_module(model)
    pairs: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        first = module
        while (older := _stands_for(first)) is not None:
            if first in _FOLDED:  # the older one follows it to its device and dtype, and keeps its values
                like = next(first.parameters())
                older.to(device=like.device, dtype=like.dtype)
                older.training = first.training
            else:
                give_back(older, first)
            first = older
        if first is not module:
            pairs[module] = first
    if not pairs:
        heads(model)
    ModuleSwap(model, pairs).do()
    detach(model)
    return model


def undo_adapt(model: nn.Module) -> None:
    """Undo only the last `adapt`: a model that was folded before it is folded again."""
    pairs = {new: old for new in stand_ins(model) if (old := original(new)) is not None}
    for new, old in pairs.items():
        give_back(old, new)
    ModuleSwap(model, pairs).do()
    detach(model)


def is_folded(model: nn.Module) -> bool:
    """Whether a head of this model, or what it was before `adapt`, has a centroid in its bias."""
    return any(module in _FOLDED or original(module) in _FOLDED for module in model.modules())


def alone(model: nn.Module, stream: StreamId) -> dict[nn.Module, nn.Module]:
    """Return heads with the centroid of one stream, by the heads they replace; the model is not changed."""
    settings = adaptation(model)._replace(streams=None)
    pairs: dict[nn.Module, nn.Module] = {neo: neo.holding(neo.streams.alone(stream)) for neo in heads(model).values()}
    for neo in pairs.values():
        neo.__dict__["_adaptation"] = settings
    return pairs


def _stands_for(module: nn.Module) -> nn.Module | None:
    return _FOLDED.get(module) or original(module)
