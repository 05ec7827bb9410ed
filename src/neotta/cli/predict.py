"""`neotta predict`: what a model, adapting as it goes, says to the images of a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta._words import counted, printable
from neotta.cli import options as shared
from neotta.cli.options import class_names, model_options
from neotta.errors import OptionError

if TYPE_CHECKING:
    from neotta.data.base import DataSource
    from neotta.evaluate.plan import MethodPlan
    from neotta.models.load import LoadedModel


def predict(
    model: shared.Model,
    folder: Annotated[str, typer.Argument(help="Images, with or without labels: a folder or LAYOUT=PATH.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file of answers: image, class and confidence.")
    ] = Path("answers.csv"),
    method: Annotated[
        str, typer.Option(help="A method as `neotta methods` lists them; none does not adapt.")
    ] = "neo-stream",
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
        import torch

        from neotta.adapters.registry import find
        from neotta.data.opening import open_data
        from neotta.evaluate.plan import MethodPlan
        from neotta.models.load import load_model

        plan = MethodPlan.parse(method)
        find(plan.method)
        source = open_data(folder, layout="images" if Path(folder).is_dir() else None)  # all of them, labelled or not
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        loaded = load_model(model, labels=class_names(labels), device=chosen, **options)
        rows = list(_answers(loaded, source, plan, batch_size, progress))
        unreadable = sum(map(len, map(source.dataset, source.domains))) - len(rows)
    with atomic(output) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("image", "class", "confidence"), *rows])
    typer.echo(printable(f"{counted(len(rows), 'image')} classified, {unreadable} unreadable: {output}"))
    next_step(f"neotta check {model} --data CLEAN_IMAGES   whether adapting can do harm")


def _answers(
    loaded: LoadedModel,
    source: DataSource,
    plan: MethodPlan,
    batch_size: int,
    progress: Callable[[str, int, int], None],
) -> Iterator[tuple[str, Any, str]]:
    """Path, class and confidence of each image that can be read; every domain begins with the model as it was."""
    from neotta.adapters.registry import create
    from neotta.data.loading import Loader
    from neotta.data.orders import stored
    from neotta.evaluate.domains import fitted

    like = next(loaded.model.parameters())
    adapter = None
    for domain in source.domains:
        dataset = source.dataset(domain)
        done = 0
        progress(domain, done, len(dataset))
        preprocess = fitted(loaded.preprocess, dataset)
        for batch in Loader(dataset, stored(dataset, batch_size=batch_size), preprocess):
            images = batch.images.to(like)
            if adapter is None:
                adapter = create(plan.method, loaded.model, preset=plan.preset, example=images, **plan.options)
            confidences, classes = adapter(images).softmax(dim=1).max(dim=1)
            for name, index, confidence in zip(batch.ids, classes.tolist(), confidences.tolist(), strict=True):
                path = str(Path(source.root) / name) if source.layout == "images" and source.root else name
                yield path, index if loaded.labels is None else loaded.labels[index], f"{confidence:.4f}"
            done += len(images)
            progress(domain, done, len(dataset))
        if adapter is not None:
            adapter.reset()
