"""`neotta.adapt`: replace the linear head of a model with NEO."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from neotta.errors import AlreadyAdaptedError, OptionError, UnknownMethodError, UnsupportedModelError
from neotta.neo.conv_head import neo_head
from neotta.neo.find_head import find_heads
from neotta.neo.fold import undo_adapt
from neotta.neo.harm_watch import Callback, HarmWatch, OnHarm, check_action
from neotta.neo.head_views import CosineView, linear_view
from neotta.neo.memory import Memory
from neotta.neo.model_inputs import Inputs
from neotta.neo.module_swap import Unregistered
from neotta.neo.norms import AdaptiveNorm, adaptive_norms
from neotta.neo.output_check import count_classes
from neotta.neo.output_head import NAME as OUTPUT
from neotta.neo.output_head import (
    OutputHead,
    attach,
    known_bias,
    output_axes,
    output_fingerprint,
    output_reference,
)
from neotta.neo.outputs import check_outputs
from neotta.neo.reference_file import Reference, as_reference
from neotta.neo.rules import FleetStart
from neotta.neo.shift_memory import one_stream
from neotta.neo.sqlite_store import SqliteStore
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_cache import record_type
from neotta.neo.stream_memory import StreamMemory
from neotta.neo.surgery import (
    Adaptation,
    Model,
    Streams,
    adaptation,
    check_module,
    heads,
    mark,
    one_at_a_time,
    put_in,
    stand_ins,
)
from neotta.neo.sync import sync as synchronize
from neotta.neo.training_mode import watch_mode
from neotta.neo.variants import VARIANTS, NEOBNOptions, options_of, rule_of
from neotta.options import Options


@one_at_a_time
def adapt(
    model: Model,
    method: str = "neo-stream",
    *,
    head: str | Sequence[str] | None = None,
    example: Inputs | None = None,
    at: Literal["head", "logits"] | None = None,
    sample_axes: Sequence[int] | None = None,
    streams: bool = False,
    capacity: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    start: FleetStart | None = None,
    sync: bool = False,
    reference: Reference | str | os.PathLike[str] | None = None,
    on_harm: OnHarm | Callback | None = None,
    **options: Any,
) -> Model:
    """Make a classifier adapt to its input: a re-centering head replaces its linear head.

    By default this is NEO-Stream, which tells a shift of the domain from the labels of the stream: a camera that shows
    one class for long is not harmed. `"neo"` is the rule of the paper. On streams of balanced classes it gains a little
    more (see docs/results/README.md); on streams of few classes it loses accuracy.

    Returns the same model object; every call now adapts and predicts. If the model is already adapted in the same way,
    nothing changes.

    Args:
        model: A classifier of timm, Hugging Face or torchvision, or any module that ends in a linear layer.
        method: `"neo-stream"`, `"neo"`, `"neo-continual"`, `"neo-mse"` or `"neo-bn"`.
        head: Name of the linear layer (or several names), if it cannot be found.
        example: A batch that the model takes, a tensor or a dict of tensors; needed if the model does not take noise.
        at: `"logits"` re-centers the output of the model, whatever its head is. By default that is done for cosine
            classifiers, and other models are re-centered at their linear head.
        sample_axes: The axes of the output that count samples, for answers of more than two dimensions, such as (0, 1)
            for one answer per token; needs `at="logits"`. Positions outside the `attention_mask` are left out.
        streams: Keep one centroid per stream; call the model inside `with neotta.streams(ids):`.
        capacity: Maximum number of streams in memory; the least recently used ones move to `folder`.
        folder: Folder of the SQLite database for the other streams. Existing streams are resumed.
        start: Where a new stream begins: `"fleet"` (the default of `"neo-stream"`) at the shift of the other streams,
            `"plain"` without a shift.
        sync: Synchronise with the replicas in the other processes of torch.distributed; see `neotta.sync`.
        reference: Where clean data lies, as `neotta.reference(model, images)` measured it, or the file it was saved to:
            re-center towards it instead of the origin.
        on_harm: What to do once where the answers say that adapting hurts a stream: `"warn"`, `"freeze"` (it learns no
            more), `"restore"` (it goes back to its last good state, or to plain answers, and learns no more), or a
            function that is called with the stream (None without streams) and the reason. See `neotta.health`.
        **options: The method's options, for example `prior=False`, or `alpha=0.1` of `"neo-continual"`.

    Raises:
        HeadNotFoundError: There is no linear head, or it cannot be re-centered.
        UnsupportedModelError: The outputs are independent tags (multi-label), or a single number.
        AlreadyAdaptedError: The model is already adapted in another way, or at another layer.
        OptionError: An option is unknown or invalid.
        StateMismatchError: The reference belongs to another model.
    """
    check_module(model)
    if method not in VARIANTS:
        raise UnknownMethodError(
            str(method), VARIANTS, hint="other methods, as neotta.methods() lists them: neotta.create(name, model)"
        )
    checked = options_of(method, options)
    axes = output_axes(at, head, sample_axes)
    places = _streams(checked, streams, capacity, folder, start)
    check_action(on_harm)
    asked = Adaptation(method, checked, places, _reference(method, reference), axes)
    present = stand_ins(model)
    if not present:
        _put_in(model, head, example, asked)
    elif head is not None and set(find_heads(model, head).values()) != set(heads(model).values()):
        raise AlreadyAdaptedError(
            f"the model is already adapted at {', '.join(heads(model))}, not at {head}: neotta.restore(model) first"
        )
    elif (now := adaptation(model)) != (asked if at is not None else asked._replace(output=now.output)):
        raise AlreadyAdaptedError(f"the model is already adapted with {now}: neotta.restore(model) first")
    if on_harm is not None:
        for neo in heads(model).values():
            neo.watch = HarmWatch(neo, on_harm)
    if sync:
        _synchronize(model, undo=not present)
    return model


def _put_in(model: nn.Module, head: str | Sequence[str] | None, example: Inputs | None, asked: Adaptation) -> None:
    norms = _norm_pairs(model, asked.options) if asked.method == "neo-bn" else {}
    followers = [Unregistered(norm) for norm in norms.values()]
    found = {} if asked.output is not None else find_heads(model, head, example)
    if any(isinstance(layer, CosineView) for layer in found.values()):
        asked = asked._replace(output=(0,))
    pairs: dict[nn.Module, nn.Module] = {**norms}
    if asked.output is not None:
        output = _output_head(model, example, asked)
        output.followers = followers
        mark(output, asked)
    else:
        per_output = asked.reference is not None and rule_of(asked.options).space == "embeddings"
        check_outputs(model, map(linear_view, found.values()), per_output=per_output)
        if asked.reference is not None:
            asked.reference.check(found)
        for name, layer in found.items():
            known = None if asked.reference is None else asked.reference.heads[name]
            memory = _memory(name, linear_view(layer), asked)
            neo = neo_head(layer, asked.method, asked.options, memory, known)
            neo.followers = followers
            pairs[layer] = neo
    put_in(model, pairs, asked)
    if asked.output is not None:
        attach(model, output)
    watch_mode(model, heads(model).values())


def _output_head(model: nn.Module, example: Inputs | None, asked: Adaptation) -> OutputHead:
    """A head for the output of a model."""
    axes = asked.output or (0,)
    owner = output_fingerprint(model)
    known = None if asked.reference is None else output_reference(asked.reference, owner)
    like = nn.Linear(1, count_classes(model, axes, example), device=_device(model))
    like.in_features = like.out_features  # the moments of all rules are those of logits
    rule = rule_of(asked.options, None if known is None else known.classes)
    check_outputs(model, [like], per_output=known is not None and rule.space == "embeddings")
    memory = _memory(OUTPUT, like, asked, owner)
    memory = memory or one_stream(like.in_features, like.out_features, rule, like.weight.device)
    return OutputHead(like.out_features, memory, axes, known_bias(model, example), asked.method == "neo-mse", known)


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _memory(name: str, linear: nn.Linear, asked: Adaptation, weights: str | None = None) -> Memory | None:
    """Create the memory for streams, if they are used.

    Args:
        name: Name of the head.
        linear: The head.
        asked: The arguments of `adapt`.
        weights: A hash of the weights that the states belong to; by default that of the head.
    """
    if asked.streams is None:
        return None
    capacity, folder, start = asked.streams
    known = asked.reference
    rule, store = rule_of(asked.options, None if known is None else known.heads[name].classes), None
    size = linear.out_features if rule.space == "logits" else linear.in_features
    if folder is not None:
        owner = f"{weights or fingerprint(dict(linear.named_parameters()))} {asked.method} {asked.options}"
        owner += "" if known is None else f" {known.digest}"
        store = SqliteStore(Path(folder) / name, record_type(rule.fields(size)), owner)
    return StreamMemory(size, rule, capacity=capacity, store=store, device=linear.weight.device, start=start)


def _synchronize(model: nn.Module, undo: bool) -> None:
    try:
        synchronize(model)
    except Exception:
        if undo:
            undo_adapt(model)
        raise


def _streams(
    options: Options,
    streams: bool,
    capacity: int | None,
    folder: str | os.PathLike[str] | None,
    start: FleetStart | None,
) -> Streams | None:
    if not streams:
        if capacity is not None or folder is not None or start is not None:
            raise OptionError("capacity, folder and start need streams=True")
        return None
    if isinstance(options, NEOBNOptions):
        raise OptionError("neo-bn normalises whole batches and does not support streams: use 'neo'")
    if start not in (None, *get_args(FleetStart)):
        raise OptionError(f"start is {start!r}: expected 'fleet' or 'plain'")
    pools = rule_of(options).space == "logits"
    if start == "fleet" and not pools:
        raise OptionError("start='fleet' needs the method 'neo-stream': the others begin at the first sample itself")
    return Streams(capacity, None if folder is None else os.fspath(folder), start or ("fleet" if pools else "plain"))


def _reference(method: str, given: Reference | str | os.PathLike[str] | None) -> Reference | None:
    if given is not None and method == "neo-bn":
        raise OptionError(
            "neo-bn changes the embeddings, so that a reference of the plain model does not fit: use 'neo'"
        )
    return None if given is None else as_reference(given)


def _norm_pairs(model: nn.Module, options: Options) -> dict[nn.Module, AdaptiveNorm]:
    given = options.given()
    norms = adaptive_norms(model, given["statistics"], given["momentum"])
    if not norms:
        raise UnsupportedModelError(
            f"neo-bn needs BatchNorm layers, and {type(model).__name__} has none: use neotta.adapt(model, 'neo')"
        )
    return {model.get_submodule(name): norm for name, norm in norms.items()}
