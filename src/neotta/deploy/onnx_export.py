"""Export a classifier to ONNX: with its adaptation folded in, or adapting wherever it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta._files import atomic
from neotta.deploy._card import KEY, Card, Form
from neotta.deploy._graph import AdaptiveGraph
from neotta.deploy._program import BATCH, OPSET, check_opset, program
from neotta.deploy._verify import verify_adaptive, verify_folded
from neotta.errors import InputError, ModelError, OptionError, UnsupportedModelError
from neotta.models.load import LoadedModel
from neotta.models.preprocess import Preprocess
from neotta.neo.find_head import logits_of
from neotta.neo.fold import alone, folded
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.split import evaluating
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import adaptation, check_module, heads, need_stream

if TYPE_CHECKING:
    from onnx import ModelProto

_LARGEST = 2**31 - 2**20  # bytes of one ONNX file, less what is not weights


def export(
    model: nn.Module | LoadedModel,
    path: str | os.PathLike[str],
    *,
    form: Form = "folded",
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    example: Tensor | None = None,
    stream: StreamId | None = None,
    opset: int = OPSET,
    verify: bool = True,
) -> None:
    """Write a classifier as an ONNX file; the model itself stays as it is.

    The *folded* form is an ordinary model, images to logits, with the adapted bias b - W c in the place of b: the
    same graph and the same speed as without neotta. A model that is not adapted is written as it is.

    The *adaptive* form goes on adapting: its inputs are `images` (B, 3, H, W), `mean` (d,) float32 and `count` ()
    int64, its outputs `logits` (B, C), `next_mean` and `next_count`, which the caller (or `OnnxClassifier`) hands
    over with the next batch; zeros to begin with. Variants that depend on more have more inputs of that kind
    (`batches` () int64, `scatter` () float32). `rejected` () counts the rows kept out because of NaN or Inf. An input
    `adapt` () bool may be left out; False predicts with the state as it is. A mean in float32 is rounded once per
    batch: over T batches its relative error is about 6e-8 times the square root of T.

    The batch size is free. Name, preprocessing, labels, method and options are in the file's metadata under the key
    `neotta`, as JSON; so is the state that an adaptive file starts from when `OnnxClassifier` runs it.

    Args:
        model: A classifier, or what `load_model` gave; float32.
        path: The file to write; it appears at once and whole.
        form: "folded" or "adaptive".
        preprocess: Makes the model's input from images.
        labels: Name of each class.
        name: Name of the classifier.
        example: Images of the size the model takes, (B, 3, H, W); not needed with `preprocess`.
        stream: Whose centroid is exported, if the model keeps one for each stream.
        opset: Version of the ONNX operators, at least 18.
        verify: Run the file in ONNX Runtime beside the model, over batches of several sizes, and write nothing
            unless they agree to 1e-4.

    Raises:
        MissingExtraError: The extra `onnx` is not installed.
        NotAdaptedError: The adaptive form of a model that is not adapted was asked for.
        InputError: No stream is named of a model that keeps many, or one that is not there.
        UnsupportedModelError: The model cannot be exported in this form.
        ModelError: What was exported does not answer as the model does.
    """
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if verify else [])):
        need(package, "exporting to ONNX")
    if form not in get_args(Form):
        raise OptionError(f"form is 'folded' or 'adaptive', got {form!r}")
    check_opset(opset)
    if isinstance(model, LoadedModel):
        preprocess, labels, name = preprocess or model.preprocess, labels or model.labels, name or model.name
        model = model.model
    check_module(model)
    adapted = any(isinstance(module, NEOHead) for module in model.modules())
    if adapted or stream is not None:
        need_stream(model, stream, "neotta.deploy.export(model, path, stream='gate')")
    if stream is not None:
        rest: dict[str, Any] = {"preprocess": preprocess, "labels": labels, "name": name, "example": example}
        with ModuleSwap(model, alone(model, stream)):
            export(model, path, form=form, **rest, opset=opset, verify=verify)
        return
    images = _images(model, preprocess, example)
    found = heads(model) if adapted or form == "adaptive" else {}
    card = _card(model, found, form, name, preprocess, labels)
    with torch.no_grad(), evaluating(list(model.modules())):
        if form == "adaptive":
            _refuse_norms(model)
            proto = _adaptive(model, found, card, images, opset)
        else:
            with ModuleSwap(model, folded(model) if adapted else {}):
                _check_labels(card, logits_of(model(images)))
                proto = program(model, (images,), ({0: BATCH},), ["images"], ["logits"], opset)
        _write(proto, card, path, model, images, verify)


def _images(model: nn.Module, preprocess: Preprocess | None, example: Tensor | None) -> Tensor:
    """A batch of random images of the right size, two so that no size of 1 is taken for a constant."""
    like = next(model.parameters())
    if like.dtype != torch.float32:
        raise UnsupportedModelError(f"the model is {like.dtype}: export takes float32, model.float() makes it so")
    if example is not None:
        if example.dim() != 4:
            raise InputError(f"example is a batch of images, (B, 3, H, W), got a tensor of {tuple(example.shape)}")
        size = tuple(example.shape[1:])
    elif preprocess is not None:
        size = (3, *preprocess.size)
    else:
        raise OptionError("the size of the images is not known: give example=images, or the model's preprocess=")
    return torch.randn(2, *size, generator=torch.Generator().manual_seed(0)).to(like.device)


def _card(
    model: nn.Module,
    found: dict[str, NEOHead],
    form: Form,
    name: str | None,
    preprocess: Preprocess | None,
    labels: Sequence[str] | None,
) -> Card:
    card = Card(
        form=form,
        name=name or type(model).__name__,
        preprocess=None if preprocess is None else preprocess.to_dict(),
        labels=None if labels is None else [str(label) for label in labels],
    )
    if not found:
        return card
    asked = adaptation(model)
    entries: dict[str, Any] = {"method": asked.method, "options": asked.options.model_dump(mode="json")}
    entries["samples"] = max(neo.count for neo in found.values())
    if form == "adaptive":
        entries["heads"] = {name: fingerprint(dict(neo.named_parameters())) for name, neo in found.items()}
        states = {name: neo.centroid.state() for name, neo in found.items()}
        entries["state"] = {name: {key: value.tolist() for key, value in s.items()} for name, s in states.items()}
    return Card(**{**vars(card), **entries})


def _check_labels(card: Card, logits: Tensor) -> None:
    if card.labels is not None and len(card.labels) != logits.shape[-1]:
        raise OptionError(f"{len(card.labels)} labels for a model of {logits.shape[-1]} classes")


def _refuse_norms(model: nn.Module) -> None:
    if any(isinstance(module, AdaptiveNorm) for module in model.modules()):
        raise UnsupportedModelError(
            "neo-bn has no adaptive form: the state of every BatchNorm layer would have to be carried. Export it "
            "folded (with statistics='ema'), or adapt with 'neo'"
        )


def _adaptive(model: nn.Module, found: dict[str, NEOHead], card: Card, images: Tensor, opset: int) -> ModelProto:
    from onnx import numpy_helper

    graph = AdaptiveGraph(model, found)
    ports = [card.port(name, entry) for name, entry in graph.carried]
    rejected = [card.port(name, "rejected") for name in found]
    buffers = [getattr(found[name].centroid, entry) for name, entry in graph.carried]
    state = [buffer.float() if buffer.is_floating_point() else buffer for buffer in buffers]
    adapt = torch.tensor(True, device=images.device)
    shapes = ({0: BATCH}, None, [None] * len(state))
    with graph.within:
        _check_labels(card, graph(images, adapt, state)[0])
        proto = program(
            graph,
            (images, adapt, state),
            shapes,
            ["images", "adapt", *ports],
            ["logits", *(f"next_{port}" for port in ports), *rejected],
            opset,
        )
    # An input with an initializer of its name has that as its default.
    proto.graph.initializer.append(numpy_helper.from_array(adapt.cpu().numpy(), "adapt"))
    return proto


def _write(
    proto: ModelProto, card: Card, path: str | os.PathLike[str], model: nn.Module, images: Tensor, verify: bool
) -> None:
    """Write the file, and let it take its place only once it is verified."""
    size = proto.ByteSize()
    if size > _LARGEST:
        raise UnsupportedModelError(f"the model takes {size / 2**30:.1f} GiB, and an ONNX file ends at 2 GiB")
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, card.to_json()
    with atomic(path) as temporary:
        Path(temporary).write_bytes(proto.SerializeToString())
        if verify:
            wrong = (verify_adaptive if card.form == "adaptive" else verify_folded)(temporary, model, images)
            if wrong:
                raise ModelError(f"{os.fspath(path)!r} was not written: ONNX Runtime and torch disagree, {wrong}")
