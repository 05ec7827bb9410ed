from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
from support.benches import PlanBench, lasting, open_bench, sweep

from neotta.errors import MissingExtraError, NeottaError
from neotta.evaluate.engines import processes
from neotta.evaluate.engines import ray as ray_engine
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Watcher, choose_engine

pytestmark = pytest.mark.slow
PLAN = Plan.make(
    {
        "model": f"py:{Path(__file__).parents[1] / 'support' / 'small_model.py'}:network",
        "corruptions": ["contrast"],
        "severities": [3],
        "seeds": 2,
        "samples": [32],
        "methods": "neo,t3a,none,tent",
    }
)


class FragileBench(PlanBench):
    """A bench whose workers are killed: twice by one run of neo, once by one of t3a."""

    def opener(self, **changes):
        return functools.partial(FragileWorker, super().opener(**changes), self.marks)


class FragileWorker:
    """Opens its bench when it is needed: what dies at once need not have loaded the model, which takes seconds."""

    def __init__(self, opener, marks):
        self._opener, self._marks = opener, marks

    @functools.cached_property
    def _bench(self):
        return self._opener()

    def __getattr__(self, name):
        return getattr(self._bench, name)

    def orders(self, run):
        deaths = len(list(self._marks.glob(f"{run.method}-*")))
        if run.seed == 2020 and deaths < {"neo": 2, "t3a": 1}.get(run.method, 0):
            (self._marks / f"{run.method}-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._bench.orders(run)


class StillbornBench(PlanBench):
    def opener(self, **changes):
        return die


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def check_deadly_runs(engine, tmp_path, expected):
    """A run that kills its worker once is repeated; one that does so twice has failed; the others do not suffer."""
    marks = tmp_path / "marks"
    marks.mkdir()
    bench = open_bench(PLAN, kind=FragileBench)
    bench.marks = marks
    bench.fill(bench.runs())
    records = lasting(record for record, _ in engine(bench, bench.runs(), 2, set()))
    assert sorted(path.name for path in marks.iterdir()) == ["neo-0", "neo-1", "t3a-0"]
    assert records.keys() == expected.keys()
    failed = [record for record in records.values() if record["status"] == "failed"]
    assert [(record["method"], record["seed"]) for record in failed] == [("neo", 2020)]
    assert "killed twice" in failed[0]["error"]
    others = [key for key in records if records[key] is not failed[0]]
    assert {key: records[key] for key in others} == {key: expected[key] for key in others}


@pytest.fixture(scope="module")
def expected():
    bench = open_bench(PLAN)
    return lasting(bench.record(run) for run in bench.runs())


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    before = os.environ["PYTHONPATH"]
    folders = map(str, Path(__file__).parents[:2])  # workers import this file, and what it imports
    os.environ["PYTHONPATH"] = os.pathsep.join([before, *folders])
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # no room, no right to: this says nothing about the engine
        pytest.skip(f"Ray does not start here: {error}")
    finally:
        os.environ["PYTHONPATH"] = before
    yield ray
    ray.shutdown()


def test_several_processes_give_the_same_records_even_if_one_is_killed(tmp_path, expected):
    class Killer(Watcher):
        pid = None

        def recorded(self, record):
            if self.pid is None:
                self.pid = multiprocessing.active_children()[0].pid
                os.kill(self.pid, signal.SIGKILL)

    killer = Killer()
    summary = sweep(PLAN, tmp_path / "results.jsonl", jobs=2, progress=killer)
    assert killer.pid is not None
    assert (summary.done, summary.failed) == (8, [])
    assert lasting(Records(tmp_path / "results.jsonl").read()) == expected
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8
    assert multiprocessing.active_children() == []


def test_runs_that_kill_their_process(tmp_path, expected):
    check_deadly_runs(processes.execute, tmp_path, expected)


def test_processes_that_cannot_begin_are_an_error(tmp_path):
    bench = open_bench(PLAN, kind=StillbornBench)
    with pytest.raises(NeottaError, match="die before they can begin"):
        list(choose_engine("local", 2)(bench, bench.runs(), 2, set()))
    assert multiprocessing.active_children() == []


def test_ray_gives_the_same_records(tmp_path, expected, cluster):
    summary = sweep(PLAN, tmp_path / "results.jsonl", jobs=2, engine="ray")
    assert (summary.done, summary.failed) == (8, [])
    assert lasting(Records(tmp_path / "results.jsonl").read()) == expected


def test_ray_survives_the_loss_of_workers(tmp_path, expected, cluster):
    check_deadly_runs(ray_engine.execute, tmp_path, expected)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neotta\[ray\]'"):
        choose_engine("ray", 2)
