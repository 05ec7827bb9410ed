"""Export a classifier for another runtime; the forms can be extended."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from neotta._registry import Registry
from neotta.errors import InputError, OptionError
from neotta.models.load import LoadedModel
from neotta.models.preprocess import Preprocess
from neotta.neo.fold import alone
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import check_module, need_stream


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
OPSET = 18  # the lowest that torch's exporter supports natively, for the most runtimes


def _check(name: str, exporter: Exporter) -> None:
    if not callable(exporter):
        raise OptionError(f"the exporter {name!r} is a {type(exporter).__name__}: expected a function of an ExportJob")


EXPORTERS: Registry[Exporter] = Registry(
    "form", group="neotta.exporters", builtin=("neotta.deploy.onnx_export", "neotta.deploy.triton"), check=_check
)


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

    The *adaptive* form keeps adapting: it takes its state with a batch and returns that of the next one. With
    neo-stream its inputs are `images` (B, 3, H, W), `state` (about 14 C,) float32 and `count` () int64; its outputs are
    `logits` (B, C), `next_state` and `next_count`, to be passed with the next batch, and `rejected` (), the number of
    rows excluded because of NaN or Inf. With the other rules, `mean` (d,) float32 replaces `state`, and some
    variants have further inputs and outputs (`batches` () int64, `scatter` () float32). A new stream starts with zeros
    (`OnnxClassifier` does all this). With the optional input `adapt` () bool set to False, the state does not change.
    The state is rounded to float32 once per batch: after T batches its relative error is about 6e-8 √T.

    The form *triton* writes a model repository for NVIDIA Triton: the adaptive graph, and a configuration that lets the
    server keep the state of each sequence.

    The batch size is dynamic. The file's metadata contains, under the key `neotta`, a JSON object with the name,
    preprocessing, labels, method, options and, for an adaptive file, the initial state for `OnnxClassifier`.

    Args:
        model: A classifier, or the result of `load_model`; float32.
        path: The file to write, atomically; the folder for "triton".
        form: "folded", "adaptive", "triton", a form added with `register_exporter`, or `py:path/to/file.py:function`.
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
        need_stream(model, stream, "neotta.deploy.export(model, path, stream='gate')")
    pairs: dict[nn.Module, Any] = {} if stream is None else alone(model, stream)
    with ModuleSwap(model, pairs):
        write(job)
