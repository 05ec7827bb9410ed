"""Export a classifier for another runtime: to ONNX, folded or adaptive, or in a form that is registered."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta._files import atomic
from neotta._registry import Registry
from neotta.deploy.onnx.card import CHECKSUM_KEY, KEY, NO_CHECKSUM, Card, Form, port, with_checksum
from neotta.deploy.onnx.graph import BATCH, OPSET, AdaptiveGraph, check_opset, program
from neotta.deploy.onnx.runtime import OnnxClassifier
from neotta.errors import InputError, ModelError, OptionError, UnsupportedModelError
from neotta.models.load import LoadedModel
from neotta.models.preprocess import Preprocess
from neotta.neo.files import file_of, state_of
from neotta.neo.find_head import logits_of
from neotta.neo.fold import alone, folded
from neotta.neo.head import NEOHead
from neotta.neo.model_inputs import evaluating
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.norms import AdaptiveNorm
from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import adaptation, check_module, check_stream, heads

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class ExportJob:
    """The arguments of an exporter.

    Attributes:
        model: The classifier, adapted or not; an exporter must not change it.
        path: The file or folder to write, atomically.
        preprocess: The preprocessing, if known.
        labels: Names of the classes, if known.
        name: Name of the classifier.
        example: Images of the model's input size, (B, 3, H, W), if given.
        opset: Version of the ONNX operators.
        verify: Whether to compare the result with the model.
    """

    model: nn.Module
    path: Path
    preprocess: Preprocess | None
    labels: Sequence[str] | None
    name: str
    example: Tensor | None
    opset: int
    verify: bool

    @property
    def adapted(self) -> bool:
        """Whether the model has a NEO head."""
        return any(isinstance(module, NEOHead) for module in self.model.modules())


Exporter = Callable[[ExportJob], None]
Compare = Callable[[OnnxClassifier, nn.Module, Tensor], str | None]


def _check(name: str, exporter: Exporter) -> None:
    if not callable(exporter):
        raise OptionError(f"the exporter {name!r} is a {type(exporter).__name__}: expected a function of an ExportJob")


EXPORTERS: Registry[Exporter] = Registry("form", group="neotta.exporters", check=_check)


def register_exporter(form: str) -> Callable[[Exporter], Exporter]:
    """Decorator that registers a function as the exporter of a form.

    ```python
    @neotta.deploy.register_exporter("torchscript")
    def write(job: neotta.deploy.ExportJob) -> None: ...
    ```
    """
    return EXPORTERS.decorator(form)


def export(
    model: nn.Module | LoadedModel,
    path: str | os.PathLike[str],
    *,
    form: str = "folded",
    preprocess: Preprocess | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    example: Tensor | None = None,
    stream: StreamId | None = None,
    opset: int = OPSET,
    verify: bool = True,
) -> None:
    """Export a classifier, by default to an ONNX file; the model is not changed.

    The *folded* form is an ordinary model, images to logits, with the adapted bias b - W c: the same graph and the same
    speed as without neotta. A model that is not adapted is exported unchanged.

    The *adaptive* form keeps adapting: it takes its state with a batch and returns that of the next one. Its inputs are
    `images` (B, 3, H, W) and `state` (1, W) float32, its outputs `logits` (B, C) and `next_state`, to be passed with
    the next batch. Without `state`, it starts from that of the exported model. W is 14 + 15 C with neo-stream, d + 5
    with the other rules (`OnnxClassifier` does all this). With the optional input `adapt` () bool set to False, the
    state does not change. The state is rounded to float32 once per batch: after T batches its relative error is about
    6e-8 √T.

    The batch size is dynamic. The file's metadata contains, under the key `neotta`, a JSON object with the name,
    preprocessing, labels, method, options and, for an adaptive file, the initial state for `OnnxClassifier`.

    Args:
        model: A classifier, or the result of `load_model`; float32.
        path: The file to write, atomically.
        form: "folded", "adaptive", a form added with `register_exporter`, or `py:path/to/file.py:function`.
        preprocess: The preprocessing of the model.
        labels: Names of the classes.
        name: Name of the classifier.
        example: Images of the model's input size, (B, 3, H, W); not needed with `preprocess`.
        stream: The stream to export, for a model with streams.
        opset: Version of the ONNX operators, at least 18.
        verify: Compare the file, in ONNX Runtime, with the model on batches of several sizes, and write it only if they
            agree to 1e-4.

    Raises:
        UnknownNameError: The form is unknown.
        MissingExtraError: The extra `onnx` is not installed.
        NotAdaptedError: The adaptive form needs an adapted model.
        InputError: No stream is given for a model with streams, or it does not exist.
        UnsupportedModelError: The model cannot be exported in this form.
        ModelError: The exported file disagrees with the model.
    """
    write = EXPORTERS.find(form)
    if isinstance(model, LoadedModel):
        preprocess, labels, name = preprocess or model.preprocess, labels or model.labels, name or model.name
        model = model.model
    check_module(model)
    if example is not None and not isinstance(example, Tensor):
        inside = list(example) if isinstance(example, dict) else []
        hint = f": pass example=batch[{inside[0]!r}]" if inside else ""
        raise InputError(f"example must be a tensor, a batch of images, got {type(example).__name__}{hint}")
    job = ExportJob(model, Path(path), preprocess, labels, name or type(model).__name__, example, opset, verify)
    if job.adapted or stream is not None:
        check_stream(model, stream)
    pairs: dict[nn.Module, Any] = {} if stream is None else alone(model, stream)
    with ModuleSwap(model, pairs):
        write(job)


_LARGEST = 2**31 - 2**20  # maximum bytes of an ONNX file, minus a margin


@register_exporter("folded")
def write_folded(job: ExportJob) -> None:
    """Write an ordinary model, images to logits, with the adapted bias."""
    images = _prepared(job)
    card = _card(job, "folded", heads(job.model) if job.adapted else {})
    plain = ModuleSwap(job.model, folded(job.model) if job.adapted else {})
    with torch.no_grad(), evaluating(list(job.model.modules())), plain:
        _check_labels(card, logits_of(job.model(images)))
        proto = program(job.model, (images,), ({0: BATCH},), ["images"], ["logits"], job.opset)
        _write(proto, card, job, images, compare)


@register_exporter("adaptive")
def write_adaptive(job: ExportJob) -> None:
    """Write a model that keeps adapting: it takes and returns its state with every call."""
    images = _prepared(job)
    neo_heads = heads(job.model)
    if any(type(neo) is not NEOHead for neo in neo_heads.values()):
        raise UnsupportedModelError(
            "only linear heads have an adaptive form: export the model folded, or plain with a LogitRecenter behind it"
        )
    if any(isinstance(module, AdaptiveNorm) for module in job.model.modules()):
        raise UnsupportedModelError(
            "neo-bn has no adaptive form, which would need the state of every BatchNorm layer: export it folded (with "
            "statistics='ema'), or adapt with 'neo'"
        )
    card = _card(job, "adaptive", neo_heads)
    with torch.no_grad(), evaluating(list(job.model.modules())):
        proto, bias = _adaptive(job.model, neo_heads, card, images, job.opset)
        _write(proto, dataclasses.replace(card, bias=bias), job, images, compare_adaptive)


def _prepared(job: ExportJob) -> Tensor:
    """Check the requirements, and return random images of the right size; two, as torch specialises on a size of 1."""
    for package in ("onnx", "onnxscript", *(["onnxruntime"] if job.verify else [])):
        need(package, "exporting to ONNX")
    check_opset(job.opset)
    like = next(job.model.parameters())
    if like.dtype != torch.float32:
        raise UnsupportedModelError(f"the model is {like.dtype}, but export needs float32: call model.float() first")
    if job.example is not None:
        if job.example.dim() != 4:
            raise InputError(f"example must be a batch of images, (B, 3, H, W), got shape {tuple(job.example.shape)}")
        size = tuple(job.example.shape[1:])
    elif job.preprocess is not None:
        size = (3, *job.preprocess.size)
    else:
        raise OptionError("the size of the images is unknown: pass example=images, or the model's preprocess=")
    return torch.randn(2, *size, generator=torch.Generator().manual_seed(0)).to(like.device)


def _card(job: ExportJob, form: Form, neo_heads: dict[str, NEOHead]) -> Card:
    about: dict[str, Any] = {}
    if neo_heads:
        adapted = adaptation(job.model)
        about["method"], about["options"] = adapted.method, adapted.rule.model_dump(mode="json")
        about["samples"] = max(neo.count for neo in neo_heads.values())
        if form == "adaptive":
            about["state"] = base64.b64encode(state_of(job.model).to_bytes()).decode("ascii")
    return Card(
        form=form,
        name=job.name,
        preprocess=None if job.preprocess is None else job.preprocess.to_dict(),
        labels=None if job.labels is None else [str(label) for label in job.labels],
        **about,
    )


def _check_labels(card: Card, logits: Tensor) -> None:
    if card.labels is not None and len(card.labels) != logits.shape[-1]:
        raise OptionError(f"{len(card.labels)} labels for a model of {logits.shape[-1]} classes")


def _adaptive(
    model: nn.Module, neo_heads: dict[str, NEOHead], card: Card, images: Tensor, opset: int
) -> tuple[ModelProto, list[float] | None]:
    """The graph, and the bias of its head if its output is that of the model and the rule acts on logits."""
    from onnx import numpy_helper

    graph = AdaptiveGraph(model, neo_heads)
    ports = [port(name, neo_heads) for name in neo_heads]
    adapt = torch.tensor(True, device=images.device)
    answers: list[Tensor] = []
    with graph.within:
        hooks = [head.register_forward_hook(lambda _, __, answer: answers.append(answer)) for head in graph.heads]
        logits = graph(images, adapt, graph.states)[0]
        for hook in hooks:
            hook.remove()
        _check_labels(card, logits)
        bias = None
        if len(answers) == 1 and torch.equal(answers[0], logits):
            (head,) = neo_heads.values()
            if head.streams.rule.space == "logits":
                bias = [0.0] * head.out_features if head.bias is None else head.bias.tolist()
        proto = program(
            graph,
            (images, adapt, graph.states),
            ({0: BATCH}, None, [None] * len(ports)),
            ["images", "adapt", *ports],
            ["logits", *(f"next_{port}" for port in ports)],
            opset,
        )
    # An initializer with the name of an input is its default.
    for name, default in {"adapt": adapt, **dict(zip(ports, graph.states, strict=True))}.items():
        proto.graph.initializer.append(numpy_helper.from_array(default.cpu().numpy(), name))
    return proto, bias


def _write(proto: ModelProto, card: Card, job: ExportJob, images: Tensor, compare: Compare) -> None:
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
            wrong = compare(OnnxClassifier(temporary), job.model, images)
            if wrong:
                raise ModelError(f"{str(job.path)!r} was not written: ONNX Runtime and torch disagree, {wrong}")


TOLERANCE = 1e-4
"""Maximum difference, relative to the largest logit if that is above 1."""


def compare_adaptive(classifier: OnnxClassifier, model: nn.Module, images: Tensor) -> str | None:
    """Describe how an adaptive file differs from the model on the same stream; None if it does not."""
    twins = {name: neo.holding(neo.streams.alone()) for name, neo in heads(model).items()}
    with ModuleSwap(model, {neo: twins[name] for name, neo in heads(model).items()}):
        wrong = compare(classifier, model, images)
    for name, states in file_of("", twins).heads.items():
        for entry, value in states.arrays().items():
            wrong = wrong or _difference(f"{name}.{entry}", classifier.state()[f"{name}.{entry}"], torch.tensor(value))
    return wrong


def compare(classifier: OnnxClassifier, model: nn.Module, images: Tensor) -> str | None:
    """Describe how the logits of a file differ from the model's; None if they do not."""
    generator = torch.Generator().manual_seed(1)
    for size in (1, 3, 2, 5):
        batch = torch.randn(size, *images.shape[1:], generator=generator).to(images.device)
        logits = classifier.predict(batch.cpu().numpy())
        if wrong := _difference(f"logits of a batch of {size}", logits, logits_of(model(batch))):
            return wrong
    return None


def _difference(what: str, got: Array, wanted: Tensor) -> str | None:
    reference = wanted.detach().cpu().double().numpy()
    difference = np.abs(got - reference).max()
    if difference <= TOLERANCE * max(1.0, np.abs(reference).max()):
        return None
    return f"by {difference:.2g} in {what}"
