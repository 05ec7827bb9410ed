"""NEO-Stream on replicas: what they share, and what stays their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import batch, plain

import neotta
from neotta.neo import stream_exchange
from neotta.neo.shift_estimate import EVER, LATELY
from neotta.neo.stream_moments import StreamMoments
from neotta.neo.sync.replica import moments_of

OWN = ("previous", "sticky", "last", "mix", "seen")


def adapted(**options):
    return neotta.adapt(plain(), head="classes", **options)


@torch.no_grad()
def fed(model, *batches):
    for data in batches:
        model(data)
    return model


def memory(model):
    return neotta.head(model).memory


@settings(max_examples=25, deadline=None)
@given(before=st.integers(0, 30), after=st.integers(0, 30), seed=st.integers(0, 1000))
def test_a_difference_merged_again_gives_the_moments_over_all_time(before, after, seed):
    model = fed(adapted(), *batch(before, seed).split(4))
    start = moments_of(memory(model))
    fed(model, *batch(after, seed + 1).split(3))
    now, rule = moments_of(memory(model)), memory(model).rule
    total = StreamMoments(*(column.clone() for column in start))
    rule.merge(total, rule.difference(now, start))
    assert (int(total.count), int(total.batches)) == (int(now.count), int(now.batches))
    for name in ("weight", "squares", "mean", "second", "third"):
        scale = float(getattr(now, name)[EVER].abs().max()) if before + after else 1.0
        torch.testing.assert_close(
            getattr(total, name)[EVER], getattr(now, name)[EVER], rtol=1e-8, atol=1e-8 * max(scale, 1.0), msg=name
        )


def test_nothing_new_is_no_difference():
    table = stream_exchange.as_table(moments_of(memory(fed(adapted(), batch(20)))))
    for name, column in stream_exchange.difference(table, table)._asdict().items():
        np.testing.assert_allclose(column, 0.0, atol=1e-9, err_msg=name)


def replicas(data, rounds, **options):
    """Two replicas that exchange after every round, each fed with its own batches."""
    store = torch.distributed.HashStore()
    models = [adapted(**options) for _ in data]
    errors = []
    joined = threading.Barrier(2, timeout=20.0)  # who joins later begins with what the other has seen

    def run(rank):
        try:
            exchange = neotta.sync(models[rank], every=None, timeout=20.0, store=store, rank=rank, world_size=2)
            joined.wait()
            for turn in range(rounds):
                fed(models[rank], *data[rank][turn].split(5))
                exchange.now()
            exchange.close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return models


@pytest.mark.parametrize("rounds", [1, 3])
def test_replicas_share_the_moments_over_all_time_and_keep_the_rest(rounds):
    data = [[batch(20, 10 * rank + turn) for turn in range(rounds)] for rank in range(2)]
    one, other = (memory(model) for model in replicas(data, rounds))
    assert one.total() == other.total() == 40 * rounds
    for name in ("weight", "squares", "mean", "second", "third", "predicted", "peak", "trust"):
        torch.testing.assert_close(getattr(one, name)[EVER], getattr(other, name)[EVER], rtol=0, atol=0)
    assert not torch.equal(one.mean[LATELY], other.mean[LATELY])
    if rounds == 1:  # alone, each would have seen the same in its window and prior
        for mine, parts in ((one, data[0]), (other, data[1])):
            alone = memory(fed(adapted(), *parts[0].split(5)))
            for name in OWN:
                torch.testing.assert_close(getattr(mine, name), getattr(alone, name))
            torch.testing.assert_close(mine.mean[LATELY], alone.mean[LATELY])
        merged = neotta.merge([fed(adapted(), *parts[0].split(5)) for parts in data])
        torch.testing.assert_close(one.mean[EVER], merged.tensors["classes.mean"][EVER])


def test_a_reset_reaches_all_replicas():
    store = torch.distributed.HashStore()
    model = fed(adapted(), batch(20))
    exchange = neotta.sync(model, every=None, timeout=5.0, store=store, rank=0, world_size=1)
    exchange.reset()
    fed(model, batch(7, 3))
    exchange.now()
    assert memory(model).total() == 7
    for name, value in memory(fed(adapted(), batch(7, 3))).state().items():
        torch.testing.assert_close(memory(model).state()[name], value, rtol=1e-6, atol=1e-6, msg=name)
