from __future__ import annotations

import copy
import subprocess
import sys
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

VARIANTS = [
    ("neo", {}),
    ("neo", {"weighting": "batch"}),
    ("neo", {"shrinkage": "james-stein"}),
    ("neo-continual", {"alpha": 0.3}),
    ("neo-continual", {"alpha": 0.2, "debias": True}),
    ("neo-continual", {"alpha": 1.0, "debias": True}),
    ("neo-mse", {}),
]


@pytest.mark.parametrize(("method", "options"), VARIANTS, ids=str)
@settings(max_examples=25)
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
        table, single = neotta.head(together).streams.centroid(stream), neotta.head(apart[stream]).centroid
        assert count == int(single.count)
        for name, buffer in single.named_buffers():
            torch.testing.assert_close(getattr(table, name), buffer, rtol=1e-5, atol=1e-5)


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
        ("abc", "a list of stream ids, one per sample"),
        (5, "a list of stream ids, one per sample"),
        ({"a"}, "a list of stream ids"),
        ({"a": 1, "b": 2, "c": 3}, "a list of stream ids"),
        (torch.tensor(3), "a list of stream ids, one per sample"),
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
    before = head.streams.state()
    logits = answer(model, batch(3, 2), ["a", "new", "b"])
    torch.testing.assert_close(logits[1], plain()(batch(3, 2))[1])
    after = head.streams.state()
    assert head.streams.counts() == {"a": 2, "b": 2}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_bad_rows_stay_out_of_their_stream_alone():
    model = many("neo", shrinkage="james-stein")
    data = batch(5)
    data[1, 2], data[4, 0] = float("nan"), float("inf")
    with pytest.warns(RuntimeWarning, match="2 of 5"):
        logits = answer(model, data, ["a", "a", "b", "b", "c"])
    assert logits[[0, 2, 3]].isfinite().all()
    assert not logits[[1, 4]].isfinite().any()
    streams = neotta.head(model).streams
    assert streams.counts() == {"a": 1, "b": 2, "c": 0}
    assert [int(streams.centroid(name).rejected) for name in "abc"] == [1, 0, 1]
    torch.testing.assert_close(streams.centroid("a").mean.float(), data[0])
    torch.testing.assert_close(streams.centroid("b").scatter.float(), (data[2] - data[3]).square().sum() / 2)


def test_leading_dimensions_belong_to_their_sample():
    model, flat = many(), many()
    tokens = batch(12).reshape(3, 4, FEATURES)
    logits = answer(model, tokens, ["a", "b", "a"])
    rows = answer(flat, tokens.reshape(12, FEATURES), [name for name in "aba" for _ in range(4)])
    torch.testing.assert_close(logits.reshape(12, CLASSES), rows)
    assert answer(model, batch(1)[0], ["a"]).shape == (CLASSES,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_keep_the_table_as_it_is(dtype):
    model = many().to(dtype)
    assert answer(model, batch(8).to(dtype), list("aabbccdd")).dtype == dtype
    assert neotta.head(model).streams.cache.mean.dtype == torch.float32


def test_inference_mode_and_back_while_the_table_grows():
    model = many()
    with torch.inference_mode():
        answer(model, batch(100), list(range(100)))
    answer(model, batch(200), list(range(200)))
    assert neotta.head(model).count == 300


def test_the_mean_stays_right_over_many_updates():
    model, single = many(), alone()
    for turn in range(2000):
        answer(model, batch(1, turn), ["a"])
        with torch.no_grad():
            single(batch(1, turn))
    exact = neotta.head(single).centroid.mean
    assert ((neotta.head(model).streams.centroid("a").mean - exact) / exact).abs().max() < 2e-6


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


def test_a_compiled_model_gives_the_same_answers():
    torch._dynamo.reset()
    model, eager = many(), many()
    compiled = torch.compile(model, backend="eager")
    for rows in (3, 5):
        torch.testing.assert_close(answer(compiled, batch(rows), range(rows)), answer(eager, batch(rows), range(rows)))


def test_copies_are_independent():
    model = many()
    answer(model, batch(2), ["ab", "c"])
    twin = copy.deepcopy(model)
    answer(twin, batch(2), ["ab", "c"])
    assert (neotta.head(model).count, neotta.head(twin).count) == (2, 4)


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
        lambda: neotta.head(model).streams.centroid("x"),
    ):
        with pytest.raises(InputError, match="no stream 'x'"):
            wrong()
    with pytest.raises(InputError, match=r"fold\(model, stream="):
        neotta.fold(model)
    with pytest.raises(InputError, match="one centroid per stream"):
        _ = neotta.head(model).centroid
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
    with pytest.raises(StateMismatchError, match="adapted with neo"):
        neotta.load(alone(), tmp_path / "all")
    with pytest.raises(StateMismatchError, match="one centroid per stream"):
        neotta.load(model, tmp_path / "a")
    with pytest.raises(StateMismatchError, match="contains many streams"):
        neotta.load(model, tmp_path / "all", stream="a")
    untouched = plain(classes=3)
    with pytest.raises(StateMismatchError, match="other head weights"):
        neotta.load(untouched, tmp_path / "all")
    assert type(untouched.classes) is nn.Linear
    assert neotta.head(model).streams.counts() == {"a": 1, "b": 1}


def test_wrong_options(tmp_path):
    with pytest.raises(OptionError, match="streams=True"):
        neotta.adapt(plain(), "neo", head="classes", capacity=5)
    with pytest.raises(OptionError, match="needs a folder"):
        many(capacity=5)
    with pytest.raises(OptionError, match="folder needs a capacity"):
        many(folder=tmp_path)
    with pytest.raises(OptionError, match="expected an integer"):
        many(capacity=0, folder=tmp_path)
    with pytest.raises(OptionError, match="neo-bn"):
        many("neo-bn")
    with pytest.raises(AlreadyAdaptedError, match="one centroid per stream"):
        neotta.adapt(many(), "neo", head="classes")


# ---- memory


MEMORY = """
import resource, torch, neotta
from neotta.neo.rules import MeanRule
from neotta.neo.stream_memory import StreamMemory
memory = StreamMemory(768, MeanRule())
data = torch.randn(1000, 768)
def step(start):
    with neotta.streams(range(start, start + 1000)):
        memory.step(data, 1000)
step(0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for start in range(1000, 51_000, 1000):
    step(start)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 50_000)
"""


def test_a_stream_takes_little_more_memory_than_its_numbers():
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 4000  # bytes at the peak, of which 3072 are the mean: a million fit into 4 GB
