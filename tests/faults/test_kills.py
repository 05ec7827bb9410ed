"""kill -9 at random moments: what was acknowledged is there, and whole, whatever was under way."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tarfile
import time
import warnings

import pytest
import torch
from support.benches import lasting, open_bench
from support.faults import Process, chance, killed
from torch import nn

import neotta
from neotta.data.downloads import install
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record, Records
from neotta.evaluate.sweep import sweep
from neotta.neo.statefile import read_state, write_state

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]
KILLS = 15


def save(path, tell):
    for step in itertools.count(1):
        write_state(path, {"step": torch.full((20_000,), step)}, {"step": step})
        tell(step)


def test_saving(tmp_path):
    random, path = chance("saving"), tmp_path / "state"
    write_state(path, {"step": torch.full((20_000,), 0)}, {"step": 0})
    for _ in range(KILLS):
        told = killed(functools.partial(save, path), random.uniform(0, 0.1))
        tensors, about = read_state(path)
        assert about["step"] >= max(map(int, told), default=0), "saved, and lost"
        assert set(tensors["step"].tolist()) == {about["step"]}
        write_state(path, {"step": torch.full((20_000,), 0)}, {"step": 0})


CAMERAS, FEATURES = 12, 200


def many_streams(folder):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 2))
    return neotta.adapt(model, "neo", streams=True, capacity=3, folder=folder)


@torch.no_grad()
def evict(folder, tell):
    """Only three streams are in memory: every call moves others to the disk."""
    model = many_streams(folder)
    for step in itertools.count():
        ids = [f"camera {(3 * step + each) % CAMERAS}" for each in range(3)]
        with neotta.streams(ids):
            model(torch.ones(3, FEATURES))
        tell(step)


def check_streams(folder, seen, complete, tell):
    streams = neotta.head(many_streams(folder)).streams
    for name, count in streams.counts().items():
        assert 0 < count <= seen
        assert torch.equal(streams.rule.offset(streams.state(name))[0], torch.ones(FEATURES).double()), "a torn stream"
    assert not complete or len(streams.counts()) == CAMERAS, "moved to the disk, and lost"


def test_evicting(tmp_path):
    random, seen = chance("evicting"), 0
    with neotta.streams(["warm"]):
        neotta.adapt(nn.Sequential(nn.Linear(8, 2)), streams=True)(torch.ones(1, 8))  # imports, before the forks
    for _ in range(KILLS):
        told = killed(
            functools.partial(evict, tmp_path / "streams"), random.uniform(0, 0.2), begun=random.random() < 0.8
        )
        seen += len(told) + 1
        complete = len(told) > CAMERAS // 3  # then every camera was moved out at least once
        Process(functools.partial(check_streams, tmp_path / "streams", seen, complete)).wait()
    assert seen > KILLS


def append(path, first, tell):
    for number in itertools.count(first):
        Records(path).append(Record.make({"key": str(number), "number": number, "padding": "x" * 2000}))
        tell(number)


def read(path, tell):
    warnings.simplefilter("ignore", RuntimeWarning)
    while True:
        numbers(path)


def numbers(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of half lines
        return [record.number for record in Records(path).read()]


def test_appending_and_reading(tmp_path):
    """Two runs append while a third reads; each of them is killed at any moment."""
    random, path, told = chance("appending"), tmp_path / "r.jsonl", set()
    for trial in range(KILLS):
        path.touch()
        if random.random() < 0.5:
            with path.open("ab") as file:
                file.write(b'{"key": "half')  # as a writer that dies leaves it
        works = [functools.partial(append, path, (2 * trial + each) * 1_000_000) for each in range(2)]
        processes = [Process(work) for work in [*works, functools.partial(read, path)]]
        random.shuffle(processes)
        for process in processes:
            time.sleep(random.uniform(0, 0.06))
            told |= set(map(int, process.kill()))
        assert not told - set(numbers(path)), "acknowledged, and lost"
        if len(told) > 500:
            path.unlink()
            told = set()


SMALL = {"corruptions": ["contrast"], "severities": [3], "seeds": 4, "samples": [24], "methods": "none,neo"}


def test_sweeping(tmp_path):
    random, plan = chance("sweeping"), Plan.make(SMALL)
    bench = open_bench(plan)
    expected = sweep(bench, plan, Records(tmp_path / "whole.jsonl"))
    assert expected.done == 8
    whole = lasting(Records(tmp_path / "whole.jsonl").read())
    for trial in range(2):
        path = tmp_path / f"{trial}.jsonl"
        for _ in range(6):
            killed(lambda tell, path=path: sweep(bench, plan, Records(path)), random.uniform(0, 0.4))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                done = Records(path).read() if path.exists() else []
            assert lasting(done).items() <= whole.items()
        sweep(bench, plan, Records(path))
        assert lasting(Records(path).read()) == whole, "the same command completes it"


def test_unpacking(tmp_path):
    random, folder = chance("unpacking"), tmp_path / "content"
    for number in range(60):
        file = folder / f"class {number % 6}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([number]) * 5000)
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for entry in sorted(folder.iterdir()):
            archive.add(entry, entry.name)
    target = tmp_path / "set"

    def unpack(tell):
        install(tmp_path / "set.tar", target)
        tell("done")

    def whole():
        files = list(target.rglob("*.bin"))
        return len(files) == 60 and all(path.read_bytes() == bytes([int(path.stem)]) * 5000 for path in files)

    for _ in range(KILLS):
        told = killed(unpack, random.uniform(0, 0.06))
        assert target.exists() or not told
        if target.exists():
            assert whole()
            shutil.rmtree(target)
    install(tmp_path / "set.tar", target)
    assert whole()
