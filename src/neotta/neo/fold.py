"""NEO taken out of a model again: folded into the bias, for one stream alone, or as if it had never been there."""

from __future__ import annotations

import copy
from weakref import WeakKeyDictionary

from torch import nn

from neotta.errors import UnsupportedModelError
from neotta.neo.module_swap import ModuleSwap, give_back
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import Model, adaptation, check_module, heads, mark, need_stream, original

# What a folded layer stands in for. It is noted here and not in the layer, which is to be a plain one.
_FOLDED: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()


def fold(model: Model, *, stream: StreamId | None = None) -> Model:
    """Write the centroid into the bias, b - W c, and put a plain `nn.Linear` in the head's place.

    The model answers as before, adapts no more, and costs exactly what it cost before `adapt`. `restore` still undoes
    it, in the same process; to keep the adaptation state, `neotta.save` it first.

    Args:
        model: The adapted model.
        stream: Whose centroid is written, if the model keeps one for each stream.

    Raises:
        InputError: No stream is named, or one that is not there.
        NotAdaptedError: The model has no NEO head.
        UnsupportedModelError: NEO-BN normalises with each batch, which no fixed weights can do.
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
    """The plain layers that `fold` puts in, by the layers they stand in for; the model stays as it is."""
    need_stream(model, stream, "neotta.fold(model, stream='gate')")
    norms = [module for module in model.modules() if isinstance(module, AdaptiveNorm)]
    if any(norm.statistics == "batch" for norm in norms):
        raise UnsupportedModelError(
            "neo-bn with the statistics of the current batch cannot be folded: adapt with statistics='ema'"
        )
    pairs: dict[nn.Module, nn.Module] = {neo: neo.folded(stream) for neo in heads(model).values()}
    pairs.update({norm: _folded_norm(norm) for norm in norms})
    return pairs


def _folded_norm(norm: AdaptiveNorm) -> nn.Module:
    """A layer of the original kind whose stored statistics are the moving ones."""
    plain = copy.copy(_stands_for(norm)) or norm
    plain._parameters = norm._parameters.copy()
    plain._buffers = {
        name: norm._buffers.get(f"ema_{name}", buffer) for name, buffer in norm._buffers.items() if "ema_" not in name
    }
    return plain


def restore(model: Model) -> Model:
    """Take everything out again: the model is, bit for bit, as if `adapt` had never been called.

    Raises:
        NotAdaptedError: The model is neither adapted nor folded (copies of a folded model cannot be restored).
    """
    check_module(model)
    pairs: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        first = module
        while (older := _stands_for(first)) is not None:
            if first in _FOLDED:
                _follow(older, first)
            else:
                give_back(older, first)
            first = older
        if first is not module:
            pairs[module] = first
    if not pairs:
        heads(model)
    ModuleSwap(model, pairs).do()
    return model


def _follow(old: nn.Module, new: nn.Module) -> None:
    """Move a module to where its folded stand-in is now, in device and dtype; its values stay its own."""
    like = next(new.parameters())
    old.to(device=like.device, dtype=like.dtype)
    old.training = new.training


def alone(model: nn.Module, stream: StreamId) -> dict[nn.Module, nn.Module]:
    """Ordinary heads with the centroid of one stream, by the heads they can stand in for; the model stays as it is.

    Raises:
        InputError: The model keeps no streams apart, or there is none of this name.
    """
    need_stream(model, stream, "")
    asked = adaptation(model)._replace(streams=None)
    pairs: dict[nn.Module, nn.Module] = {neo: neo.alone(stream) for neo in heads(model).values()}
    for neo in pairs.values():
        mark(neo, asked)
    return pairs


def _stands_for(module: nn.Module) -> nn.Module | None:
    """What a module stands in for, or None."""
    return _FOLDED.get(module) or original(module)
