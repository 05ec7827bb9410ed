"""One evaluation from beginning to end: open the model and the data, run what is not recorded, return the results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, cast

from torch import nn

from neotta.adapters.registry import METHODS, methods, register
from neotta.data.base import DataSource, ImageDataset
from neotta.data.memory import data_source
from neotta.errors import DataError, InputError, NeottaError, OptionError
from neotta.evaluate.bench import Bench
from neotta.evaluate.key import run_key
from neotta.evaluate.plan import MethodPlan, Plan, Run
from neotta.evaluate.records import Record, Records
from neotta.evaluate.results import Results
from neotta.evaluate.sweep import Summary, Watcher, left_out_lines, suited, sweep
from neotta.evaluate.tuning import reported_plan, tune
from neotta.evaluate.unlabelled import reported_runs, unlabelled_report
from neotta.models.load import LoadedModel, for_images
from neotta.models.preprocess import AsIs, Preprocess
from neotta.options import Options


@dataclass(frozen=True)
class Measurement:
    bench: Bench  # the model and the data
    summary: Summary  # how many runs were done, skipped, and failed
    results: Results  # the records of the plan's runs
    runs: list[Run]  # the runs whose predictions were asked for, or are reported since the data has no labels


def measure(
    plan: Plan,
    *,
    path: str | os.PathLike[str] | None = None,
    model: LoadedModel | None = None,
    data: DataSource | None = None,
    cache: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    device: str | None = None,
    jobs: int = 1,
    engine: Literal["local", "ray"] = "local",
    force: bool = False,
    predictions: bool = False,
    progress: Watcher | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Measurement:
    """Carry out a plan: open its model and data, leave out methods that cannot run, tune, and sweep."""
    if (jobs > 1 or engine == "ray") and (model is not None or data is not None):
        raise OptionError("several processes need the model and the data by name: use jobs=1")
    records = Records(path)
    how: dict[str, Any] = {"jobs": jobs, "engine": engine, "force": force, "progress": progress}
    bench = Bench(plan, model=model, source=data, cache=cache, workers=workers, device=device)
    if (without_tuned := reported_plan(plan, bench.data.source.domains)) is not plan:
        plan = without_tuned
        bench = bench.other(plan)
    plan, missing = suited(bench, plan)
    for line in left_out_lines(missing):
        (progress or Watcher()).noted(line)
    if plan.tune:
        plan = tune(bench, plan, records.path, **how)
    runs = _reported(bench, plan, predictions)
    summary = sweep(bench, plan, records, keep=runs, on_record=on_record, **how)
    for record in missing:
        records.append(record)
    keys = {*summary.keys, *(record.key for record in [*missing, *summary.failed])}
    found = [record for record in records.read() if record.key in keys]
    unlabelled = None
    if runs and not any("top1" in record.metrics for record in found):
        seed = next(iter(runs.values())).seed
        first = [run for run in runs.values() if run.seed == seed]
        with contextlib.suppress(NeottaError):  # the plain model failed: the records say why
            unlabelled = unlabelled_report(bench, first, summary.results, summary.failed)
    return Measurement(bench, summary, Results(found, unlabelled), list(runs.values()))


def _reported(bench: Bench, plan: Plan, always: bool) -> dict[str, Run]:
    runs = bench.runs(plan)
    try:
        if always or bench.data.dataset(bench.orders(runs[0])[-1].domains[0]).labels is None:
            return {run_key(bench, run): run for run in reported_runs(runs, every_seed=always)}
    except NeottaError:  # raised again, or recorded, when the runs are carried out
        pass
    return {}


# ---- objects of the caller


def evaluate_objects(
    model: Any,
    data: Any,
    entries: Mapping[str, Any],
    how: Mapping[str, Any],
    preprocess: Preprocess | None,
    groups: Any,
    *,
    show: bool,
) -> Results:
    by_name = isinstance(model, (str, os.PathLike))
    if not by_name:
        check_model(model)
    loaded = None if by_name else model_for(model, preprocess, data)
    named_data = isinstance(data, (str, os.PathLike))
    given = {name: value for name, value in entries.items() if value is not None}
    if named_data or isinstance(groups, str):
        given |= {} if groups is None else {"group_by": groups}
    source: DataSource | None = None
    if not named_data:
        in_memory = None if "group_by" in given else groups
        source = data_source(data, images=loaded is None or loaded.preprocess is not None, groups=in_memory)
    given["data"] = os.fspath(data) if source is None else source.layout
    if loaded is None:
        given["model"] = os.fspath(model)
        given["model_options"] = {
            **given.get("model_options", {}),
            **({"preprocess": preprocess} if preprocess else {}),
        }
    else:
        loaded = with_inputs(loaded, source)
        given["model"] = loaded.name or type(loaded.model).__name__
    if not isinstance(given["methods"], str):  # of several, or one alone
        several = given["methods"] if isinstance(given["methods"], Sequence) else [given["methods"]]
        given["methods"] = [_method_entry(entry) for entry in several]
    plan = Plan.make(given)
    with _bar(show) as watcher:
        measured = measure(plan, model=loaded, data=source, progress=watcher, **how)
    failed = measured.summary.failed
    if failed and not any(record.measured for record in measured.results.records):
        raise DataError(f"every run failed, the first with {failed[0].error}")
    return measured.results


def check_model(model: Any) -> None:
    module = model.model if isinstance(model, LoadedModel) else model
    if not isinstance(module, nn.Module):
        raise InputError(
            f"expected a torch.nn.Module, a neotta.LoadedModel or the name of a model, got {type(model).__name__}"
        )
    if any(each.training for each in module.modules()):
        raise InputError(f"{type(module).__name__} is in training mode: call model.eval() first")


def model_for(model: nn.Module | LoadedModel, preprocess: Preprocess | None, data: Any) -> LoadedModel:
    """The model with what makes its inputs of this data; that is None where the data is what the model takes."""
    if isinstance(model, LoadedModel):
        return model if preprocess is None else model._replace(preprocess=preprocess)
    if preprocess is None and isinstance(data, (str, os.PathLike, DataSource, ImageDataset)):
        return for_images(model)
    return LoadedModel(model, cast(Preprocess, preprocess))


def with_inputs(loaded: LoadedModel, source: DataSource | None) -> LoadedModel:
    """The model, which takes the data as it is where there is no preprocessing."""
    if loaded.preprocess is not None or source is None:
        return loaded
    return loaded._replace(preprocess=cast(Preprocess, AsIs(source.dataset(source.domains[0]).read(0).shape)))


def _method_entry(entry: Any) -> Any:
    if isinstance(entry, type) and hasattr(entry, "name"):
        if entry not in METHODS.available().values():
            register(entry)
        return MethodPlan(method=entry.name)
    if isinstance(entry, Options):
        names = [name for name, kind in methods().items() if kind.Options is type(entry)]
        if len(names) != 1:
            several = f"of {' and '.join(names)}" if names else "of no method"
            raise OptionError(f"{type(entry).__name__} are options {several}: write {{'method': NAME, ...}}")
        return MethodPlan(method=names[0], options=entry.model_dump(exclude_unset=True))
    return entry


@contextlib.contextmanager
def _bar(show: bool) -> Iterator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    widgets = console.is_jupyter and find_spec("ipywidgets") is not None  # without, rich prints a warning for each bar
    visible = show and (console.is_terminal or widgets)
    with Progress(*columns, console=console, transient=True, disable=not visible) as progress:
        yield _Bar(progress)


class _Bar(Watcher):
    def __init__(self, progress: Any) -> None:
        self._progress, self._images = progress, progress.add_task("opening", total=None)
        self._runs = progress.add_task("runs", total=None, visible=False)

    def planned(self, runs: Sequence[Run], skipped: int, images: int) -> None:
        self._progress.update(self._images, description="encoding images", total=images)
        self._progress.update(self._runs, total=len(runs), visible=True)

    def encoded(self, count: int) -> None:
        self._progress.advance(self._images, count)

    def recorded(self, record: Record) -> None:
        self._progress.update(self._runs, advance=1, description=f"{record.method} on {record.domain}")
