"""`neotta.sync`: every replica ends with the state that saw everything."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

import neotta
from neotta.errors import OptionError

COMMON = """
import sys
import torch, torch.distributed as dist
from torch import nn
import neotta
from neotta.errors import StateMismatchError

torch.set_grad_enabled(False)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)

def adapted(method, seed=0, **options):
    torch.manual_seed(seed)
    return neotta.adapt(nn.Sequential(nn.Linear(5, 4)), method, **options)

def batch(rank, turn):
    generator = torch.Generator().manual_seed(10 * turn + rank)
    return 3 * torch.randn(2 + (rank + turn) % 3, 5, generator=generator) + 10

def state(model):
    streams = neotta.head(model).streams
    return dict(zip(streams.layout.fields, streams.layout.split(streams.state()), strict=True))

def close(one, other, names=None):
    for name, values in one.items():
        if names is None or name in names:
            torch.testing.assert_close(values, other[name], rtol=1e-9, atol=1e-9, msg=lambda text: f"{name}: {text}")

def rejected(model):
    try:
        neotta.sync(model)
    except StateMismatchError as error:
        return str(error)
"""

MEANS = """
for options in ({}, {"weighting": "batch"}, {"shrinkage": "james-stein"}):
    mine, alone = adapted("neo", **options), adapted("neo", **options)
    for turn in range(4):
        if rank != turn:
            mine(batch(rank, turn))
        for other in range(2):
            if other != turn:
                alone(batch(other, turn))
        neotta.sync(mine)
        close(state(mine), state(alone))

neotta.reset(mine)
mine(batch(rank, 0))
neotta.sync(mine)
neotta.save(mine, f"{folder}/{rank}")
loaded, start = adapted("neo"), adapted("neo")
start(batch(0, 9))
neotta.save(start, f"{folder}/start {rank}")
neotta.load(loaded, f"{folder}/start {rank}")
loaded(batch(rank, 1))
neotta.sync(loaded)
for other in range(2):
    start(batch(other, 1))
close(state(loaded), state(start))

assert "different models or methods" in rejected(adapted("neo", seed=rank))
assert "different starting states" in rejected(loaded if rank else adapted("neo"))
"""

STREAMS = """
SHARED = ("tallies", "ever")

both = [adapted("neo-stream") for _ in range(2)]
for other, model in enumerate(both):
    for turn in range(6):
        model(batch(other, turn))
mine, before = both[rank], state(both[rank])
merged = adapted("neo-stream")
neotta.load(merged, neotta.merge(both))
neotta.sync(mine)
close(state(merged), state(mine), SHARED)
for name in ("lately", "sticky", "last", "mix", "labels"):
    assert torch.equal(state(mine)[name], before[name]), name

before = state(mine)
neotta.sync(mine)
close(before, state(mine))
if rank:
    mine(batch(rank, 7))
    expected = state(mine)
neotta.sync(mine)
if rank:  # only this one has learnt: nothing changes for it
    close(expected, state(mine))
assert int(state(mine)["tallies"][0, 0]) == int(before["tallies"][0, 0]) + len(batch(1, 7))
"""

END = """
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("script", [MEANS, STREAMS], ids=["means", "streams"])
def test_replicas_hold_what_all_have_seen(script, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMMON + script + END, str(rank), str(tmp_path)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)


def test_what_cannot_be_synchronised_is_rejected(tmp_path):
    for model in (
        neotta.adapt(nn.Sequential(nn.Linear(5, 3)), "neo-continual"),
        neotta.adapt(nn.Sequential(nn.Linear(5, 3)), "neo", streams=True),
    ):
        with pytest.raises(OptionError, match=r"moving average|many streams"):
            neotta.sync(model)
    with pytest.raises(OptionError, match="init_process_group"):
        neotta.sync(neotta.adapt(nn.Sequential(nn.Linear(5, 3)), "neo"))


def test_a_group_of_one_keeps_its_state(tmp_path):
    model = neotta.adapt(nn.Sequential(nn.Linear(5, 3)))
    with torch.no_grad():
        model(torch.randn(16, 5))
    before = neotta.head(model).streams.state()
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        neotta.sync(model)
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(neotta.head(model).streams.state(), before)
