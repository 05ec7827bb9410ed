"""A checksum says that a file is as it was written; whether it makes sense is checked before anything changes."""

from __future__ import annotations

import sqlite3
import zlib

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import StateError
from neotta.neo.state import state_of
from neotta.neo.statefile import State, fingerprint
from neotta.neo.stream_ids import pack

D = 6


def make(seed=0, method="neo", **how):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(D, 4))
    torch.manual_seed(1)
    return neotta.adapt(model, method, **how)


def answer(model, ids=None, rows=5):
    batch = torch.randn(rows, D, generator=torch.Generator().manual_seed(3)).add(1.0)
    with torch.no_grad():
        if ids is None:
            return model(batch)
        with neotta.streams(ids):
            return model(batch)


def seen(**how):
    model = make(**how)
    answer(model, list("aabbb") if how.get("streams") else None)
    return model


def remembered(model):
    return fingerprint(state_of(model).tensors)


def changed(state, name, value):
    tensors = {key: tensor.clone() for key, tensor in state.tensors.items()}
    entry = next(key for key in tensors if key.endswith(f".{name}"))
    tensors[entry] = value(tensors[entry]) if callable(value) else value
    return State(tensors, state.about)


def filled(value):
    return lambda tensor: torch.full_like(tensor, value)


BAD = {
    "NaN": ("mean", filled(float("nan"))),
    "Inf": ("mean", filled(float("inf"))),
    "a negative count": ("count", filled(-3)),
    "no batches": ("batches", filled(-1)),
    "rejected": ("rejected", filled(-1)),
    "an overflowing count": ("count", filled(2**63 - 1)),
    "a count in floats": ("count", lambda tensor: tensor.double() + 0.5),
    "whole numbers for a mean": ("mean", lambda tensor: tensor.to(torch.int64)),
    "complex numbers": ("mean", lambda tensor: tensor.to(torch.complex64)),
    "a truth for a count": ("count", lambda tensor: tensor.bool()),
    "a negative scatter": ("scatter", filled(-1.0)),
    "negative weights": ("discount", filled(1e3)),
}
IDS = {
    "no JSON": torch.frombuffer(bytearray(b"[1, "), dtype=torch.uint8),
    "no text": torch.frombuffer(bytearray(b"\xff\xfe\x00"), dtype=torch.uint8),
    "no list": torch.frombuffer(bytearray(b'{"a": 1}'), dtype=torch.uint8),
    "no ids": pack([1.5, None]),
    "truths": pack([True, False]),
    "twice the same": pack(["a", "a"]),
    "too few": pack(["a"]),
    "too many": pack(["a", "b", "c"]),
    "a deep list": torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8),
    "floats": torch.ones(9),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_values_that_make_no_sense_are_refused_before_anything_changes(bad, streams, tmp_path):
    how = {"streams": True} if streams else {}
    state = changed(state_of(seen(**how)), *BAD[bad])
    state.save(tmp_path / "s")  # with a valid checksum
    model = seen(**how)
    before = remembered(model)
    for source in (state, tmp_path / "s"):
        with pytest.raises(StateError):
            neotta.load(model, source)
        assert remembered(model) == before
        with pytest.raises(StateError):
            neotta.merge([state_of(model), source])
    assert torch.isfinite(answer(model, list("aabbb") if streams else None)).all()


@pytest.mark.parametrize("bad", IDS)
def test_malformed_stream_ids_are_refused_and_the_streams_stay(bad, tmp_path):
    state = changed(state_of(seen(streams=True)), "ids", IDS[bad])
    model = seen(streams=True, capacity=2, folder=tmp_path) if bad == "too many" else seen(streams=True)
    before = remembered(model)
    with pytest.raises(StateError):
        neotta.load(model, state)
    assert remembered(model) == before
    with pytest.raises(StateError):
        neotta.merge([state, state])


@pytest.mark.parametrize("about", [{"method": "nothing"}, {"heads": []}, {"heads": {}}, {"options": None}])
def test_a_description_that_says_nothing_is_refused(about):
    state = state_of(seen())
    state = State(state.tensors, {**state.about, **about})
    with pytest.raises(StateError):
        neotta.load(make(), state)
    with pytest.raises(StateError):
        neotta.merge([state, state])


def test_a_plain_model_stays_plain():
    state = changed(state_of(seen()), *BAD["NaN"])
    model = nn.Sequential(nn.Linear(D, 4))
    with pytest.raises(StateError, match="NaN or Inf"):
        neotta.load(model, state, strict=False)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("value", [3e38, -3e38, 1e60])
@pytest.mark.parametrize(("method", "entry"), [("neo", "mean"), ("neo-continual", "mean"), ("neo-stream", "start")])
def test_finite_values_that_make_infinite_answers_are_refused(method, entry, value, tmp_path):
    state = changed(state_of(seen(method=method)), entry, filled(value))
    model = seen(method=method)
    before = remembered(model)
    with pytest.raises(StateError, match=f"{entry}.*too large"):
        neotta.load(model, state)
    assert remembered(model) == before
    assert torch.isfinite(answer(model)).all()
    neotta.load(model.double(), changed(state, entry, filled(1e20)), strict=False)  # float64 can hold it
    assert torch.isfinite(model(torch.ones(1, D).double())).all()


@pytest.mark.parametrize(("method", "entry"), [("neo", "mean"), ("neo-stream", "start")])
def test_an_adapter_refuses_finite_values_that_make_infinite_answers(method, entry):
    adapter = neotta.create(method, nn.Sequential(nn.Linear(D, 4)))
    state = adapter.state_dict()
    name = next(name for name in state if name.split(".")[-1] == entry)
    with pytest.raises(StateError, match=f"{entry}.*too large"):
        adapter.load_state_dict({**state, name: torch.full_like(state[name], 3e38)})


def test_a_probability_beyond_1_is_refused():
    with pytest.raises(StateError, match="out of range"):
        neotta.load(make(method="neo-stream"), changed(state_of(seen(method="neo-stream")), "sticky", filled(1.5)))


def test_a_mean_too_large_for_a_table_of_streams_is_refused():
    one = changed(state_of(seen()), "mean", filled(1e300))
    model = seen(streams=True)
    before = remembered(model)
    with pytest.raises(StateError):
        neotta.load(model, one, stream="a")
    assert remembered(model) == before


def test_entries_that_are_missing_are_refused():
    state = state_of(seen())
    state.tensors.pop(next(name for name in state.tensors if name.endswith("mean")))
    with pytest.raises(StateError, match="lacks the entry"):
        neotta.merge([state, state])


def test_merging_beyond_what_can_be_counted_is_refused():
    state = changed(state_of(seen()), "count", filled(2**53))
    with pytest.raises(StateError, match="out of range"):
        neotta.merge([state, state])


@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-stream"])
def test_good_states_are_taken(method):
    model, twin = seen(method=method), make(method=method)
    neotta.load(twin, state_of(model))
    assert remembered(twin) == remembered(model)


def poison(path, key, content):
    database = sqlite3.connect(next(path.rglob("streams.sqlite")))
    with database:
        if content is None:
            database.execute("UPDATE streams SET id = ? WHERE id = '\"a\"'", (key,))
        else:
            checksum = zlib.crc32(content, zlib.crc32(key.encode())).to_bytes(4, "little")
            database.execute("UPDATE streams SET fields = ? WHERE id = ?", (content + checksum, key))
    database.close()


@pytest.mark.parametrize("what", ["nan", "count", "id"])
def test_a_store_with_valid_checksums_is_checked_as_well(tmp_path, what):
    model = seen(streams=True, capacity=2, folder=tmp_path)
    memory = neotta.head(model).streams
    memory.flush()
    record = memory.cache.store.record
    values = bytearray(record.itemsize)
    if what == "nan":
        values = bytearray(b"\xff" * record.itemsize)
        values[: 3 * 8] = bytes(24)
    elif what == "count":
        values[:8] = (-5).to_bytes(8, "little", signed=True)
    del model, memory
    poison(tmp_path, '"a"' if what != "id" else "{broken", None if what == "id" else bytes(values))
    again = make(streams=True, capacity=2, folder=tmp_path)
    with pytest.raises(StateError):
        neotta.head(again).streams.counts() if what == "id" else answer(again, list("aaaaa"))


@pytest.mark.parametrize("method", ["neo", "tent", "sar", "t3a", "cotta"])
def test_every_method_checks_what_it_is_given(method, images):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    adapter = neotta.create(method, model.eval())
    adapter(images)
    good = adapter.state_dict()
    adapter.load_state_dict(good)
    for name, tensor in good.items():
        if not tensor.numel() or adapter._any_value(name):
            continue
        real = tensor.is_floating_point()
        for wrong in (filled(float("nan"))(tensor) if real else tensor - tensor - 1, tensor.to(torch.complex64)):
            with pytest.raises(StateError):
                adapter.load_state_dict({**good, name: wrong})
            assert fingerprint(adapter.state_dict()) == fingerprint(good)


def test_save_refuses_what_load_would_refuse(tmp_path):
    path = tmp_path / "state"
    model = seen()
    neotta.save(model, path)
    good = path.read_bytes()
    neotta.head(model).centroid.set(torch.full((D,), 1e20))
    with pytest.raises(StateError, match=r"too large .*: nothing was saved; neotta.reset\(model\) begins again"):
        neotta.save(model, path)
    assert path.read_bytes() == good, "the last good state stays"
    neotta.reset(model)
    neotta.save(model, path)
    twin = seen()
    neotta.load(twin, path)
    assert neotta.head(twin).count == 0
