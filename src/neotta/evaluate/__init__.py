"""Measuring methods: `neotta.evaluate(model, data, methods=...)`, and the parts that it is made of."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neotta.evaluate.records import Record
    from neotta.evaluate.results import Results
    from neotta.models.preprocess import Preprocess


def evaluate(
    model: Any,
    data: Any,
    methods: Any = ("none", "neo", "neo-stream"),
    *,
    seeds: int | Sequence[int] = 3,
    order: str = "iid",
    samples: int | Sequence[int] | None = None,
    batch_size: int | Sequence[int] = 64,
    preprocess: Preprocess | None = None,
    groups: Any = None,
    path: str | os.PathLike[str] | None = None,
    on_record: Callable[[Record], None] | None = None,
    progress: bool = True,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    jobs: int = 1,
    **entries: Any,
) -> Results:
    """Measure methods on a model and data, and compare them.

    Args:
        model: An `nn.Module` in evaluation mode, a `LoadedModel`, or the name of a model, as `load_model` takes it.
        data: `(inputs, labels)` as tensors or arrays, a Dataset or DataLoader of pairs, a mapping from the names of
            domains to any of these; or a folder or the name of data, as `neotta.data.open_data` takes it. Without
            labels there is a report of what can be known without them.
        methods: Names, with options or without (`"neo-continual:alpha=0.1"`), classes of methods, or their options.
        seeds: Number of seeds, or the seeds.
        order: The order of samples, as `neotta orders` lists them, with options or without (`"correlated:delta=0.1"`).
        samples: Number of samples to adapt to, or several; -1 for all. By default 512, or all if there are fewer.
        batch_size: Samples per batch, or several sizes.
        preprocess: Makes inputs of an `nn.Module` from images; models of timm and Hugging Face bring their own for
            folders and named data. Tensors and arrays without it are what the model takes.
        groups: What each sample belongs to, (N,), such as the clip of a frame; by domain if there are several. Samples
            of a group count as one unit in intervals and verdicts. For folders: `"folder"`, or a regular expression.
        path: A `.jsonl` file of records. Runs that it holds are not repeated, so an interrupted evaluation continues.
        on_record: Called with each new record.
        progress: Show a bar, if there is a terminal or a notebook to show it in.
        device: Where a model that is loaded by name runs; by default a GPU if there is one.
        cache: A folder for embeddings; None keeps them in memory.
        workers: Processes that load images; None chooses.
        jobs: Number of runs at a time, each in a process of its own; the model and the data have to be names.
        **entries: Further entries of a plan, such as `corruptions`, `domains` or `tune`: see
            `neotta.evaluate.plan.Plan`.

    Returns:
        A table in a notebook; `.compare()` and `.frame()` are DataFrames, `.plot()` draws, `.save(path)` writes.

    Raises:
        InputError: The model is in training mode or something else, or an input holds NaN.
        DataError: The data is something else, labels do not fit it or the model, or every run failed.
        OptionError: A method, option or entry is unknown or wrong.

    Example:
        >>> import neotta
        >>> loaded = neotta.load_model("digits")
        >>> results = neotta.evaluate(loaded, "digits", ["none", "neo"], samples=128, corruptions="fog")
        >>> results.compare()["verdict"].dropna().tolist()
        ['helps']
    """
    from neotta.evaluate.measure import evaluate_objects

    chosen = {"methods": methods, "seeds": seeds, "order": order, "samples": samples, "batch_sizes": batch_size}
    how = {"path": path, "on_record": on_record, "cache": cache, "workers": workers, "device": device, "jobs": jobs}
    return evaluate_objects(model, data, {**chosen, **entries}, how, preprocess, groups, show=progress)


class _CallableModule(ModuleType):  # so that `neotta.evaluate(...)` is a call, whatever was imported from here before
    __call__ = staticmethod(evaluate)
    __signature__ = inspect.signature(evaluate)


sys.modules[__name__].__class__ = _CallableModule
