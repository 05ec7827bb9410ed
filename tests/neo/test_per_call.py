"""`neotta.paused` and `neotta.rows`: what single calls add to the state."""

from __future__ import annotations

import asyncio
import copy
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import FEATURES, alone, answer, batch, many, plain
from torch import nn

import neotta
from neotta.errors import InputError, NotAdaptedError

METHODS = pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-mse", "neo-stream"])
WEIGHTS = st.lists(st.sampled_from([0.0, 0.25, 1.0, 2.0]), min_size=1, max_size=12)


def state(model):
    return {name: head.streams.everything()[1] for name, head in neotta.heads(model).items()}


def same(one, other, **tolerance):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@torch.no_grad()
def run(model, data, weights=None):
    if weights is None:
        return model(data)
    with neotta.rows(weights):
        return model(data)


@METHODS
def test_paused_it_predicts_and_nothing_changes(method):
    model = alone(method)
    run(model, batch(20))
    before = state(model)
    with neotta.paused(model):
        paused = run(model, batch(5, 2))
    same(state(model), before, rtol=0, atol=0)
    neotta.head(model).freeze()
    assert torch.equal(run(model, batch(5, 2)), paused)
    neotta.head(model).unfreeze()
    run(model, batch(5, 2))
    assert neotta.head(model).count == 25


def test_only_this_thread_and_this_task_are_paused():
    model = alone()
    with neotta.paused(model):
        thread = threading.Thread(target=run, args=(model, batch(3)))
        thread.start()
        thread.join()
    assert neotta.head(model).count == 3

    async def predict_only(started, go_on):
        with neotta.paused(model):
            started.set()
            await go_on.wait()
            run(model, batch(7))

    async def both():
        started, go_on = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(predict_only(started, go_on))
        await started.wait()
        run(model, batch(2))
        go_on.set()
        await task

    asyncio.run(both())
    assert neotta.head(model).count == 5


def test_only_this_model_is_paused_and_blocks_nest():
    one, other = alone(), alone()
    with neotta.paused(one):
        with neotta.paused(other):
            run(one, batch(2))
            run(other, batch(2))
        run(other, batch(3))
        run(copy.deepcopy(one), batch(2))
    assert (neotta.head(one).count, neotta.head(other).count) == (0, 3)
    with pytest.raises(NotAdaptedError), neotta.paused(plain()):
        pass
    with pytest.raises(InputError, match="adapted model or an adapter"), neotta.paused("model"):
        pass


def test_moving_batch_norm_pauses_too():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3)).eval()
    model = neotta.adapt(plain, "neo-bn", statistics="ema", head="3")
    images = torch.randn(6, 3, 4, 4)
    with neotta.paused(model):
        run(model, images)
    assert torch.equal(model[1].ema_running_mean, model[1]._buffers["running_mean"])
    with pytest.raises(InputError, match="neo-bn normalises whole batches"):
        run(model, images, [1.0] * 6)
    run(model, images)
    assert not torch.equal(model[1].ema_running_mean, model[1]._buffers["running_mean"])


@METHODS
@settings(max_examples=20, deadline=None)
@given(weights=WEIGHTS)
def test_rows_of_no_weight_are_answered_and_leave_no_trace(method, weights):
    model, without = alone(method), alone(method)
    data = batch(len(weights))
    spoilt = data.clone()
    spoilt[torch.tensor(weights) == 0, 0] = float("nan")  # padding may hold anything
    logits = run(model, spoilt, weights)
    kept = torch.tensor(weights) > 0
    if kept.any():
        expected = run(without, data[kept], [weight for weight in weights if weight])
        torch.testing.assert_close(logits[kept], expected, rtol=1e-5, atol=1e-5)
    same(state(model), state(without), rtol=1e-4, atol=1e-5)  # the logits are float32
    assert neotta.head(model).count == int(kept.sum())


@METHODS
def test_weights_of_one_change_nothing(method):
    model, without = alone(method), alone(method)
    for seed in range(3):
        torch.testing.assert_close(run(model, batch(7, seed), [1.0] * 7), run(without, batch(7, seed)))
    same(state(model), state(without))


@pytest.mark.parametrize("options", [{}, {"shrinkage": "james-stein"}], ids=str)
@settings(max_examples=20, deadline=None)
@given(weights=WEIGHTS, cut=st.integers(0, 12))
def test_neo_keeps_the_weighted_mean_however_it_is_batched_or_merged(options, weights, cut):
    data, numbers = batch(len(weights)).double(), torch.tensor(weights, dtype=torch.float64)
    whole, parts, halves = (alone(**options).double() for _ in range(3))
    run(whole, data, weights)
    run(parts, data[:cut], weights[:cut])
    run(halves, data[cut:], weights[cut:])
    merged = alone(**options).double()
    neotta.load(merged, neotta.merge([parts, halves]))
    run(parts, data[cut:], weights[cut:])
    for other in (parts, merged):
        torch.testing.assert_close(neotta.head(other).offset(), neotta.head(whole).offset(), rtol=1e-9, atol=1e-9)
    if numbers.sum() > 0:
        mean = (numbers[:, None] * data).sum(0) / numbers.sum()
        streams = neotta.head(whole).streams
        _, weight, _, total = streams.rule.state(streams.state())
        torch.testing.assert_close(total[0] / weight, mean, rtol=1e-9, atol=1e-9)


@METHODS
@settings(max_examples=10, deadline=None)
@given(weights=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6))
def test_a_stream_in_a_table_takes_weights_as_it_would_alone(method, weights):
    ids, data = ["a", "b", "a", "b", "a", "c"], batch(6)
    together, apart = many(method), {name: alone(method) for name in "abc"}
    with neotta.rows(weights):
        logits = answer(together, data, ids)
    for name, model in apart.items():
        mine = [place for place, each in enumerate(ids) if each == name]
        expected = run(model, data[mine], [weights[place] for place in mine])
        torch.testing.assert_close(logits[mine], expected, rtol=1e-4, atol=1e-4)
        assert neotta.head(together).streams.counts().get(name, 0) == neotta.head(model).count


@METHODS
@pytest.mark.parametrize("streams", [False, True], ids=["one stream", "streams"])
@pytest.mark.parametrize("bad", [[1.0] * 3, [1.0] * 5, [1.0, -0.5, 1.0, 1.0], [1.0, float("nan"), 1.0, 1.0],
                                 [1.0, float("inf"), 1.0, 1.0], "many", [[1.0] * 4]], ids=str)  # fmt: skip
def test_bad_weights_leave_the_state_as_it_was(method, streams, bad):
    model = many(method) if streams else alone(method)
    ids = ["a", "b", "a", "new"]
    with neotta.streams(ids[:3]):
        run(model, batch(3))
    before = state(model)
    with pytest.raises(InputError, match="weight"), neotta.streams(ids):
        run(model, batch(4, 2), bad)
    same(state(model), before, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [0, 2, 4])
@pytest.mark.parametrize("block", [lambda: neotta.streams(["a", "b", "new"]), lambda: neotta.rows([1.0, 0.5, 0.0])])
def test_as_many_values_as_rows_are_needed(block, rows):
    model = many()
    answer(model, batch(2), ["a", "b"])
    before = state(model)
    with neotta.streams(["new"] * rows), block(), pytest.raises(InputError, match=f"got 3 .* batch of {rows}"):
        run(model, batch(rows))
    same(state(model), before, rtol=0, atol=0)


def test_values_hold_for_every_call_of_a_block():
    model = many()
    with neotta.streams(["a", "b", "a"]), neotta.rows([1.0, 0.0, 1.0]):
        for seed in range(2):
            run(model, batch(3, seed))
    assert neotta.head(model).streams.counts() == {"a": 4}


@pytest.mark.parametrize("stream", ["gate", 7, torch.tensor(7)])
def test_one_id_for_all_rows(stream):
    model, other = many(), many()
    with neotta.streams(stream):
        for rows in (3, 1, 0):
            run(model, batch(rows, rows))
    for rows in (3, 1):
        answer(other, batch(rows, rows), [stream] * rows)
    same(state(model), state(other))


@pytest.mark.parametrize(("method", "options"), [("neo", {}), ("neo-stream", {"prior": False})])
def test_compiled_graphs_heed_both(method, options):
    torch._dynamo.reset()
    model, eager = alone(method, **options), alone(method, **options)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for each in (compiled, eager):
        run(each, batch(6))
        run(each, batch(6, 2), [1.0, 0.0, 0.5, 1.0, 0.0, 2.0])
        with neotta.paused(each):
            run(each, batch(6, 3))
    same(state(model), state(eager), rtol=1e-6, atol=1e-6)


@METHODS
def test_adapters_take_both(method):
    images = torch.randn(4, 3, 2, 1, generator=torch.Generator().manual_seed(0))

    def make():
        torch.manual_seed(0)
        return neotta.create(method, nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4)))

    adapter, other, third = make(), make(), make()
    other(images[[0, 2, 3]])
    with neotta.rows([1.0, 0.0, 1.0, 1.0]):
        adapter(images)
        third.predict_embeddings(images.flatten(1))
    same(adapter.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-5)
    assert int(third.state_dict()["tallies"][0]) == 3
    before = adapter.state_dict()
    with neotta.paused(adapter):
        torch.testing.assert_close(adapter(images), adapter(images, adapt=False))
    for bad in ([1.0], [1.0] * 5, [-1.0] * 4):
        with pytest.raises(InputError, match="weight"), neotta.rows(bad):
            adapter(images)
    same(adapter.state_dict(), before, rtol=0, atol=0)


def test_methods_that_cannot_weight_samples_say_so():
    adapter = neotta.create("t3a", nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 4)))
    images = torch.randn(4, 3, 2, 1)
    before = adapter.state_dict()
    with pytest.raises(InputError, match="t3a cannot weight samples"), neotta.rows([1.0, 1.0, 0.0, 1.0]):
        adapter(images)
    same(adapter.state_dict(), before, rtol=0, atol=0)
    with neotta.paused(adapter):
        adapter(images)
    same(adapter.state_dict(), before, rtol=0, atol=0)
