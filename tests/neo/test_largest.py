"""One bound on large numbers: what is taken in can be saved, what is saved loads, what is loaded was checked."""

from __future__ import annotations

import sqlite3
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.deploy import LogitRecenter
from neotta.errors import StateError
from neotta.neo.centroid import Centroid
from neotta.neo.state import state_of
from neotta.neo.statefile import State, read_arrays, write_arrays

C = 4
METHODS = ["neo", "neo-continual", "neo-stream"]
ADAPTERS = [*METHODS, "neo-mse"]


def identity(dtype=torch.float32):
    """A model whose logits are its input."""
    layer = nn.Linear(C, C, bias=False)
    layer.weight.data = torch.eye(C)
    return nn.Sequential(layer).to(dtype)


def show(model, rows, ids=None):
    with torch.no_grad(), warnings.catch_warnings(), neotta.streams(ids or ["a"] * len(rows)):
        warnings.simplefilter("ignore", RuntimeWarning)  # rows that are too large
        return model(rows)


def rows_of(size, dtype, kind):
    signs = torch.tensor([[1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, 0.0]], dtype=dtype)
    return size * (signs if kind == "mixed" else signs[:1].expand(3, -1))


@settings(max_examples=30)
@given(
    st.floats(0, 38) | st.just(16.0) | st.floats(15.99, 16.01),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from(["mixed", "same"]),
    st.booleans(),
)
@pytest.mark.parametrize("method", METHODS)
def test_whatever_a_model_has_seen_can_be_saved_and_loaded(tmp_path_factory, method, power, dtype, kind, streams):
    path = tmp_path_factory.mktemp("large") / "state"
    model, twin = (neotta.adapt(identity(dtype), method, streams=streams) for _ in range(2))
    for size in (1.0, 10.0**power, 10.0**power, 1.0):
        show(model, rows_of(size, dtype, kind))
    neotta.save(model, path)
    neotta.load(twin, path)
    assert torch.isfinite(show(twin, torch.ones(2, C, dtype=dtype))).all()


@settings(max_examples=20)
@given(st.floats(0, 38) | st.just(16.0), st.sampled_from(["mixed", "same"]))
@pytest.mark.parametrize("method", ADAPTERS)
def test_whatever_an_adapter_has_seen_can_be_saved_and_loaded(tmp_path_factory, method, power, kind):
    path = tmp_path_factory.mktemp("large") / "state"
    adapter, twin = (neotta.create(method, identity()) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for size in (1.0, 10.0**power, 10.0**power, 1.0):
            adapter.predict_embeddings(rows_of(size, torch.float32, kind))
    adapter.save(path)
    twin.load(path)
    ones = torch.ones(2, C)
    answer = twin.predict_embeddings(ones, adapt=False)
    assert torch.equal(answer, adapter.predict_embeddings(ones, adapt=False))
    assert torch.isfinite(answer).all()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_rows_that_float32_cannot_subtract_are_excluded_and_counted(method, streams):
    model = neotta.adapt(identity(), method, streams=streams)
    rows = torch.tensor([1e15, 1.1e16, -3e38])[:, None].expand(-1, C) * torch.tensor([1.0, 1.0, 1.0, -1.0])
    with (
        torch.no_grad(),
        neotta.streams(["a"] * 3),
        pytest.warns(RuntimeWarning, match=r"2 of 3 .* or are too large: predicted, but excluded"),
    ):
        model(rows)
    seen = neotta.head(model).memory.centroid("a" if streams else None)
    assert (int(seen.count), int(seen.rejected)) == (1, 2)


def test_float64_takes_in_more_but_not_a_table_of_streams():
    rows = torch.full((1, C), 1e20, dtype=torch.float64)
    for streams, rejected in ((False, 0), (True, 1)):
        model = neotta.adapt(identity(torch.float64), "neo-stream", streams=streams)
        show(model, rows)
        assert int(neotta.head(model).memory.centroid("a" if streams else None).rejected) == rejected


def test_a_centroid_goes_by_the_smaller_of_two_dtypes():
    centroid = Centroid(2, variance=True)
    with pytest.warns(RuntimeWarning, match="1 of 2"):
        centroid.update(torch.tensor([[1e17, 0.0], [1.0, 2.0]]))
    centroid.update(torch.tensor([[1e17, 0.0]], dtype=torch.float64))
    assert (int(centroid.count), int(centroid.rejected)) == (2, 1)


@pytest.mark.parametrize("entry", ["mean", "start", "shift"])
@pytest.mark.parametrize("value", [2e17, -2e17, 3e38, 1e60])
def test_every_entry_that_is_subtracted_is_bounded(entry, value, tmp_path):
    model = neotta.adapt(identity(), "neo-stream")
    show(model, torch.randn(8, C, generator=torch.Generator().manual_seed(0)))
    state = state_of(model)
    name = next(name for name in state.tensors if name.endswith(f".{entry}"))
    bad = State({**state.tensors, name: torch.full_like(state.tensors[name], value)}, state.about)
    with pytest.raises(StateError, match=f"{entry}.*too large .* at most 1e\\+17"):
        neotta.load(model, bad)
    adapter = neotta.create("neo-stream", identity())
    with pytest.raises(StateError, match=f"{entry}.*too large"):
        adapter.load_state_dict({**adapter.state_dict(), entry: bad.tensors[name]})
    adapter.save(tmp_path / "state")
    good = (tmp_path / "state").read_bytes()
    adapter.memory.get_buffer(entry).fill_(value)
    with pytest.raises(StateError, match=r"too large .*: nothing was saved; reset\(\) begins again"):
        adapter.save(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == good, "the last good state stays"


@pytest.mark.parametrize("rule", ["neo", "neo-stream"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_are_bounded_whatever_their_dtype(rule, dtype, tmp_path):
    recenter = LogitRecenter(rule=rule)
    rows = np.array([[1.0, -2.0, 0.5], [1e17, 0.0, -1e17], [2.0, 1.0, -1.0]], dtype)
    with pytest.warns(RuntimeWarning, match="1 of 3 rows"):
        recenter.partial_fit(rows)
    assert (recenter.count_, recenter.rejected_) == (2, 1)
    recenter.save(tmp_path / "state")
    LogitRecenter(rule=rule).load(tmp_path / "state")
    arrays, about = read_arrays(tmp_path / "state")
    entry = "shift" if rule == "neo-stream" else "mean"
    for value in (2e17, -1e300):
        write_arrays(tmp_path / "bad", {**arrays, entry: np.full_like(arrays[entry], value)}, about)
        with pytest.raises(StateError, match=f"{entry}.*too large"):
            recenter.load(tmp_path / "bad")
    assert recenter.count_ == 2


@pytest.mark.parametrize("method", ["neo+t3a", "rdumb+neo", "rdumb+neo+t3a"])
def test_methods_made_of_others_check_what_those_check(method):
    adapter = neotta.create(method, identity())
    before = adapter.state_dict()
    name = next(name for name in before if name.endswith("/mean"))
    with pytest.raises(StateError, match=r"mean.*too large"):
        adapter.load_state_dict({**before, name: torch.full_like(before[name], 3e38)})
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_a_table_of_streams_is_as_narrow_in_float64():
    model = neotta.adapt(identity(torch.float64), "neo-stream", streams=True)
    show(model, torch.ones(2, C, dtype=torch.float64))
    state = state_of(model)
    name = next(name for name in state.tensors if name.endswith(".mean"))
    with pytest.raises(StateError, match=r"mean.*too large"):
        neotta.load(model, State({**state.tensors, name: torch.full_like(state.tensors[name], 1e20)}, state.about))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_streams_at_the_bound_come_back_from_the_store(method, dtype, tmp_path):
    model = neotta.adapt(identity(dtype), method, streams=True, capacity=2, folder=tmp_path)
    for turn in range(3):
        for stream in "abcd":
            for kind in ("mixed", "same"):
                answer = show(model, rows_of(9.9e15 * (-1) ** turn, dtype, kind), [stream] * 3)
                assert torch.isfinite(answer).all()
    assert set(neotta.head(model).streams.counts().values()) == {18}


@pytest.mark.parametrize("method", ["neo", "neo-stream"])
@pytest.mark.parametrize("value", [3e38, -2e17])
def test_a_store_with_a_huge_mean_and_a_valid_checksum_is_refused(method, value, tmp_path):
    model = neotta.adapt(identity(), method, streams=True, capacity=2, folder=tmp_path)
    show(model, torch.ones(2, C))
    memory = neotta.head(model).streams
    memory.flush()
    _, fields = memory.cache.store.read()
    record = np.zeros((), memory.cache.store.record)
    for name in record.dtype.names:
        record[name] = fields[name][0]
    record["mean"].flat[-1] = value
    del model, memory
    database = sqlite3.connect(next(tmp_path.rglob("streams.sqlite")))
    with database:
        content = record.tobytes()
        checksum = zlib.crc32(content, zlib.crc32(b'"a"')).to_bytes(4, "little")
        database.execute("UPDATE streams SET fields = ?", (content + checksum,))
    database.close()
    again = neotta.adapt(identity(), method, streams=True, capacity=2, folder=tmp_path)
    with pytest.raises(StateError, match=r"stream 'a' in .* holds a mean that makes no sense"):
        show(again, torch.ones(2, C))
    neotta.reset(again, stream="a")
    assert torch.isfinite(show(again, torch.ones(2, C))).all()
