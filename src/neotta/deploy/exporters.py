"""Writing a classifier for another runtime: the forms that can be written, and how others are added."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from neotta._registry import Registry
from neotta.errors import OptionError
from neotta.models.load import LoadedModel
from neotta.models.preprocess import Preprocess
from neotta.neo.fold import alone
from neotta.neo.head import NEOHead
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import check_module, need_stream


@dataclass(frozen=True)
class ExportJob:
    """What an exporter is asked to write.

    Attributes:
        model: The classifier, adapted or not; an exporter leaves it as it is.
        path: The file or folder to write, at once and whole.
        preprocess: What makes its input from images, if it is known.
        labels: Name of each class, if they are known.
        name: Name of the classifier.
        example: Images of the size the model takes, (B, 3, H, W), if they were given.
        opset: Version of the ONNX operators.
        verify: Whether to compare what was written with the model.
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
OPSET = 18  # the lowest that torch's exporter speaks natively: the most runtimes know it


def _check(name: str, exporter: Exporter) -> None:
    if not callable(exporter):
        raise OptionError(f"the exporter {name!r} is a {type(exporter).__name__}: expected a function of an ExportJob")


EXPORTERS: Registry[Exporter] = Registry(
    "form", group="neotta.exporters", builtin=("neotta.deploy.onnx_export",), check=_check
)


def register_exporter(form: str) -> Callable[[Exporter], Exporter]:
    """Make a function known as the exporter of a form; use it as a decorator.

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
        form: "folded", "adaptive", one that was added by `register_exporter`, or `py:path/to/file.py:function`.
        preprocess: Makes the model's input from images.
        labels: Name of each class.
        name: Name of the classifier.
        example: Images of the size the model takes, (B, 3, H, W); not needed with `preprocess`.
        stream: Whose centroid is exported, if the model keeps one for each stream.
        opset: Version of the ONNX operators, at least 18.
        verify: Run the file in ONNX Runtime beside the model, over batches of several sizes, and write nothing
            unless they agree to 1e-4.

    Raises:
        UnknownNameError: There is no such form.
        MissingExtraError: The extra `onnx` is not installed.
        NotAdaptedError: The adaptive form of a model that is not adapted was asked for.
        InputError: No stream is named of a model that keeps many, or one that is not there.
        UnsupportedModelError: The model cannot be exported in this form.
        ModelError: What was exported does not answer as the model does.
    """
    write = EXPORTERS.find(form)
    if isinstance(model, LoadedModel):
        preprocess, labels, name = preprocess or model.preprocess, labels or model.labels, name or model.name
        model = model.model
    check_module(model)
    job = ExportJob(model, Path(path), preprocess, labels, name or type(model).__name__, example, opset, verify)
    if job.adapted or stream is not None:
        need_stream(model, stream, "neotta.deploy.export(model, path, stream='gate')")
    pairs: dict[nn.Module, Any] = {} if stream is None else alone(model, stream)
    with ModuleSwap(model, pairs):
        write(job)
