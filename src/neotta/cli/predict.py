"""`neotta predict`: what a model, adapting as it goes, says to the images of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from neotta._words import counted, printable
from neotta.cli import options as shared
from neotta.cli.options import class_names, model_options
from neotta.errors import OptionError

if TYPE_CHECKING:
    from torch import Tensor

    from neotta.adapters.registry import AnyAdapter
    from neotta.data.base import DataSource
    from neotta.models.preprocess import Preprocess


def predict(
    model: shared.ServedModel,
    folder: Annotated[str, typer.Argument(help="Images, with or without labels: a folder or LAYOUT=PATH.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file of answers: image, class and confidence.")
    ] = Path("answers.csv"),
    method: Annotated[
        str | None,
        typer.Option(
            help="A method as `neotta methods` lists them; none does not adapt. Default: neo-stream, or an .onnx "
            "file's own."
        ),
    ] = None,
    batch_size: shared.BatchSize = 64,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
    allow_code: shared.AllowCode = False,
) -> None:
    """Classify the images of a folder with a model that adapts to them as it goes.

    Examples:
      neotta predict timm:vit_base_patch16_224 photos/ -o answers.csv
      neotta predict mine.safetensors photos/ --method none --labels classes.txt
    """
    import csv

    from neotta._files import atomic
    from neotta.cli.console import Console, next_step, progress_bar
    from neotta.cli.data import fetch_data

    if output.suffix.lower() != ".csv":
        raise OptionError(f"--output is {str(output)!r}: answers go to a .csv file")
    options = model_options(model_option, allow_code=allow_code)
    fetch_data(folder)
    with progress_bar(Console(stderr=True)) as progress:
        from neotta.data.opening import open_data

        source = open_data(folder, layout="images" if Path(folder).is_dir() else None)  # all of them, labelled or not
        names = class_names(labels)
        if model.endswith(".onnx"):
            predictor = _onnx(model, method, names, bool(options or device))
        else:
            predictor = _torch(model, method or "neo-stream", {"labels": names, "device": device, **options})
        rows = list(_answers(predictor, source, batch_size, progress))
        unreadable = sum(map(len, map(source.dataset, source.domains))) - len(rows)
    with atomic(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("image", "class", "confidence"), *rows])
    typer.echo(printable(f"{counted(len(rows), 'image')} classified, {unreadable} unreadable: {output}"))
    checked = "MODEL" if model.endswith(".onnx") else model
    next_step(f"neotta check {checked} --data CLEAN_IMAGES   whether adapting can do harm")


class _Predictor(NamedTuple):
    predict: Callable[[Tensor], Tensor]  # from preprocessed images, (B, 3, H, W), to logits, adapting
    reset: Callable[[], None]
    preprocess: Preprocess
    labels: tuple[str, ...] | None


def _torch(model: str, method: str, options: dict[str, Any]) -> _Predictor:
    import torch

    from neotta.adapters.registry import create, find
    from neotta.evaluate.plan import MethodPlan
    from neotta.models.load import load_model

    plan = MethodPlan.parse(method)
    find(plan.method)
    options["device"] = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(model, **options)
    like = next(loaded.model.parameters())
    made: list[AnyAdapter] = []

    def predict(images: Tensor) -> Tensor:
        images = images.to(like)
        if not made:  # the first images show what the model takes
            made.append(create(plan.method, loaded.model, preset=plan.preset, example=images, **plan.options))
        return made[0](images)

    def reset() -> None:
        for adapter in made:
            adapter.reset()

    return _Predictor(predict, reset, loaded.preprocess, loaded.labels)


def _onnx(path: str, method: str | None, labels: list[str] | None, opened_otherwise: bool) -> _Predictor:
    import torch

    from neotta.deploy.onnx.runtime import OnnxClassifier

    if opened_otherwise or method not in (None, "none"):
        raise OptionError(f"{path} adapts as it was exported: omit --method, --model-option and --device")
    classifier = OnnxClassifier(path)
    if classifier.preprocess is None:
        raise OptionError(f"{path!r} does not say how images are made ready: export a loaded model")
    adapt = method is None
    return _Predictor(
        lambda images: torch.from_numpy(classifier.predict(images.numpy(), adapt)),
        classifier.reset if classifier.form == "adaptive" else lambda: None,
        classifier.preprocess,
        classifier.labels if labels is None else tuple(labels),
    )


def _answers(
    predictor: _Predictor, source: DataSource, batch_size: int, progress: Callable[[str, int, int], None]
) -> Iterator[tuple[str, Any, str]]:
    """Path, class and confidence of each image that can be read; every domain begins with the model as it was."""
    from neotta.data.loading import Loader
    from neotta.data.orders import stored
    from neotta.evaluate.domains import fitted

    for domain in source.domains:
        dataset = source.dataset(domain)
        done = 0
        progress(domain, done, len(dataset))
        preprocess = fitted(predictor.preprocess, dataset)
        for batch in Loader(dataset, stored(dataset, batch_size=batch_size), preprocess):
            confidences, classes = predictor.predict(batch.images).softmax(dim=1).max(dim=1)
            for name, index, confidence in zip(batch.ids, classes.tolist(), confidences.tolist(), strict=True):
                path = str(Path(source.root) / name) if source.layout == "images" and source.root else name
                yield path, index if predictor.labels is None else predictor.labels[index], f"{confidence:.4f}"
            done += len(batch)
            progress(domain, done, len(dataset))
        predictor.reset()
