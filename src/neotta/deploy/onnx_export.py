"""Export a classifier to ONNX, folded or adaptive."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta._files import atomic
from neotta.deploy._card import CHECKSUM_KEY, KEY, NO_CHECKSUM, Card, Form, with_checksum
from neotta.deploy._card_reference import encoded
from neotta.deploy._graph import AdaptiveGraph, entry_of
from neotta.deploy._program import BATCH, check_opset, program
from neotta.deploy._verify import verify_adaptive, verify_folded
from neotta.deploy.exporters import ExportJob, register_exporter
from neotta.errors import InputError, ModelError, OptionError, UnsupportedModelError
from neotta.models.preprocess import Preprocess
from neotta.neo.find_head import logits_of
from neotta.neo.fold import folded
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.split import evaluating
from neotta.neo.statefile import fingerprint
from neotta.neo.surgery import adaptation, heads

if TYPE_CHECKING:
    from onnx import ModelProto

_LARGEST = 2**31 - 2**20  # maximum bytes of an ONNX file, minus a margin


@register_exporter("folded")
def write_folded(job: ExportJob) -> None:
    """Write an ordinary model, images to logits, with the adapted bias."""
    images = _prepared(job)
    card = _card(job, "folded", heads(job.model) if job.adapted else {})
    with torch.no_grad(), evaluating(list(job.model.modules())):
        with ModuleSwap(job.model, folded(job.model) if job.adapted else {}):
            _check_labels(card, logits_of(job.model(images)))
            proto = program(job.model, (images,), ({0: BATCH},), ["images"], ["logits"], job.opset)
        _write(proto, card, job, images)


@register_exporter("adaptive")
def write_adaptive(job: ExportJob) -> None:
    """Write a model that keeps adapting: it takes and returns its state with every call."""
    images = _prepared(job)
    found = heads(job.model)
    if any(type(neo) is not NEOHead for neo in found.values()):
        raise UnsupportedModelError(
            "only linear heads have an adaptive form: export the model folded, or plain with a LogitRecenter behind it"
        )
    card = _card(job, "adaptive", found)
    _refuse_norms(job.model)
    with torch.no_grad(), evaluating(list(job.model.modules())):
        proto, bias = _adaptive(job.model, found, card, images, job.opset)
        _write(proto, dataclasses.replace(card, bias=bias), job, images)


def _prepared(job: ExportJob) -> Tensor:
    """Check the requirements, and return a batch of random images of the right size."""
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if job.verify else [])):
        need(package, "exporting to ONNX")
    check_opset(job.opset)
    return _images(job.model, job.preprocess, job.example)


def _images(model: nn.Module, preprocess: Preprocess | None, example: Tensor | None) -> Tensor:
    """A batch of random images of the right size; two, because torch specialises on a size of 1."""
    like = next(model.parameters())
    if like.dtype != torch.float32:
        raise UnsupportedModelError(f"the model is {like.dtype}, but export needs float32: call model.float() first")
    if example is not None:
        if example.dim() != 4:
            raise InputError(f"example must be a batch of images, (B, 3, H, W), got shape {tuple(example.shape)}")
        size = tuple(example.shape[1:])
    elif preprocess is not None:
        size = (3, *preprocess.size)
    else:
        raise OptionError("the size of the images is unknown: pass example=images, or the model's preprocess=")
    return torch.randn(2, *size, generator=torch.Generator().manual_seed(0)).to(like.device)


def _card(job: ExportJob, form: Form, found: dict[str, NEOHead]) -> Card:
    card = Card(
        form=form,
        name=job.name,
        preprocess=None if job.preprocess is None else job.preprocess.to_dict(),
        labels=None if job.labels is None else [str(label) for label in job.labels],
    )
    if not found:
        return card
    asked = adaptation(job.model)
    entries: dict[str, Any] = {"method": asked.method, "options": asked.options.model_dump(mode="json")}
    entries["samples"] = max(neo.count for neo in found.values())
    if form == "adaptive":
        entries["heads"] = {name: fingerprint(dict(neo.named_parameters())) for name, neo in found.items()}
        states = {name: neo.memory.state() for name, neo in found.items()}
        entries["state"] = {name: {key: value.tolist() for key, value in s.items()} for name, s in states.items()}
        entries["reference"] = None if asked.reference is None else encoded(asked.reference)
    return Card(**{**vars(card), **entries})


def _check_labels(card: Card, logits: Tensor) -> None:
    if card.labels is not None and len(card.labels) != logits.shape[-1]:
        raise OptionError(f"{len(card.labels)} labels for a model of {logits.shape[-1]} classes")


def _refuse_norms(model: nn.Module) -> None:
    if any(isinstance(module, AdaptiveNorm) for module in model.modules()):
        raise UnsupportedModelError(
            "neo-bn has no adaptive form, which would need the state of every BatchNorm layer: export it folded (with "
            "statistics='ema'), or adapt with 'neo'"
        )


def _adaptive(
    model: nn.Module, found: dict[str, NEOHead], card: Card, images: Tensor, opset: int
) -> tuple[ModelProto, list[float] | None]:
    """The graph, and the bias of its head if a rule on logits can run outside it."""
    from onnx import numpy_helper

    graph = AdaptiveGraph(model, found)
    ports = [card.port(name, entry) for name, entry in graph.carried]
    rejected = [card.port(name, "rejected") for name in found]
    state = [entry_of(found[name], entry) for name, entry in graph.carried]
    adapt = torch.tensor(True, device=images.device)
    shapes = ({0: BATCH}, None, [None] * len(state))
    with graph.within:
        logits = graph(images, adapt, state)[0]
        _check_labels(card, logits)
        bias = _bias(next(iter(found.values()))) if graph.at_output(logits) else None
        proto = program(
            graph,
            (images, adapt, state),
            shapes,
            ["images", "adapt", *ports],
            ["logits", *(f"next_{port}" for port in ports), *rejected],
            opset,
        )
    # An initializer with the name of an input is its default.
    proto.graph.initializer.append(numpy_helper.from_array(adapt.cpu().numpy(), "adapt"))
    return proto, bias


def _bias(neo: NEOHead) -> list[float]:
    bias: list[float] = [0.0] * neo.out_features if neo.bias is None else neo.bias.tolist()
    return bias


def _write(proto: ModelProto, card: Card, job: ExportJob, images: Tensor) -> None:
    """Write the file, after verification."""
    size = proto.ByteSize()
    if size > _LARGEST:
        raise UnsupportedModelError(f"the model takes {size / 2**30:.1f} GiB, but an ONNX file is limited to 2 GiB")
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, card.to_json()
    checksum = proto.metadata_props.add()
    checksum.key, checksum.value = CHECKSUM_KEY, NO_CHECKSUM
    with atomic(job.path) as temporary:
        temporary.write_bytes(with_checksum(proto.SerializeToString()))
        if job.verify:
            wrong = (verify_adaptive if card.form == "adaptive" else verify_folded)(temporary, job.model, images)
            if wrong:
                raise ModelError(f"{str(job.path)!r} was not written: ONNX Runtime and torch disagree, {wrong}")
