"""Two writers and a reader, and threads that do everything at once."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import pickle
import threading
import time
import traceback

import pytest
import torch
from support.faults import Process, chance
from torch import nn

import neotta
from neotta.errors import AlreadyAdaptedError, NotAdaptedError, StateFileError, StateMismatchError
from neotta.evaluate.records import Record, Records
from neotta.neo.statefile import read_state, write_state

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")]
SECONDS = 3.0


def save(path, who, tell):
    for step in itertools.count():
        write_state(path, {"who": torch.full((5000,), who), "step": torch.full((5000,), step)}, {"who": who})
        tell(step)


def test_two_save_to_one_file_and_one_reads_it(tmp_path):
    path = tmp_path / "state"
    write_state(path, {"who": torch.zeros(5000), "step": torch.zeros(5000)}, {"who": 0})
    writers, reads = [Process(functools.partial(save, path, who)) for who in (1, 2)], 0
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            tensors, about = read_state(path)  # damage would raise an error
            assert set(tensors["who"].tolist()) == {about["who"]}
            assert len(set(tensors["step"].tolist())) == 1
            reads += 1
    finally:
        told = [writer.kill() for writer in writers]
    assert reads > 10
    assert all(told)


def append(path, who, tell):
    for step in itertools.count():
        Records(path).append(Record.make({"key": f"{who} {step}"}))
        tell(f"{who} {step}")


def test_two_append_to_one_file_and_one_reads_it(tmp_path):
    path, before = tmp_path / "r.jsonl", []
    path.touch()
    writers = [Process(functools.partial(append, path, who)) for who in (1, 2)]
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            now = [record.key for record in Records(path).read()]
            assert now[: len(before)] == before, "what was there stays there, in its order"
            before = now
    finally:
        told = {key for writer in writers for key in writer.kill()}
    assert told <= {record.key for record in Records(path).read()}
    assert {key[0] for key in told} == {"1", "2"}


ALLOWED = (NotAdaptedError, AlreadyAdaptedError, StateMismatchError, StateFileError)
BATCH = torch.linspace(-1, 1, 32).reshape(4, 8) + 1


def operations(model, folder, random):
    """Everything that is public and can be called on a model at any time."""

    @torch.no_grad()
    def call():
        assert torch.isfinite(model(BATCH)).all()

    path = folder / "state"
    return {
        "call": call,
        "adapt": lambda: neotta.adapt(model, "neo", head="2"),
        "fold": lambda: neotta.fold(model),
        "restore": lambda: neotta.restore(model),
        "reset": lambda: neotta.reset(model),
        "save": lambda: neotta.save(model, path),
        "load": lambda: neotta.load(model, path),
        "merge": lambda: neotta.merge([path, path]),
        "copy": lambda: copy.deepcopy(model)(BATCH),
        "pickle": lambda: pickle.loads(pickle.dumps(model))(BATCH),
        "freeze": lambda: neotta.head(model).freeze(),
        "unfreeze": lambda: neotta.head(model).unfreeze(),
        "offset": lambda: neotta.head(model).offset(),
        "create": lambda: neotta.create(random.choice(["t3a", "lame", "neo-continual"]), model, head="2"),
    }


def test_threads_with_every_operation_at_once(tmp_path):
    random = chance("threads")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    neotta.save(neotta.adapt(model, "neo", head="2"), tmp_path / "state")
    steps = operations(model, tmp_path, random)
    wrong, done, end = [], dict.fromkeys(steps, 0), time.monotonic() + 2 * SECONDS

    def work(name, pause):
        while time.monotonic() < end and not wrong:
            try:
                steps[name]()
                done[name] += 1
            except ALLOWED:
                pass  # another thread has adapted, folded or restored it
            except BaseException:
                wrong.append(f"{name}: {traceback.format_exc()}")
            time.sleep(pause)

    threads = [threading.Thread(target=work, args=(name, random.uniform(0, 0.02))) for name in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    assert all(done[name] for name in ("call", "adapt", "fold", "restore", "save", "copy")), done
    neotta.adapt(neotta.restore(model) if any(map(_stands_in, model.modules())) else model, "neo", head="2")
    assert type(neotta.restore(model)[2]) is nn.Linear


def _stands_in(module):
    return isinstance(module, neotta.NEOHead)
