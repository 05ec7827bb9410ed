"""Carries out the runs and measurements that items need, and reads their records."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neotta.data.base import DataSource
from neotta.data.opening import open_data
from neotta.errors import DataError, NeottaError
from neotta.evaluate.bench import Bench
from neotta.evaluate.costs import measure_costs
from neotta.evaluate.domains import CLEAN, SHIFTED_LAYOUTS
from neotta.evaluate.key import run_key
from neotta.evaluate.plan import MethodPlan, Plan, Run
from neotta.evaluate.provenance import surroundings
from neotta.evaluate.records import Record, Records, content_key
from neotta.evaluate.sweep import Watcher, sweep
from neotta.paper.published import published_preprocess
from neotta.paper.recorded import answering, setting_of
from neotta.paper.study import Setting, Study, Subject, needs_images, shown_name

if TYPE_CHECKING:
    from neotta.paper.item import Item

Watching = Callable[[str], AbstractContextManager[Watcher]]
"""Opens, for the title of a step, what shows its progress."""


class Evidence:
    """All that was measured for a study, and a way to measure what is missing."""

    def __init__(
        self,
        study: Study,
        records: str | os.PathLike[str],
        *,
        cache: str | os.PathLike[str] | None = None,
        watching: Watching | None = None,
        jobs: int = 1,
        only_recorded: bool = False,
    ) -> None:
        self.study = study
        self.problems: dict[str, str] = {}
        self._records, self._cache = Records(records), None if cache is None else Path(cache)
        self._watching: Watching = watching or (lambda _: nullcontext(Watcher()))
        self._jobs, self._only_recorded = jobs, only_recorded
        for path in study.merge:
            if not Path(path).is_file():
                raise DataError(f"there is no file of records {os.fspath(path)!r}")
        self._merged = [record for path in study.merge for record in Records(path).read()]
        self._done: dict[str, list[str]] = {}
        self._benches: list[Bench] = []
        self._by_key: dict[str, Record] = {}
        self._reload()
        every = list(self._by_key.values())
        self.settings = [
            setting_of(study, subject, every) if only_recorded else self._look_at(subject) for subject in study.subjects
        ]

    # ---- measuring

    def gather(self, items: Sequence[Item]) -> None:
        """Carry out all runs and measurements that items need and that are not recorded."""
        for item in items:
            for setting in self.settings:
                for number, plan in enumerate(plans := item.plans(setting), start=1):
                    part = f" ({number} of {len(plans)})" if len(plans) > 1 else ""
                    self._carry_out(plan, f"{item.name}{part}: {setting.title}")
                self._measure_costs(setting, item)
        self._reload()

    def _carry_out(self, plan: Plan, title: str) -> None:
        key = _key(plan)
        if key in self._done:
            return
        try:
            if self._only_recorded:
                setting = next(each for each in self.settings if each.suits(plan))
                self._done[key], missing = answering(plan, setting, list(self._by_key.values()))
                if missing:
                    self.problems[title] = f"{missing} of its runs are not recorded"
                return
            jobs = self._jobs if any(needs_images(method.method) for method in plan.methods) else 1
            bench = self._bench(plan)
            with self._watching(title) as watcher:
                self._done[key] = sweep(bench, plan, self._records, jobs=jobs, progress=watcher).keys
        except NeottaError as error:
            self.problems[title] = str(error)
            self._done[key] = []

    def _measure_costs(self, setting: Setting, item: Item) -> None:
        self._reload()
        subject = setting.subject
        missing = [name for name in item.costs(setting) if self._cost(setting, name) is None]
        if not missing:
            return
        title = f"{item.name}, time and memory: {setting.title}"
        if self._only_recorded:
            self.problems[title] = f"not recorded for {', '.join(missing)}"
            return
        try:
            with self._watching(title) as watcher:
                measure_costs(
                    missing,
                    subject.model,
                    progress=watcher.measuring,
                    on_measured=lambda cost: self._records.append(cost_of(setting, cost)),
                    on_failure=lambda name, error: self.problems.update({f"{title}, {name}": str(error)}),
                    model_options=subject.model_options,
                    batch_size=self.study.batch_size,
                    batches=self.study.cost_batches,
                    rounds=self.study.cost_rounds,
                    device=self.study.device or "cpu",
                )
        except NeottaError as error:
            self.problems[title] = str(error)
        self._reload()

    def analysis(self, name: str, setting: Setting, runs: Sequence[Run], compute: Callable[[Bench], Any]) -> Any:
        """A result that JSON can hold, computed once from the embeddings of runs, and recorded."""
        about: dict[str, Any] = {"analysis": name, "model": setting.subject.model, "data": setting.subject.data}
        about["domains"] = [run.domain for run in runs]
        if self._only_recorded:
            for record in self._by_key.values():
                if about == {entry: getattr(record, entry) for entry in about}:
                    return record.values
            raise DataError(f"the analysis {name!r} is not recorded")
        bench = self.bench(setting)
        key = content_key({"analysis": name, "runs": [run_key(bench, run) for run in runs]})
        if key not in self._by_key:
            record = Record.make({**about, "key": key, "values": compute(bench), **surroundings()})
            self._records.append(record)
            self._by_key[key] = record
        return self._by_key[key].values

    # ---- reading

    def records(self, *plans: Plan) -> list[Record]:
        """The records of the runs of plans that `gather` carried out, each once."""
        keys = dict.fromkeys(key for plan in plans for key in self._done.get(_key(plan), []))
        records = [self._by_key[key] for key in keys if key in self._by_key]
        return [record.model_copy(update={"method": shown_name(record.method)}) for record in records]

    def costs(self, setting: Setting, methods: Iterable[str]) -> dict[str, Record]:
        """What methods cost on this machine, by name."""
        return {shown_name(name): record for name in methods if (record := self._cost(setting, name)) is not None}

    def other_costs(self) -> list[Record]:
        """Costs in merged files, as `neotta bench` writes them: of other devices."""
        return [record for record in self._merged if record.seconds_per_image is not None]

    def bench(self, setting: Setting) -> Bench:
        """The model and data of a setting, open."""
        return self._bench(setting.plan("none", clean=True))

    def _bench(self, plan: Plan, source: DataSource | None = None, model: Bench | None = None) -> Bench:
        for bench in self._benches:
            if bench.suits(plan):
                return bench
        same = (bench for bench in self._benches if bench.has_model(plan))
        opened = Bench(plan, model=next(same, model), source=source, cache=self._cache, device=self.study.device)
        self._benches.append(opened)
        return self._benches[-1]

    def _cost(self, setting: Setting, method: str) -> Record | None:
        """What a method costs on this machine; from records alone, on the machine that they are of."""
        found = self._by_key.get(_cost_key(setting, method, surroundings()["machine"]))
        if found is None and self._only_recorded:
            costs = [record for record in self._by_key.values() if record.seconds_per_image is not None]
            found = next((cost for cost in costs if cost.key == _cost_key(setting, method, cost.machine)), None)
        return found

    def _reload(self) -> None:
        self._by_key = {record.key: record for record in [*self._merged, *self._records.read()]}

    # ---- looking at a subject

    def _look_at(self, subject: Subject) -> Setting:
        source = open_data(subject.data)
        shifted = source.layout in SHIFTED_LAYOUTS or len(source.domains) > 1
        subject = subject.complete(source.domains, clean=not shifted)
        unseen = Setting(self.study, subject, clean=bool(subject.corruptions))
        plan = unseen.plan("none", clean=True, samples=[self.study.samples])
        bench = self._bench(plan, source)
        protocol = published_preprocess(source.layout, bench.data.preprocess)
        if protocol and "preprocess" not in subject.model_options:
            options = {**subject.model_options, "preprocess": protocol}
            subject = subject.model_copy(update={"model_options": options})
            plan = plan.model_copy(update={"model_options": options})
            self._benches.remove(bench)
            bench = self._bench(plan, source, bench)
        names = bench.data.names(plan.corruptions, plan.severities)
        domains = tuple(name for name in names if name != CLEAN)
        dataset = bench.data.dataset(domains[0] if domains else CLEAN)
        facts = [bench.data.facts(name) for name in domains or [CLEAN]]  # plans ask every domain for as many
        return Setting(
            self.study,
            subject,
            domains,
            images=min(size for size, _ in facts),
            classes=len(dataset.classes or ()) or int(bench.head.weight.shape[0]),
            fewest=min(fewest for _, fewest in facts),
            clean=CLEAN in names,
            weights=bench.weights,
            preprocess=bench.data.preprocess,
            preset=bench.preset,
            why_not=functools.cache(lambda method: bench.why_not(MethodPlan.parse(method))),
        )


def _cost_key(setting: Setting, method: str, machine: dict[str, Any]) -> str:
    study = setting.study
    about = {"cost": method, "model": setting.subject.model, "weights": setting.weights, "machine": machine}
    effort = {"batch_size": study.batch_size, "batches": study.cost_batches, "rounds": study.cost_rounds}
    return content_key({**about, **effort})


def cost_of(setting: Setting, cost: Record) -> Record:
    """What is kept of the cost of a method on this machine, with a key that is known before it is measured."""
    return cost.model_copy(update={"key": _cost_key(setting, cost.method, cost.machine)})


def _key(plan: Plan) -> str:
    return content_key(plan.model_dump(mode="json"))
