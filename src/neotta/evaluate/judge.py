"""`neotta.judge`: the plain model and rules answer images of a new place, and a person judges where they disagree."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from neotta._words import counted
from neotta.adapters.base import EmbeddingAdapter
from neotta.adapters.registry import create, find
from neotta.data.base import DataSource, ImageDataset, first_image
from neotta.data.class_groups import ClassGroups
from neotta.data.drawing import Indices
from neotta.data.loading import Loader
from neotta.data.memory import data_source
from neotta.data.opening import open_data
from neotta.data.order import reorder
from neotta.data.orders import stored
from neotta.errors import DataError, OptionError
from neotta.evaluate.domains import fitted
from neotta.evaluate.embeddings import EmbeddingCache
from neotta.evaluate.judgement import MOST_ANSWERS, Judgement, readable_names
from neotta.evaluate.key import identity
from neotta.evaluate.measure import check_model, model_for, with_inputs
from neotta.evaluate.plan import MethodPlan
from neotta.models.load import LoadedModel, load_model
from neotta.models.preprocess import Preprocess
from neotta.neo.split import split
from neotta.neo.variants import VARIANTS

MOST_IMAGES = 2000


def judge(
    model: str | os.PathLike[str] | LoadedModel | nn.Module,
    images: Any,
    rules: str | Sequence[str] = ("neo", "neo-stream"),
    *,
    labels: Mapping[str, str] | None = None,
    preprocess: Preprocess | None = None,
    batch_size: int = 1,
    shuffled: bool = False,
    samples: int = MOST_IMAGES,
    at_most: int = MOST_ANSWERS,
    path: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda step, done, total: None,
) -> Judgement:
    """Find out with a few answers of a person whether rules help or hurt on images of a new place.

    The plain model and the rules answer the images, the rules online, as deployed. Accuracy can change only where they
    disagree: a person says for some of these images which answer is right. What is found holds for these images.

    Args:
        model: The name of a model, as `load_model` takes it, a `LoadedModel`, or an `nn.Module` in evaluation mode.
        images: A folder of images, the name of data as `neotta.data.open_data` takes it, or objects as for `evaluate`.
        rules: Methods to compare with the plain model, as `neotta.methods()` lists them, with options or without
            (`"neo-continual:alpha=0.05"`).
        labels: The right class of images by name: it is used, and nobody is asked. Folders that are called like
            classes of the model, and labels of data, are used as well.
        preprocess: Makes inputs of an `nn.Module` from images; models of timm and Hugging Face bring their own.
        batch_size: Number of images that a rule sees at a time: 1, as a camera sends them.
        shuffled: Whether the order of the images means nothing, so that they are shuffled. By default it is that of
            their names.
        samples: Number of images, at most: the first of them.
        at_most: Number of answers after which to stop without a verdict.
        path: A `.jsonl` file for the answers. Those that it holds are used, so that a session continues.
        cache: A folder for embeddings; None keeps them in memory.
        progress: Called with the name of a step, how much of it is done, and the total.

    Returns:
        What to ask, and what is known so far; in a notebook it shows buttons.

    Raises:
        DataError: There are no images that can be read, or the answers and labels are for others.
        OptionError: A rule or an option is unknown or wrong.

    Example:
        >>> import neotta
        >>> judgement = neotta.judge("mnist", "digits-all", samples=600)  # these images are labelled: nobody is asked
        >>> judgement.line
        'neotta.adapt(model, "neo")'
    """
    if samples < 1 or batch_size < 1:
        raise OptionError(f"samples and batch_size are at least 1, got {samples} and {batch_size}")
    plans = {rule: MethodPlan.parse(rule) for rule in ([rules] if isinstance(rules, str) else rules)}
    if not plans or any(find(plan.method).name == "none" for plan in plans.values()):
        raise OptionError(f"rules are compared with the plain model: name some other than none, got {list(plans)}")
    loaded, source = _opened(model, images, preprocess)
    dataset = source.dataset()
    order = np.random.default_rng(0).permutation(len(dataset)) if shuffled else np.arange(len(dataset))
    answers, order, unreadable = _answers(loaded, dataset, order[:samples], plans, batch_size, cache, progress)
    outputs, names = loaded.labels, readable_names(loaded.labels, answers[0].shape[1])
    if source.class_groups is not None:
        groups = ClassGroups.of(source.class_groups, outputs, len(names))
        answers, outputs, names = [groups.scores(logits) for logits in answers], groups.names, [*groups.names]
    classes = [logits.argmax(1).cpu().numpy() for logits in answers]
    numbers = {dataset.ids[index]: int(index) for index in order}
    known = _known(dataset, numbers, names, outputs, labels)
    way = "in random order" if shuffled else "in the order of their names"
    notes = [f"The rules saw {len(numbers):,} of {counted(len(dataset), 'image')} {way}, {batch_size} at a time."]
    notes += [f"{counted(unreadable, 'image')} could not be read."] * bool(unreadable)
    borders = sum(known.get(one, -1) != known.get(two, -2) for one, two in itertools.pairwise(numbers))
    if 0 < borders < len(set(known.values())):
        notes.append("They are sorted by class, as no camera sees them: shuffle them, if their order means nothing.")
    return Judgement(
        {name: [names[row[place]] for row in classes] for place, name in enumerate(numbers)},
        list(plans),
        lambda name: _visible(dataset.read(numbers[name])),
        known={name: names[index] for name, index in known.items()},
        digest=lambda name: dataset.digest(numbers[name]),
        path=path,
        at_most=at_most,
        lines=[_line(plan) for plan in plans.values()],
        notes=notes,
    )


def _opened(model: Any, images: Any, preprocess: Preprocess | None) -> tuple[LoadedModel, DataSource]:
    if isinstance(model, (str, os.PathLike)):
        model = load_model(model, device="cuda" if torch.cuda.is_available() else "cpu")
    check_model(model)
    loaded = model_for(model, preprocess, images)
    if isinstance(images, (str, os.PathLike)):
        layout = "images" if Path(images).is_dir() else None  # all images of a folder, labelled or not
        return loaded, open_data(images, layout=layout)
    source = data_source(images, images=loaded.preprocess is not None)
    return with_inputs(loaded, source), source


def _answers(
    loaded: LoadedModel,
    dataset: ImageDataset,
    order: Indices,
    plans: Mapping[str, MethodPlan],
    batch_size: int,
    cache: str | os.PathLike[str] | None,
    progress: Callable[[str, int, int], None],
) -> tuple[list[Tensor], Indices, int]:
    """The logits of the plain model and each rule, which images these are, and the number of unreadable ones."""
    ready = fitted(loaded.preprocess, dataset)
    example = ready(first_image(dataset)).unsqueeze(0).to(next(loaded.model.parameters()))
    encoder, head = split(loaded.model, example=example)
    embeddings = EmbeddingCache(encoder, ready, identity(loaded.model), cache)
    done = len(order) - len(embeddings.missing(dataset, order))

    def encoded(count: int) -> None:
        nonlocal done
        done += count
        progress("encoding images", done, len(order))

    encoded(0)
    embeddings.fill(dataset, order, encoded)
    rows, readable = embeddings.get(dataset, order)
    rows = rows.to(head.weight)
    unreadable, order = len(order) - len(readable), order[readable]
    if len(order) == 0:
        raise DataError(f"none of the {unreadable} images of {dataset.domain!r} can be read")
    answers = [head(rows).detach()]
    for rule, plan in plans.items():
        adapter = create(plan.method, loaded.model, preset=plan.preset, example=example, **plan.options)
        answer: Callable[[Tensor], Tensor] = adapter
        if isinstance(adapter, EmbeddingAdapter):
            answer, batches = adapter.predict_embeddings, iter(torch.split(rows, batch_size))
        else:
            images = Loader(dataset, reorder(stored(dataset, batch_size=batch_size), order), ready)
            batches = (batch.images.to(head.weight) for batch in images)
        parts: list[Tensor] = []
        for start in range(0, len(rows), batch_size):
            progress(f"{rule} answers", start, len(rows))
            parts.append(answer(next(batches)))
        answers.append(torch.cat(parts))
    return answers, order, unreadable


def _known(
    dataset: ImageDataset,
    numbers: Mapping[str, int],
    names: Sequence[str],
    outputs: Sequence[str] | None,
    labels: Mapping[str, str] | None,
) -> dict[str, int]:
    """The right classes of images: of the data, of folders that are all called like classes, and those given."""
    also = map(str, range(len(names))) if outputs is None else outputs
    lookup = {_key(name): index for several in (names, also) for index, name in enumerate(several)}
    known: dict[str, int] = {}
    given = [] if dataset.labels is None else [(name, int(dataset.labels[index])) for name, index in numbers.items()]
    for name, label in given:
        found = label if dataset.classes is None else lookup.get(_key(dataset.classes[label]), -1)
        if found >= len(names):
            raise DataError(f"{name!r} has the class {found}, and the model has {len(names)} classes, counted from 0")
        known |= {name: found} if found >= 0 else {}
    folders = {name: _key(Path(name).parent.name) for name in numbers if "/" in name}
    if folders and set(folders.values()) <= lookup.keys():
        known |= {name: lookup[folder] for name, folder in folders.items()}
    for name, title in (labels or {}).items():
        if _key(title) not in lookup:
            raise DataError(f"the label {title!r} of {name!r} is no class of the model, such as {names[0]!r}")
        known[name] = lookup[_key(title)]
    if labels and not labels.keys() & numbers.keys():
        raise DataError(f"no label is of one of these images: they are called {next(iter(numbers))!r}, ...")
    return {name: known[name] for name in numbers if name in known}


def _key(name: str) -> str:
    return re.sub(r"[_\- ]+", " ", name.casefold()).strip()


def _visible(image: NDArray[Any]) -> NDArray[np.uint8]:
    """An image as (H, W, 3) uint8; what a model takes is stretched from its least value to its largest."""
    if image.dtype == np.uint8:
        return image
    scaled = (image - image.min()) / max(float(np.ptp(image)), 1e-9)
    return np.asarray(255 * scaled, np.uint8).transpose(1, 2, 0)


def _line(plan: MethodPlan) -> str:
    options = [f"{name}={value!r}" for name, value in plan.options.items()]
    if plan.method in VARIANTS and plan.preset == "paper":
        name = [] if plan.method == "neo-stream" else [f'"{plan.method}"']
        return f"neotta.adapt({', '.join(['model', *name, *options])})"
    preset = [f'preset="{plan.preset}"'] if plan.preset != "paper" else []
    return f"neotta.create({', '.join([f'{chr(34)}{plan.method}{chr(34)}', 'model', *preset, *options])})"
