"""`neotta predict`: what a model, adapting as it goes, says to the images of a folder, and what adapting changed."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from neotta.monitoring.health import Health


def predict(
    model: shared.ServedModel,
    data: Annotated[str, typer.Argument(help="Images, with or without labels: a folder or LAYOUT=PATH.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file of answers: image, class and confidence, adapted and plain."),
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
    options = model_options(model_option)
    fetch_data(data)
    with progress_bar(Console(stderr=True)) as progress:
        from neotta.data.opening import open_data

        source = open_data(data, layout="images" if Path(data).is_dir() else None)  # all of them, labelled or not
        names = class_names(labels)
        if model.endswith(".onnx"):
            predictor = _onnx(model, method, names, bool(options or device))
        else:
            predictor = _torch(model, method or "neo-stream", {"labels": names, "device": device, **options})
        answers = list(_answers(predictor, source, batch_size, progress))
        unreadable = sum(map(len, map(source.dataset, source.domains))) - len(answers)
    with atomic(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *answers])
    typer.echo(printable(f"{counted(len(answers), 'image')} classified, {unreadable} unreadable: {output}"))
    for line in _summary(predictor, answers):
        typer.echo(printable(line))
    next_step(f"neotta judge {'MODEL' if model.endswith('.onnx') else model} {data}   whether adapting helps here")


COLUMNS = ("image", "class", "confidence", "plain", "plain_confidence")
_Row = tuple[str, str | int, str, str | int, str]  # plain answers are empty where the model does not tell them


def _summary(predictor: _Predictor, answers: Sequence[_Row]) -> Iterator[str]:
    """What adapting did."""
    from neotta.evaluate.unlabelled import frequent
    from neotta.monitoring.accuracy import most

    if not answers:
        return
    now, before = [row[1] for row in answers], [row[3] for row in answers]
    if not predictor.rule:
        yield "The plain model answered: nothing adapts."
    elif "" in before:
        yield f"{predictor.rule}: it was folded into the file, which does not tell the plain answers."
    else:
        changed = sum(adapted != plain for _, adapted, _, plain, _ in answers)
        yield f"{predictor.rule} changed {counted(changed, 'answer')} ({changed / len(answers):.1%})."
    for found in predictor.health:
        yield "Health: " + str(found).replace("\n- ", "; ")
    plain = "" if "" in before else f"plain {frequent(before)}; "
    yield "Most frequent answers: " + (f"{plain}adapted " if predictor.rule else "") + frequent(now)
    (name, count), *_ = Counter(now).most_common(1)
    if count / len(answers) > most(predictor.classes):
        yield f"Check: most answers are {name}, as after a collapse."


@dataclass
class _Predictor:
    rule: str  # "" if nothing adapts
    # From preprocessed images, (B, 3, H, W), to adapted and plain logits, (B, C); None where plain ones are not known.
    predict: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    end: Callable[[], Iterable[Health]]  # forgets what was learnt of a domain, and says how adapting to it went
    preprocess: Preprocess
    labels: tuple[str, ...] | None
    classes: int = 0
    health: list[Health] = field(default_factory=list)


def _torch(model: str, method: str, options: dict[str, Any]) -> _Predictor:
    import torch

    from neotta.adapters.base import EmbeddingAdapter
    from neotta.adapters.registry import create, find
    from neotta.errors import NotAdaptedError
    from neotta.evaluate.plan import MethodPlan
    from neotta.models.load import load_model
    from neotta.monitoring.health import health
    from neotta.neo.find_head import logits_of

    plan = MethodPlan.parse(method)
    title = "" if plan.method == "none" else find(plan.method).title
    options["device"] = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(model, **options)
    like = next(loaded.model.parameters())
    made: list[AnyAdapter] = []

    def predict(images: Tensor) -> tuple[Tensor, Tensor]:
        images = images.to(like)
        if not made:  # the first images show what the model takes
            made.append(create(plan.method, loaded.model, preset=plan.preset, example=images, **plan.options))
        (adapter,) = made
        with torch.no_grad():
            if isinstance(adapter, EmbeddingAdapter):
                rows = adapter.encode(images)
                return adapter.predict_embeddings(rows), adapter.classify(rows)
            return adapter(images), logits_of(loaded.model(images))

    def end() -> Iterator[Health]:
        for adapter in made:
            with contextlib.suppress(NotAdaptedError):
                found = health(adapter)
                assert not isinstance(found, dict)
                yield found
            adapter.reset()

    return _Predictor(title, predict, end, loaded.preprocess, loaded.labels)


def _onnx(path: str, method: str | None, labels: list[str] | None, opened_otherwise: bool) -> _Predictor:
    import torch

    from neotta.deploy.onnx.runtime import OnnxClassifier

    if opened_otherwise or method not in (None, "none"):
        raise OptionError(f"{path} adapts as it was exported: omit --method, --model-option and --device")
    classifier = OnnxClassifier(path)
    if classifier.preprocess is None:
        raise OptionError(f"{path!r} does not say how images are made ready: export a loaded model")
    adaptive = classifier.form == "adaptive"
    rule = "" if method == "none" or not (adaptive or classifier.count) else f"The rule of {path}"

    def predict(images: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = torch.from_numpy(classifier.predict(images.numpy(), method is None))
        if adaptive:
            return logits, torch.from_numpy(classifier.plain(images.numpy()))
        return logits, None if classifier.count else logits

    def end() -> tuple[Health, ...]:
        if adaptive:
            classifier.reset()
        return ()

    return _Predictor(rule, predict, end, classifier.preprocess, classifier.labels if labels is None else tuple(labels))


def _answers(
    predictor: _Predictor, source: DataSource, batch_size: int, progress: Callable[[str, int, int], None]
) -> Iterator[_Row]:
    """The answers to each image that can be read; every domain begins with the model as it was."""
    from neotta.data.loading import Loader
    from neotta.data.orders import stored
    from neotta.evaluate.domains import fitted

    def told(logits: Tensor | None) -> Iterator[tuple[str | int, str]]:
        if logits is None:
            return itertools.repeat(("", ""))
        confidences, classes = logits.softmax(dim=1).max(dim=1)
        names = (
            classes.tolist() if predictor.labels is None else [predictor.labels[index] for index in classes.tolist()]
        )
        return zip(names, [f"{each:.4f}" for each in confidences.tolist()], strict=True)

    for domain in source.domains:
        dataset = source.dataset(domain)
        done = 0
        progress(domain, done, len(dataset))
        preprocess = fitted(predictor.preprocess, dataset)
        for batch in Loader(dataset, stored(dataset, batch_size=batch_size), preprocess):
            adapted, plain = predictor.predict(batch.images)
            predictor.classes = adapted.shape[1]
            for name, mine, before in zip(batch.ids, told(adapted), told(plain)):  # noqa: B905  # plain may go on
                path = str(Path(source.root) / name) if source.layout == "images" and source.root else name
                yield path, *mine, *before
            done += len(batch)
            progress(domain, done, len(dataset))
        predictor.health += predictor.end()
