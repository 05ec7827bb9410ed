from __future__ import annotations

import asyncio
import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import CLASSES, FEATURES, alone, answer, batch, many, plain
from torch import nn

import neotta
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    OptionError,
    StateMismatchError,
)
from neotta.neo.mean import MeanRule
from neotta.neo.streams import Streams

VARIANTS = [
    ("neo", {}),
    ("neo", {"weighting": "batch"}),
    ("neo", {"shrinkage": "james-stein"}),
    ("neo-continual", {"alpha": 0.3}),
    ("neo-continual", {"alpha": 0.2, "debias": True}),
    ("neo-continual", {"alpha": 1.0, "debias": True}),
    ("neo-mse", {}),
    ("neo-stream", {}),
    ("neo-stream", {"prior": False}),
]


@pytest.mark.parametrize(("method", "options"), VARIANTS, ids=str)
@settings(max_examples=10)
@given(plan=st.lists(st.lists(st.integers(0, 5), max_size=9), max_size=6), seed=st.integers(0, 1000))
def test_a_mixed_batch_answers_as_each_stream_would_alone(method, options, plan, seed):
    together = many(method, **options)
    apart = {stream: alone(method, **options) for stream in range(6)}
    for turn, ids in enumerate(plan):
        data = batch(len(ids), seed + turn)
        logits = answer(together, data, ids)
        assert logits.shape == (len(ids), CLASSES)
        for stream in set(ids):
            mine = torch.tensor(ids) == stream
            with torch.no_grad():
                torch.testing.assert_close(logits[mine], apart[stream](data[mine]), rtol=1e-5, atol=2e-5)
    for stream, count in neotta.head(together).streams.counts().items():
        single = neotta.head(apart[stream]).streams
        assert count == single.total()
        state = neotta.head(together).streams.state(stream)
        torch.testing.assert_close(state, single.state(), rtol=1e-5, atol=1e-5)


def test_ids_are_strings_numbers_arrays_and_tensors():
    model = many()
    answer(model, batch(3), ["7", 7, "gate"])
    answer(model, batch(3), torch.tensor([7, 8, 8]))
    answer(model, batch(2), np.array([8, 9]))
    answer(model, batch(2), [np.int64(9), np.str_("gate")])
    answer(model, batch(2), (name for name in ("gate", 9)))
    assert neotta.head(model).streams.counts() == {"7": 1, 7: 2, "gate": 3, 8: 3, 9: 3}
    assert neotta.head(model).count == 12


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        (["a"], "1 stream ids for a batch of 3"),
        ([], "0 stream ids for a batch of 3"),
        (["a", "b", None], "got None"),
        ([1.0, 2.0, 3.0], r"got 1\.0"),
        ([True, False, True], "got True"),
        (b"abc", "a list of stream ids, one per sample, or one for all"),
        (5.0, "a list of stream ids"),
        ({"a"}, "a list of stream ids"),
        ({"a": 1, "b": 2, "c": 3}, "a list of stream ids"),
        (True, "got True"),
        (torch.tensor(3.0), "a list of stream ids"),
        (torch.zeros(3), r"got 0\.0"),
        (torch.zeros(3, 1, dtype=torch.int64), r"got \[0\]"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_wrong_ids_are_named_and_change_nothing(ids, match):
    model = many()
    with pytest.raises(InputError, match=match):
        answer(model, batch(3), ids)
    assert neotta.head(model).streams.counts() == {}


def test_a_call_without_ids_says_what_to_do():
    model = many()
    with pytest.raises(InputError, match=r"with neotta\.streams\(ids\)"):
        model(batch(3))
    with neotta.streams(["a"]):
        model(batch(1))
    with pytest.raises(InputError, match="got no stream ids"):
        model(batch(1))


def test_frozen_nothing_changes_and_unknown_streams_get_the_plain_answer():
    model = many()
    answer(model, batch(4), ["a", "a", "b", "b"])
    head = neotta.head(model)
    head.freeze()
    before = head.streams.everything()
    logits = answer(model, batch(3, 2), ["a", "new", "b"])
    torch.testing.assert_close(logits[1], plain()(batch(3, 2))[1])
    after = head.streams.everything()
    assert head.streams.counts() == {"a": 2, "b": 2}
    assert sorted(before[0]) == sorted(after[0])
    for name in before[0]:
        assert torch.equal(before[1][before[0].index(name)], after[1][after[0].index(name)])


def test_bad_rows_stay_out_of_their_stream_alone():
    model = many("neo", shrinkage="james-stein")
    data = batch(5)
    data[1, 2], data[4, 0] = float("nan"), float("inf")
    with pytest.warns(RuntimeWarning, match="2 rows contain NaN"):
        logits = answer(model, data, ["a", "a", "b", "b", "c"])
    assert logits[[0, 2, 3]].isfinite().all()
    assert not logits[[1, 4]].isfinite().any()
    streams = neotta.head(model).streams
    assert streams.counts() == {"a": 1, "b": 2, "c": 0}
    assert [int(streams.state(name)[0, 1]) for name in "abc"] == [1, 0, 1]
    assert torch.equal(streams.rule.state(streams.state("a")).total[0].float(), data[0])
    torch.testing.assert_close(streams.rule.state(streams.state("b")).square[0].float(), data[2:4].square().sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_keep_the_table_as_it_is(dtype):
    model = many().to(dtype)
    assert answer(model, batch(8).to(dtype), list("aabbccdd")).dtype == dtype
    assert neotta.head(model).streams.table.dtype == torch.float64


def test_inference_mode_and_back_while_the_table_grows():
    model = many()
    with torch.inference_mode():
        answer(model, batch(100), list(range(100)))
    answer(model, batch(200), list(range(200)))
    assert neotta.head(model).count == 300


def test_the_mean_stays_right_over_many_updates():
    model, single = many(), alone()
    for turn in range(500):
        answer(model, batch(1, turn), ["a"])
        with torch.no_grad():
            single(batch(1, turn))
    torch.testing.assert_close(neotta.head(model).offset("a"), neotta.head(single).offset(), rtol=1e-12, atol=0)


def test_threads_have_their_own_ids_and_lose_no_update():
    model = many()

    def run(name):
        for turn in range(50):
            answer(model, batch(2, turn), [name, "shared"])

    threads = [threading.Thread(target=run, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert neotta.head(model).streams.counts() == {**dict.fromkeys("abcd", 50), "shared": 200}


@pytest.mark.parametrize("way", ["to_thread", "run_in_executor"])
def test_ids_set_in_an_event_loop_reach_its_threads(way):
    model = many()

    async def ask(name):
        loop = asyncio.get_running_loop()
        if way == "to_thread":
            with neotta.streams(name):
                await asyncio.to_thread(model, batch(2))
        else:
            await loop.run_in_executor(None, neotta.streams(name)(model), batch(2))
            with neotta.streams(name), pytest.raises(InputError, match=r"do not reach loop\.run_in_executor"):
                await loop.run_in_executor(None, model, batch(2))
            await loop.run_in_executor(None, neotta.paused(model)(neotta.streams(name)(model)), batch(2))

    async def ask_all():
        await asyncio.gather(*(ask(name) for name in "abcd" * 5))

    asyncio.run(ask_all())
    assert neotta.head(model).streams.counts() == dict.fromkeys("abcd", 10)


def test_a_compiled_model_gives_the_same_answers():
    torch._dynamo.reset()
    model, eager = many(), many()
    compiled = torch.compile(model, backend="eager")
    for rows in (3, 5):
        torch.testing.assert_close(answer(compiled, batch(rows), range(rows)), answer(eager, batch(rows), range(rows)))


@pytest.mark.parametrize("method", ["neo", "neo-stream"])
def test_many_rows_of_one_stream_and_few_of_others(method):
    model, apart = many(method), {name: alone(method) for name in "abc"}
    for ids in (["a"] * 130 + ["b"] + ["c"] * 3, ["b"] + ["a"] * 70 + ["c", "a"]):
        data = batch(len(ids), len(ids))
        logits = answer(model, data, ids)
        for name in "abc":
            mine = torch.tensor([each == name for each in ids])
            with torch.no_grad():
                torch.testing.assert_close(logits[mine], apart[name](data[mine]), rtol=1e-5, atol=1e-5)
    for name, single in apart.items():
        mine, wanted = neotta.head(model).streams.state(name), neotta.head(single).streams.state()
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-5)


def test_one_id_is_that_of_all_samples():
    model, single = many("neo-stream"), alone("neo-stream")
    for rows in (20, 1, 0, 7):
        with torch.no_grad():
            torch.testing.assert_close(answer(model, batch(rows), "gate"), single(batch(rows)))
    answer(model, batch(2), 7)
    assert neotta.head(model).streams.counts() == {"gate": 28, 7: 2}


def test_weights_are_those_of_the_rows_and_streams_of_no_weight_stay_unknown():
    model = many("neo-stream")
    with neotta.rows([1, 0, 2, 0]):
        answer(model, batch(4), ["a", "b", "a", "a"])
    assert neotta.head(model).streams.counts() == {"a": 2}
    with neotta.rows([0.0, 0.0]):
        answer(model, batch(2), ["a", "c"])
    assert neotta.head(model).streams.counts() == {"a": 2}


def test_a_blank_row_stays_blank():
    """The row of streams that were never seen."""
    model = many("neo-stream")
    streams = neotta.head(model).streams
    for ids in (list("abc"), list("aab"), ["d"] * 3):
        with neotta.rows([1, 0, 1]):
            answer(model, batch(3), ids)
        with neotta.rows([0, 0, 0]):
            answer(model, batch(3), list("xyz"))
        with neotta.paused(model):
            answer(model, batch(3), ["w", "a", "a"])
    assert torch.equal(streams.table[:1], streams.layout.blank())
    assert set(streams.counts()) == set("abcd")


# ---- capacity without a folder


def test_the_least_recently_used_streams_are_forgotten():
    model = many(capacity=3)
    for ids in (["a"], ["b"], ["c"], ["a"], ["d"]):
        answer(model, batch(1), ids)
    streams = neotta.head(model).streams
    assert streams.counts() == {"c": 1, "a": 2, "d": 1}
    answer(model, batch(1), ["b"])  # begins again
    assert streams.counts() == {"a": 2, "d": 1, "b": 1}
    with pytest.raises(InputError, match="batch of 4 streams does not fit into a capacity of 3"):
        answer(model, batch(4), list("wxyz"))
    assert streams.counts() == {"a": 2, "d": 1, "b": 1}
    assert len(streams.table) <= 4


def test_streams_of_the_call_itself_are_never_forgotten():
    model = many(capacity=16)
    answer(model, batch(16), list(range(16)))
    answer(model, batch(16), [*range(1, 16), "new"])  # one has to go, and two would go at once if two could
    assert neotta.head(model).streams.counts() == {**dict.fromkeys(range(1, 16), 2), "new": 1}


@settings(max_examples=25)
@given(plan=st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=12), capacity=st.integers(5, 20))
def test_forgetting_is_a_plain_lru(plan, capacity):
    model, recent = many(capacity=capacity), {}
    for turn, ids in enumerate(plan):
        for item in dict.fromkeys(ids):
            recent[item] = recent.pop(item, 0)
        evicting = len(recent) > capacity
        answer(model, batch(len(ids), turn), ids)
        for item in ids:
            recent[item] += 1
        counts = neotta.head(model).streams.counts()
        assert len(counts) <= capacity
        if evicting:  # several may leave together
            assert len(counts) > capacity - max(1, capacity // 8) or len(counts) >= len(set(ids))
        recent = {item: recent[item] for item in list(recent)[len(recent) - len(counts) :]}
        assert counts == recent
    streams = neotta.head(model).streams
    rows = [*streams._rows.values(), *streams._free]
    assert len(set(rows)) == len(rows)
    assert 0 not in rows
    assert torch.equal(streams.table[:1], streams.layout.blank())


def test_copies_are_independent():
    model = many()
    answer(model, batch(2), ["ab", "c"])
    twin = copy.deepcopy(model)
    answer(twin, batch(2), ["ab", "c"])
    assert (neotta.head(model).count, neotta.head(twin).count) == (2, 4)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("method", ["neo", "neo-stream"])
def test_a_copy_goes_on_exactly(copied, method):
    for model, ids in ((many(method, capacity=5), list("abacb")), (alone(method), None)):

        def run(each, seed, ids=ids):
            with torch.no_grad(), neotta.streams(ids or [0]):
                return each(batch(5, seed))

        run(model, 0)
        twin = copied(model)
        assert torch.equal(run(model, 1), run(twin, 1))
        assert neotta.head(model).count == neotta.head(twin).count == 10
        neotta.reset(twin)
        assert (neotta.head(model).count, neotta.head(twin).count) == (10, 0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda streams: pickle.loads(pickle.dumps(streams))])
@pytest.mark.parametrize("ids", [True, False])
def test_a_copy_during_updates_is_of_one_moment(copied, ids):
    model, stop = many() if ids else alone(), threading.Event()
    streams = neotta.head(model).streams

    def update():
        step = 0
        while not stop.is_set():
            step += 1  # the mean of 1, 3, 5, ... is their number
            value = 1.0 if ids else 2.0 * step - 1
            with torch.no_grad(), neotta.streams([f"camera {step % 2000 // 20}"]):
                model(torch.full((1, FEATURES), value))

    thread = threading.Thread(target=update)
    thread.start()
    try:
        for _ in range(60):
            twin = copied(streams)
            names, states = twin.everything()
            means = twin.rule.offset(states)
            assert len(names) == len(means) if ids else not names
            wanted = torch.ones_like(means) if ids else states[:, :1].expand_as(means)
            torch.testing.assert_close(means, wanted)
            if ids:
                assert (states[:, 0] > 0).all()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("move", ["double", "half", "bfloat16", "float"])
def test_moving_the_model_keeps_the_table(move):
    for model in (many("neo-stream"), alone("neo-stream")):
        answer(model, batch(20), list("ab") * 10)
        before = neotta.head(model).streams.everything()[1]
        getattr(model, move)()
        streams = neotta.head(model).streams
        assert streams.table.dtype == streams.baseline.dtype == torch.float64
        assert torch.equal(streams.everything()[1], before)
        data = batch(4).to(model.classes.weight.dtype)
        assert answer(model, data, list("abca")).dtype == data.dtype
        assert neotta.head(model).count == 24


def test_a_table_moves_to_another_device():
    streams = neotta.head(many().to("meta")).streams
    assert streams.table.device.type == streams.baseline.device.type == "meta"


# ---- the table itself


def seen(ids, **how):
    streams = Streams(MeanRule(), FEATURES, many=True, **how)
    with neotta.streams(ids):
        streams.step(batch(len(ids)), None)
    return streams


def test_everything_can_be_put_into_another_table():
    one = seen(["a", 3, "a", "ü"])
    for other in (seen(["x", "y"]), seen(["x"], capacity=2), Streams(MeanRule(), FEATURES, many=True)):
        other.replace(*one.everything())
        held = other.counts()
        assert held == ({"a": 2, 3: 1, "ü": 1} if other.capacity is None else dict(list(one.counts().items())[-2:]))
        for name in held:
            assert torch.equal(other.state(name), one.state(name))
    other.replace([], other.layout.blank(0))
    assert other.everything()[0] == []
    assert other.total() == 0


def test_a_state_can_be_read_and_put_back():
    one, single = seen(list("aab")), Streams(MeanRule(), FEATURES)
    copied = one.state("a")
    copied.zero_()
    assert one.counts()["a"] == 2
    one.put(one.state("a"), "new")
    assert one.counts() == {"a": 2, "b": 1, "new": 2}
    single.put(one.state("b"))
    assert torch.equal(single.state(), one.state("b"))
    assert torch.equal(one.alone("a").state(), one.state("a"))
    for wrong, match in (
        (lambda: one.state(), "name a stream"),
        (lambda: single.state("a"), "no streams"),
        (lambda: one.state("x"), "no stream 'x'"),
        (lambda: one.put(copied), "name a stream"),
        (lambda: one.state(1.5), "string or an integer"),
        (lambda: single.reset("a"), "no streams"),
    ):
        with pytest.raises(InputError, match=match):
            wrong()
    with pytest.raises(OptionError, match="no folder"):
        one.flush()


def test_a_stream_that_was_reset_begins_again():
    streams = seen(list("aab"))
    streams.reset("a")
    streams.reset("never seen")
    with neotta.streams(["c", "a"]):
        streams.step(batch(2), None)
    assert streams.counts() == {"b": 1, "c": 1, "a": 1}
    torch.testing.assert_close(streams.rule.offset(streams.state("a"))[0].float(), batch(2)[1])
    streams.reset()
    assert streams.everything()[0] == []
    assert streams.total() == 0


# ---- one stream of many


def test_one_stream_can_be_reset_folded_saved_and_loaded(tmp_path):
    model = many("neo", shrinkage="james-stein")
    ids = ["a", "a", "b", "b", "b"]
    answer(model, batch(5), ids)
    neotta.head(model).freeze()
    logits = answer(model, batch(5), ids)
    neotta.save(model, tmp_path / "b", stream="b")

    ordinary = plain()
    neotta.load(ordinary, tmp_path / "b")
    assert type(neotta.head(ordinary)) is neotta.NEOHead
    assert neotta.head(ordinary).count == 3
    other = many("neo", shrinkage="james-stein")
    neotta.load(other, tmp_path / "b", stream=77)
    assert neotta.head(other).streams.counts() == {77: 3}

    neotta.reset(model, stream="a")
    assert neotta.head(model).streams.counts() == {"b": 3}
    neotta.fold(model, stream="b")
    assert type(model.classes) is nn.Linear
    torch.testing.assert_close(model(batch(5))[2:], logits[2:], rtol=1e-5, atol=1e-5)
    neotta.restore(model)
    assert torch.equal(model(batch(5)), plain()(batch(5)))


def test_streams_that_are_not_there(tmp_path):
    model = many()
    answer(model, batch(1), ["a"])
    for wrong in (
        lambda: neotta.fold(model, stream="x"),
        lambda: neotta.save(model, tmp_path / "x", stream="x"),
        lambda: neotta.head(model).offset("x"),
    ):
        with pytest.raises(InputError, match="no stream 'x'"):
            wrong()
    with pytest.raises(InputError, match="stream='gate'"):
        neotta.fold(model)
    with pytest.raises(InputError, match="name a stream"):
        neotta.head(model).offset()
    for wrong in (neotta.reset, neotta.fold):
        with pytest.raises(InputError, match="streams=True"):
            wrong(alone(), stream="a")
    with pytest.raises(InputError, match="string or an integer"):
        neotta.reset(model, stream=1.5)
    assert neotta.head(model).streams.counts() == {"a": 1}


def test_a_saved_state_goes_on_exactly(tmp_path):
    model, twin = many("neo-continual", alpha=0.2), plain()
    answer(model, batch(4), ["a", "b", 3, "a"])
    neotta.save(model, tmp_path / "all")
    neotta.load(twin, tmp_path / "all")
    ids = [3, "a", "ü", "b"]
    assert torch.equal(answer(model, batch(4, 2), ids), answer(twin, batch(4, 2), ids))
    neotta.load(model, tmp_path / "all")
    assert neotta.head(model).streams.counts() == {"a": 2, "b": 1, 3: 1}


def test_states_that_do_not_fit_are_refused(tmp_path):
    model = many()
    answer(model, batch(2), ["a", "b"])
    neotta.save(model, tmp_path / "all")
    neotta.save(model, tmp_path / "a", stream="a")
    with pytest.raises(StateMismatchError, match="many streams"):
        neotta.load(alone(), tmp_path / "all")
    with pytest.raises(StateMismatchError, match="one for each stream"):
        neotta.load(model, tmp_path / "a")
    with pytest.raises(StateMismatchError, match="many streams"):
        neotta.load(model, tmp_path / "all", stream="a")
    untouched = plain(classes=3)
    with pytest.raises(StateMismatchError, match=r"vectors of|other head weights"):
        neotta.load(untouched, tmp_path / "all")
    assert type(untouched.classes) is nn.Linear
    assert neotta.head(model).streams.counts() == {"a": 1, "b": 1}


def test_wrong_options():
    with pytest.raises(OptionError, match="streams=True"):
        neotta.adapt(plain(), "neo", head="classes", capacity=5)
    for wrong in (0, -1, 2.0, True, "5"):
        with pytest.raises(OptionError, match="expected an integer"):
            many(capacity=wrong)
    with pytest.raises(OptionError, match="neo-bn"):
        many("neo-bn")
    with pytest.raises(AlreadyAdaptedError, match="one state per stream"):
        neotta.adapt(many(), "neo", head="classes")


# ---- memory


def test_the_table_has_at_most_twice_the_rows_it_needs():
    streams = Streams(MeanRule(), 768, many=True)
    for start in range(0, 3000, 300):
        with neotta.streams(range(start, start + 300)):
            streams.step(torch.ones(300, 768), None)
        assert len(streams.table) <= 2 * (start + 302)
    assert streams.table.nbytes == len(streams.table) * 8 * 773


@pytest.mark.parametrize("many", [False, True])
def test_a_state_to_begin_with_outlasts_a_reset_of_everything(many):
    streams = Streams(MeanRule(), FEATURES, many=many)
    first = streams.layout.blank() + 3
    streams.begin_with(first)
    for _ in range(2):
        with neotta.streams(["a"] * 2):
            streams.step(torch.ones(2, FEATURES), None)
        assert streams.state("a" if many else None)[0, 0] == 5
        streams.reset()
        assert torch.equal(streams.table[:1], first)
