from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

import neotta
from neotta.errors import OptionError, StateError, StateMismatchError
from neotta.neo.sync.replica import Message

RULES = [{}, {"weighting": "batch"}, {"shrinkage": "james-stein"}]


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 3))


def batch(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed)) * 3 + 10


@torch.no_grad()
def fed(model, *batches):
    for data in batches:
        model(data)
    return model


def replica(store, rank, world_size=2, *, every=None, timeout=5.0, model=None, **options):
    model = model if model is not None else neotta.adapt(plain(), "neo", **options)
    return model, neotta.sync(model, every=every, timeout=timeout, store=store, rank=rank, world_size=world_size)


def at_once(*calls):
    """Run calls at the same time, as they wait for each other; errors come out, warnings do not."""
    errors = []

    def run(call):
        try:
            call()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    if errors:
        raise errors[0]


def state(model):
    return neotta.head(model).centroid.state()


def close(one, other, tolerance=1e-9):
    for name, tensor in state(one).items():
        torch.testing.assert_close(tensor, state(other)[name], rtol=tolerance, atol=tolerance)


def equal(one, other):
    return all(torch.equal(tensor, state(other)[name]) for name, tensor in state(one).items())


def test_a_message_comes_back_as_it_went():
    own = {"head.fc": state(fed(neotta.adapt(plain(), "neo"), batch(3, 0)))}
    message = Message("a model", "a start", 1, 7, True, own)
    again = Message.decode(message.encode())
    assert (again.model, again.start, again.epoch, again.round, again.done) == ("a model", "a start", 1, 7, True)
    assert all(torch.equal(tensor, again.own["head.fc"][name]) for name, tensor in own["head.fc"].items())


@pytest.mark.parametrize("options", RULES, ids=str)
def test_after_each_exchange_replicas_are_equal_and_hold_what_all_have_seen(options):
    store = dist.HashStore()
    models, syncs = zip(*(replica(store, rank, 3, **options) for rank in range(3)), strict=True)
    seen = []
    for turn in range(4):
        for rank, model in enumerate(models):
            data = [batch(1 + (rank + turn) % 3, 10 * turn + rank)] * (rank != turn)
            fed(model, *data)
            seen += data
        at_once(*(each.now for each in syncs))
        assert equal(models[0], models[1])
        assert equal(models[0], models[2])
        close(models[0], fed(neotta.adapt(plain(), "neo", **options), *seen), 1e-6)


def test_they_start_from_a_common_state_that_counts_once(tmp_path):
    neotta.save(fed(neotta.adapt(plain(), "neo"), batch(6, 0)), tmp_path / "start")
    store, models = dist.HashStore(), [plain(), plain()]
    for model in models:
        neotta.load(model, tmp_path / "start")
    syncs = [replica(store, rank, model=model)[1] for rank, model in enumerate(models)]
    fed(models[0], batch(2, 1))
    fed(models[1], batch(3, 2))
    at_once(*(each.now for each in syncs))
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(6, 0), batch(2, 1), batch(3, 2)), 1e-6)


def test_every_so_many_batches_they_exchange_by_themselves_and_close_waits_for_all():
    store = dist.HashStore()
    pairs = [replica(store, rank, every=2) for rank in range(2)]
    data = [[batch(4, 10 * rank + turn) for turn in range(3 + 4 * rank)] for rank in range(2)]

    def run(rank):
        fed(pairs[rank][0], *data[rank])
        pairs[rank][1].close()

    at_once(lambda: run(0), lambda: run(1))
    assert pairs[1][1].round > pairs[0][1].round >= 2
    assert equal(pairs[0][0], pairs[1][0])
    close(pairs[0][0], fed(neotta.adapt(plain(), "neo"), *data[0], *data[1]), 1e-6)
    fed(pairs[0][0], *data[1])  # closed: a call exchanges no more


def test_frozen_copied_and_restored_models_exchange_nothing():
    model, made = replica(dist.HashStore(), 0, 1, every=1)
    fed(model, batch(2, 0))
    assert made.round == 1
    fed(copy.deepcopy(model), batch(2, 0))
    neotta.head(model).freeze()
    fed(model, batch(2, 0))
    neotta.restore(model)
    fed(model, batch(2, 0))
    assert made.round == 1


def test_one_that_falls_silent_costs_one_timeout_once_and_its_record_stays():
    store = dist.HashStore()
    models, syncs = zip(*(replica(store, rank, timeout=0.3) for rank in range(2)), strict=True)
    fed(models[0], batch(2, 0)), fed(models[1], batch(3, 1))
    at_once(*(each.now for each in syncs))
    fed(models[0], batch(4, 2))
    with pytest.warns(RuntimeWarning, match=r"no news from replica 1 for 0\.3 s"):
        syncs[0].now()
    assert syncs[0].lost == {1}
    start = time.monotonic()
    syncs[0].now()
    assert time.monotonic() - start < 0.25
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(2, 0), batch(3, 1), batch(4, 2)), 1e-6)

    fed(models[1], batch(1, 3))  # it was only slow: nothing of it is lost
    syncs[1].now()
    at_once(*(each.now for each in syncs))
    assert not syncs[0].lost
    assert equal(*models)
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(2, 0), batch(3, 1), batch(4, 2), batch(1, 3)), 1e-6)


def test_one_that_starts_again_takes_up_what_it_had_published():
    store = dist.HashStore()
    models, syncs = zip(*(replica(store, rank) for rank in range(2)), strict=True)
    fed(models[0], batch(2, 0)), fed(models[1], batch(3, 1))
    at_once(*(each.now for each in syncs))
    again, made = replica(store, 1)
    assert equal(again, models[0])
    fed(again, batch(5, 2))
    at_once(syncs[0].now, made.now)
    assert equal(again, models[0])
    close(again, fed(neotta.adapt(plain(), "neo"), batch(2, 0), batch(3, 1), batch(5, 2)), 1e-6)


def test_a_reset_reaches_all():
    store = dist.HashStore()
    models, syncs = zip(*(replica(store, rank) for rank in range(2)), strict=True)
    fed(models[0], batch(2, 0)), fed(models[1], batch(3, 1))
    at_once(*(each.now for each in syncs))
    syncs[0].reset()
    assert neotta.head(models[0]).count == 0
    fed(models[0], batch(4, 2))
    at_once(*(each.now for each in syncs))
    assert equal(*models)
    fed(models[1], batch(5, 3))
    at_once(*(each.now for each in syncs))
    assert equal(*models)
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(4, 2), batch(5, 3)), 1e-6)


def test_a_reset_behind_its_back_is_an_error_and_not_a_wrong_mean():
    model, made = replica(dist.HashStore(), 0, 1)
    fed(model, batch(4, 0))
    made.now()
    neotta.reset(model)
    with pytest.raises(StateError, match=r"neotta\.sync\(model\)\.reset\(\)"):
        made.now()
    made.reset()
    made.now()


def test_replicas_of_other_models_or_starts_are_refused():
    store = dist.HashStore()
    model, made = replica(store, 0, timeout=0.1)
    fed(model, batch(2, 0))
    with pytest.warns(RuntimeWarning, match="no news from replica 1"):
        made.now()
    with pytest.raises(StateMismatchError, match="another model"):
        replica(store, 1, model=neotta.adapt(plain(seed=1), "neo"))
    with pytest.raises(StateMismatchError, match="another model"):
        replica(store, 1, shrinkage="james-stein")
    with pytest.raises(StateMismatchError, match="another state"):
        replica(store, 1, model=fed(neotta.adapt(plain(), "neo"), batch(1, 0)))
    assert neotta.head(model).count == 2


def test_what_cannot_be_synchronized_is_refused():
    store = dist.HashStore()
    for model in (neotta.adapt(plain(), "neo-continual"), neotta.adapt(plain(), "neo", streams=True)):
        with pytest.raises(OptionError, match=r"moving average|many streams"):
            replica(store, 0, model=model)
    model = neotta.adapt(plain(), "neo")
    with pytest.raises(OptionError, match="init_process_group"):
        neotta.sync(model)
    fresh = plain()
    with pytest.raises(OptionError, match="init_process_group"):
        neotta.adapt(fresh, "neo", sync=True)
    assert type(fresh[0]) is nn.Linear
    for wrong, match in (
        ({"rank": 0}, "must be given together"),
        ({"rank": 2, "world_size": 2, "store": store}, "expected 0 to 1"),
        ({"rank": 0, "world_size": 2, "store": store, "every": 0}, "every is 0"),
        ({"rank": 0, "world_size": 2, "store": store, "timeout": 0}, "timeout is 0"),
    ):
        with pytest.raises(OptionError, match=match):
            neotta.sync(model, **wrong)
    made = neotta.sync(model, rank=0, world_size=1, store=store)
    assert neotta.sync(model, rank=0, world_size=1, store=store) is made
    with pytest.raises(OptionError, match="already, with other settings"):
        neotta.sync(model, rank=0, world_size=1, store=store, every=7)
    made.close()
    with pytest.raises(OptionError, match="closed: choose another name"):
        neotta.sync(model, rank=0, world_size=1, store=store)


class Dead:
    """A store whose machine has vanished: every call hangs."""

    def __getattr__(self, name):
        return lambda *args: threading.Event().wait()


def test_a_store_that_hangs_leaves_the_replica_alone_but_whole():
    store = dist.HashStore()
    models, syncs = zip(*(replica(store, rank, timeout=0.3) for rank in range(2)), strict=True)
    fed(models[0], batch(2, 0)), fed(models[1], batch(3, 1))
    at_once(*(each.now for each in syncs))
    syncs[0]._board.store = Dead()
    fed(models[0], batch(4, 2))
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"cannot be reached .* continuing alone"):
        syncs[0].now()
    assert time.monotonic() - start < 5 * 0.3
    fed(models[0], batch(1, 3))
    syncs[0].now()
    assert syncs[0].alone
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(2, 0), batch(3, 1), batch(4, 2), batch(1, 3)), 1e-6)
    another = dist.HashStore()
    for each in syncs:
        each.connect(another)
    at_once(*(each.now for each in syncs))
    assert equal(*models)
    assert neotta.head(models[0]).count == 10


HOST = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.readline()
"""


def test_the_machine_of_the_store_may_die_too():
    with subprocess.Popen([sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        port = int(host.stdout.readline())
        stores = [dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in range(2)]
        models, syncs = zip(*(replica(store, rank) for rank, store in enumerate(stores)), strict=True)
        fed(models[0], batch(2, 0)), fed(models[1], batch(3, 1))
        at_once(*(each.now for each in syncs))
        host.kill()
    fed(models[0], batch(4, 2))
    with pytest.warns(RuntimeWarning, match="cannot be reached"):
        syncs[0].now()
    syncs[0].close()
    close(models[0], fed(neotta.adapt(plain(), "neo"), batch(2, 0), batch(3, 1), batch(4, 2)), 1e-6)


WORKER = """
import json, os, sys, warnings
import torch, torch.distributed as dist
from torch import nn
import neotta

rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
torch.manual_seed(0)
model = neotta.adapt(nn.Sequential(nn.Linear(5, 3)), "neo")
synchronizer = neotta.sync(model, every=2, timeout=8.0)
with warnings.catch_warnings(record=True) as caught, torch.no_grad():
    warnings.simplefilter("always")
    for turn in range(8):
        generator = torch.Generator().manual_seed(100 * rank + turn)
        data = torch.randn(4, 5, generator=generator) * 3 + 10
        data[:, 0] = rank == 2
        model(data)
        if turn == 3:
            print("halfway", flush=True)
            if rank != 2:
                sys.stdin.readline()
    synchronizer.close()
centroid = neotta.head(model).centroid
told = [str(warning.message) for warning in caught]
print(json.dumps({"mean": centroid.mean.tolist(), "count": int(centroid.count), "told": told}), flush=True)
os._exit(0)  # taking down a group of which one has died may take long
"""


@pytest.mark.slow
def test_of_four_processes_one_is_killed_and_the_rest_go_on():
    """The store is the test's own, as that of a launcher is. Rank 2 dies while it waits for the others.

    The first number of an embedding tells those of rank 2, and so how much of it the others have kept.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(store.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "halfway\n"
        time.sleep(0.5)
        processes[2].kill()
        survivors = [processes[rank] for rank in (0, 1, 3)]
        for process in survivors:
            process.stdin.write("\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in survivors]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    kept = round(answers[0]["mean"][0] * answers[0]["count"])
    assert kept in (16, 24)  # with or without its last exchange, and never a part of it
    alone = neotta.adapt(plain(), "neo")
    for rank, turns in enumerate((8, 8, kept // 4, 8)):
        for turn in range(turns):
            data = batch(4, 100 * rank + turn)
            data[:, 0] = rank == 2
            fed(alone, data)
    for answer in answers:
        assert answer["count"] == neotta.head(alone).count
        assert answer["mean"] == answers[0]["mean"]
        mean = torch.tensor(answer["mean"], dtype=torch.float64)
        torch.testing.assert_close(mean, state(alone)["mean"], rtol=1e-6, atol=0)
        assert sum("no news from replica 2" in message for message in answer["told"]) == 1
