"""`neotta.adapt`: replace the linear head of a model with NEO."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from neotta.errors import AlreadyAdaptedError, OptionError, UnknownMethodError
from neotta.neo.find_head import find_heads
from neotta.neo.head import NEOHead
from neotta.neo.head_views import CosineView, NEOConvHead
from neotta.neo.model_inputs import Inputs
from neotta.neo.module_swap import ModuleSwap, Unregistered
from neotta.neo.norms import AdaptiveNorm, adaptive_norms
from neotta.neo.output_head import NAME as OUTPUT
from neotta.neo.output_head import (
    OutputHead,
    at_logits,
    attach,
    check_outputs,
    fingerprints_of,
    output_fingerprint,
    output_reference,
    read_output,
)
from neotta.neo.reference_file import Reference, as_reference
from neotta.neo.spill import Spill
from neotta.neo.state import Rule
from neotta.neo.statefile import fingerprint
from neotta.neo.streams import Streams
from neotta.neo.surgery import (
    Adaptation,
    Model,
    StreamSettings,
    adaptation,
    check_module,
    heads,
    one_at_a_time,
    stand_ins,
)
from neotta.neo.variants import VARIANTS, rule_of


@one_at_a_time
def adapt(
    model: Model,
    method: str = "neo-stream",
    *,
    head: str | Sequence[str] | None = None,
    example: Inputs | None = None,
    at: Literal["head", "logits"] | None = None,
    streams: bool = False,
    capacity: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    reference: Reference | str | os.PathLike[str] | None = None,
    **options: Any,
) -> Model:
    """Make a classifier adapt to its input: a re-centering head replaces its linear head.

    By default this is NEO-Stream: it subtracts the shift, not the classes, so a camera that shows one class for long is
    not harmed. `"neo"` is the rule of the paper: it gains more where classes are mixed, and destroys the answers where
    a stream shows few of them (see docs/results/README.md).

    Returns the same model object; every call now adapts and predicts. If the model is already adapted in the same way,
    nothing changes.

    Args:
        model: A classifier of timm, Hugging Face or torchvision, or any module that ends in a linear layer.
        method: `"neo-stream"`, `"neo"`, `"neo-continual"`, `"neo-mse"` or `"neo-bn"`.
        head: Name of the linear layer (or several names), if it cannot be found.
        example: A batch that the model takes, a tensor or a dict of tensors; needed if the model does not take noise.
        at: `"logits"` re-centers the output of the model, whatever its head is. By default that is done for cosine
            classifiers, and other models are re-centered at their linear head.
        streams: Keep one state per stream; call the model inside `with neotta.streams(ids):`.
        capacity: Maximum number of streams in memory. The least recently used ones beyond it move to `folder`;
            without a folder they are forgotten.
        folder: Folder of the SQLite database for the other streams. Existing streams are resumed.
        reference: Where clean data lies, as `neotta.reference(model, images)` measured it, or the file it was saved to:
            re-center towards it instead of the origin.
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
    if not streams and (capacity is not None or folder is not None):
        raise OptionError("capacity and folder need streams=True")
    if method == "neo-bn" and streams:
        raise OptionError("neo-bn normalises whole batches and does not support streams: use 'neo'")
    if method == "neo-bn" and reference is not None:
        raise OptionError(
            "neo-bn changes the embeddings, so that a reference of the plain model does not fit: use 'neo'"
        )
    each = StreamSettings(capacity, None if folder is None else os.fspath(folder)) if streams else None
    known = None if reference is None else as_reference(reference)
    settings = Adaptation(method, rule_of(method, options), each, known, at_logits(at, head))
    if not stand_ins(model):
        _put_in(model, head, example, settings)
    elif head is not None and set(find_heads(model, head).values()) != set(heads(model).values()):
        raise AlreadyAdaptedError(
            f"the model is already adapted at {', '.join(heads(model))}, not at {head}: neotta.restore(model) first"
        )
    elif (now := adaptation(model)) != (settings if at is not None else settings._replace(output=now.output)):
        raise AlreadyAdaptedError(f"the model is already adapted with {now}: neotta.restore(model) first")
    return model


def _put_in(model: nn.Module, head: str | Sequence[str] | None, example: Inputs | None, settings: Adaptation) -> None:
    norms = _norm_pairs(model, settings.rule) if settings.method == "neo-bn" else {}
    layers = {} if settings.output else find_heads(model, head, example)
    if any(isinstance(layer, CosineView) for layer in layers.values()):
        settings = settings._replace(output=True)
    pairs: dict[nn.Module, nn.Module] = {**norms}
    per_output = settings.reference is not None and settings.rule.space == "embeddings"
    if settings.output:
        last = _output_head(model, example, settings, per_output)
        made: list[NEOHead] = [last]
        last.__dict__["_adaptation"] = settings
    else:
        check_outputs(model, (len(layer.weight) for layer in layers.values()), per_output=per_output)
        if settings.reference is not None:
            settings.reference.check_fingerprints(fingerprints_of(model, layers))
        made = []
        for name, layer in layers.items():
            known = None if settings.reference is None else settings.reference.heads[name]
            classes, features = layer.weight.shape[:2]  # also of a 1x1 convolution
            states = _states(name, features, classes, settings, layer, layer.weight.device)
            kind = NEOConvHead if isinstance(layer, nn.Conv2d) else NEOHead
            pairs[layer] = neo = kind(layer, states, uniform_bias=settings.method == "neo-mse", reference=known)
            made.append(neo)
    modes_differ = any(isinstance(module, (_NormBase, _DropoutNd)) for module in model.modules())
    for neo in made:
        neo.followers, neo._warns_in_training = list(map(Unregistered, norms.values())), modes_differ
    for old, new in pairs.items():
        new.__dict__.update(_adaptation=settings, _original=Unregistered(old))
    ModuleSwap(model, pairs).do()
    if settings.output:
        attach(model, last)


def _output_head(model: nn.Module, example: Inputs | None, settings: Adaptation, per_output: bool) -> OutputHead:
    known = None if settings.reference is None else output_reference(settings.reference, output_fingerprint(model))
    classes, weight, bias = read_output(model, example)
    check_outputs(model, [classes], per_output=per_output)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    states = _states(OUTPUT, classes, classes, settings, model, device)
    return OutputHead(bias, states, weight=weight, uniform_bias=settings.method == "neo-mse", reference=known)


def _states(
    name: str, features: int, classes: int, settings: Adaptation, owner: nn.Module, device: torch.device
) -> Streams:
    rule, known = settings.rule, settings.reference
    size = rule.size(features, classes)
    if settings.streams is None:
        return Streams(rule, size, device=device)
    capacity, folder = settings.streams
    spill = None
    if folder is not None:
        weights = output_fingerprint(owner) if settings.output else fingerprint(dict(owner.named_parameters()))
        about = f"{weights} {settings.method} {settings.rule}{'' if known is None else f' {known.digest}'}"
        spill = Spill(Path(folder) / name, rule.layout(size).width, about)
    return Streams(rule, size, many=True, capacity=capacity, spill=spill, device=device)


def _norm_pairs(model: nn.Module, rule: Rule) -> dict[nn.Module, AdaptiveNorm]:
    values = rule.given()
    norms = adaptive_norms(model, values["statistics"], values["momentum"])
    return {model.get_submodule(name): norm for name, norm in norms.items()}
