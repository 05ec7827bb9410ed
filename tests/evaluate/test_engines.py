from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from neotta.errors import MissingExtraError, NeottaError
from neotta.evaluate.engines import Job, Setup, choose, local, processes
from neotta.evaluate.engines import ray as ray_engine
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Watcher, sweep
from neotta.evaluate.workbench import Workbench

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


@dataclass(frozen=True)
class Fragile(Setup):
    """Opens a workbench whose process is killed: twice by one run of neo, once by one of t3a."""

    marks: Path = Path()

    def open(self):
        return FragileBench(self)


class FragileBench:
    """Opens its workbench when it is needed: what dies at once need not have loaded the model, which takes seconds."""

    def __init__(self, setup):
        self._setup = setup

    @functools.cached_property
    def _bench(self):
        return Setup.open(self._setup)

    @property
    def embeddings(self):
        return self._bench.embeddings

    def execute(self, run):
        deaths = len(list(self._setup.marks.glob(f"{run.method}-*")))
        if run.seed == 2020 and deaths < {"neo": 2, "t3a": 1}.get(run.method, 0):
            (self._setup.marks / f"{run.method}-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._bench.execute(run)


@dataclass(frozen=True)
class Stillborn(Setup):
    def open(self):
        os.kill(os.getpid(), signal.SIGKILL)


def lasting(records):
    """What does not depend on when and how fast it was done."""
    return {
        record["key"]: {name: value for name, value in record.items() if name not in ("time", "seconds", "sha256")}
        for record in records
    }


def check_deadly_runs(engine, tmp_path, expected):
    """A run that kills its worker once is repeated; one that does so twice has failed; the others do not suffer."""
    marks = tmp_path / "marks"
    marks.mkdir()
    bench = Workbench(PLAN, cache=tmp_path / "cache", workers=0)
    bench.fill(bench.runs())
    records = lasting(engine(Job(bench, Fragile(PLAN, tmp_path / "cache", 0, None, marks), bench.runs(), 2)))
    assert sorted(path.name for path in marks.iterdir()) == ["neo-0", "neo-1", "t3a-0"]
    assert records.keys() == expected.keys()
    failed = [record for record in records.values() if record["status"] == "failed"]
    assert [(record["method"], record["seed"]) for record in failed] == [("neo", 2020)]
    assert "killed twice" in failed[0]["error"]
    assert all(records[key] == expected[key] for key in records if records[key] is not failed[0])


@pytest.fixture(scope="module")
def expected():
    bench = Workbench(PLAN, workers=0)
    return lasting(local.execute(Job(bench, Setup(PLAN, None, 0, None), bench.runs())))


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    before = os.environ["PYTHONPATH"]
    os.environ["PYTHONPATH"] = os.pathsep.join([before, str(Path(__file__).parent)])  # workers import this file
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
    summary = sweep(PLAN, tmp_path / "results.jsonl", jobs=2, workers=0, progress=killer)
    assert killer.pid is not None
    assert (summary.done, summary.failed) == (8, [])
    assert lasting(Records(tmp_path / "results.jsonl").read()) == expected
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 8
    assert multiprocessing.active_children() == []


def test_runs_that_kill_their_process(tmp_path, expected):
    check_deadly_runs(processes.execute, tmp_path, expected)


def test_processes_that_cannot_begin_are_an_error(tmp_path):
    bench = Workbench(PLAN, workers=0)
    job = Job(bench, Stillborn(PLAN, None, 0, None), bench.runs(), 2)
    with pytest.raises(NeottaError, match="die before they can begin"):
        list(choose("local", 2)(job))
    assert multiprocessing.active_children() == []


def test_ray_gives_the_same_records(tmp_path, expected, cluster):
    summary = sweep(PLAN, tmp_path / "results.jsonl", jobs=2, workers=0, engine="ray")
    assert (summary.done, summary.failed) == (8, [])
    assert lasting(Records(tmp_path / "results.jsonl").read()) == expected


def test_ray_survives_the_loss_of_workers(tmp_path, expected, cluster):
    check_deadly_runs(ray_engine.execute, tmp_path, expected)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'neotta\[ray\]'"):
        choose("ray", 2)
