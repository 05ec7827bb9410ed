"""Copies, forks and numbers at the limits: what is remembered stays whole and finite."""

from __future__ import annotations

import copy
import math
import os
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import InputError
from neotta.neo.centroid import Centroid

D = 64


def model_of(method, streams):
    torch.manual_seed(0)
    return neotta.adapt(nn.Sequential(nn.Linear(D, 4)), method, streams=streams)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda memory: pickle.loads(pickle.dumps(memory))])
@pytest.mark.parametrize("streams", [False, True])
def test_a_copy_during_updates_is_of_one_moment(copied, streams):
    model = model_of("neo", streams)
    memory, stop = neotta.head(model).memory, threading.Event()

    def update():
        step = 0
        while not stop.is_set():
            step += 1  # the mean of 1, 3, 5, ... is their number
            with torch.no_grad(), neotta.streams([f"camera {step % 2000 // 20}"] if streams else [0]):
                if streams:
                    model(torch.ones(1, D))
                else:
                    model(torch.full((1, D), 2.0 * step - 1))

    thread = threading.Thread(target=update)
    thread.start()
    try:
        for _ in range(150):
            twin = copied(memory)
            if streams:
                counts = twin.counts()
                assert all(count > 0 for count in counts.values())
                assert all(torch.equal(twin.centroid(name).mean, torch.ones(D).double()) for name in counts)
            else:
                torch.testing.assert_close(twin.mean, torch.full_like(twin.mean, int(twin.count)))
                assert int(twin.count) == int(twin.batches)
    finally:
        stop.set()
        thread.join()


FORKS = """
import os, signal, sys, threading, torch, neotta
from torch import nn
torch.set_num_threads(1)
streams = sys.argv[1] == "streams"
model = neotta.adapt(nn.Sequential(nn.Linear(2000, 4)), "neo", streams=streams)
stop = threading.Event()
def answer():
    with torch.no_grad(), neotta.streams(["a", "b"]):
        model(torch.ones(2, 2000))
def adapt():
    while not stop.is_set():
        answer()
answer()
threads = [threading.Thread(target=adapt) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(25):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a child that hangs is ended
        answer()
        memory = neotta.head(model).memory
        means = [memory.centroid(name).mean for name in ("a", "b")] if streams else [memory.mean]
        os._exit(0 if all(torch.equal(mean, torch.ones_like(mean)) for mean in means) else 3)
    _, status = os.waitpid(child, 0)
    if status:
        print("a child ended with", status, flush=True)
        break
stop.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("kind", ["one", "streams"])
def test_a_child_forked_while_threads_adapt_does_not_hang(kind):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, kind], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == ""


FORKS_DURING_AN_IMPORT = """
import os, sys, threading, time
import neotta.neo.surgery
sys.path.insert(0, sys.argv[1])
thread = threading.Thread(target=__import__, args=["slow_to_import"])
thread.start()
while "slow_to_import" not in sys.modules:
    time.sleep(0.01)
child = os.fork()
if not child:
    import slow_to_import
    os._exit(0 if slow_to_import.whole else 1)
thread.join()
for _ in range(1000):
    if os.waitpid(child, os.WNOHANG)[0]:
        break
    time.sleep(0.01)
else:
    os.kill(child, 9)
    print("the child hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_a_thread_imports_does_not_hang(tmp_path):
    """As torch imports its compiler when a model is called for the first time."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\nwhole = True\n")
    command = [sys.executable, "-W", "ignore", "-c", FORKS_DURING_AN_IMPORT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == ""


@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-stream"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float64, 1e308), (torch.float64, 1.7e308), (torch.float32, 3.4e38), (torch.float64, 1e89)],
)
def test_the_largest_numbers_never_make_what_is_remembered_infinite(method, streams, dtype, size):
    model = model_of(method, streams).to(dtype)
    for rows in ([size, size], [-size, size], [-size], [0.5], [-size, -size]):
        batch = torch.tensor(rows, dtype=dtype)[:, None].expand(-1, D)
        with torch.no_grad(), neotta.streams(["a"] * len(rows)), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # rows that are too large
            model(batch)
        state = neotta.head(model).memory.centroid("a" if streams else None)
        for name, values in state.state().items():
            assert torch.isfinite(values).all(), name
        assert int(state.count) + int(state.rejected) > 0
    with torch.no_grad(), neotta.streams(["a"] * 3):
        assert torch.isfinite(model(torch.full((3, D), 0.5, dtype=dtype))).all()


@pytest.mark.parametrize("size", [1e308, 1.7e308])
def test_rows_that_are_too_large_are_counted(size):
    centroid = Centroid(D)
    with pytest.warns(RuntimeWarning, match="2 of 3 embeddings contain NaN or Inf, or are too large"):
        centroid.update(torch.tensor([size, 1.0, size], dtype=torch.float64)[:, None].expand(-1, D))
    assert (int(centroid.count), int(centroid.rejected)) == (1, 2)
    assert torch.equal(centroid.mean, torch.ones(D).double())


def test_logits_that_are_too_large_are_counted():
    from neotta.deploy.logits import LogitRecenter

    recenter = LogitRecenter()
    with pytest.warns(RuntimeWarning, match="1 of 2 rows"):
        recenter.partial_fit(np.array([[1e308, -1e308, 1.0], [1.0, 2.0, 3.0]]))
    assert (recenter.count_, recenter.rejected_) == (1, 1)
    assert np.isfinite(recenter.mean_).all()


@pytest.mark.parametrize("count", [2**53 + 1, 2**63, 2**70, -1])
def test_a_count_that_cannot_be_kept_is_refused(count):
    centroid = Centroid(D)
    with pytest.raises(InputError, match="count"):
        centroid.set(torch.ones(D), count=count)
    assert int(centroid.count) == 0
    with pytest.raises(InputError, match="NaN or Inf"):
        centroid.set(torch.full((D,), math.inf))
