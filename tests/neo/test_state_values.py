"""A checksum says that a file is as it was written; whether it makes sense is checked before anything changes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import StateError
from neotta.neo.files import state_of
from neotta.neo.statefile import fingerprint, packed, unpacked, write_state
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
    return state_of(model).to_bytes()


def changed(path, state, name, value):
    """A file of a state with another entry, and a checksum that is right."""
    arrays, about = unpacked(state.to_bytes(), "it")
    tensors = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
    entry = next(key for key in tensors if key.endswith(f".{name}"))
    tensors[entry] = value(tensors[entry]) if callable(value) else value
    write_state(path / "changed", tensors, about)
    return path / "changed"


def filled(value):
    return lambda tensor: torch.full_like(tensor, value)


BAD = {
    "NaN": ("total", filled(float("nan"))),
    "Inf": ("total", filled(float("inf"))),
    "negative tallies": ("tallies", filled(-3)),
    "a negative weight": ("weight", filled(-1.0)),
    "whole numbers": ("total", lambda tensor: tensor.to(torch.int64)),
    "complex numbers": ("total", lambda tensor: tensor.to(torch.complex64)),
    "a truth for tallies": ("tallies", lambda tensor: tensor.bool()),
    "negative squares": ("square", filled(-1.0)),
    "a mean that is too large": ("total", filled(1e60)),
    "a weight that makes the mean too large": ("weight", filled(1e-9)),
    "another shape": ("total", lambda tensor: tensor[..., :-1]),
}
IDS = {
    "no JSON": torch.frombuffer(bytearray(b"[1, "), dtype=torch.uint8),
    "no text": torch.frombuffer(bytearray(b"\xff\xfe\x00"), dtype=torch.uint8),
    "no list": torch.frombuffer(bytearray(b'{"a": 1}'), dtype=torch.uint8),
    "no ids": torch.from_numpy(pack([1.5, None])),
    "truths": torch.from_numpy(pack([True, False])),
    "twice the same": torch.from_numpy(pack(["a", "a"])),
    "too few": torch.from_numpy(pack(["a"])),
    "too many": torch.from_numpy(pack(["a", "b", "c"])),
    "a deep list": torch.frombuffer(bytearray(b"[" * 100_000), dtype=torch.uint8),
    "floats": torch.ones(9),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("bad", BAD)
def test_values_that_make_no_sense_are_refused_before_anything_changes(bad, streams, tmp_path):
    how = {"streams": True} if streams else {}
    path = changed(tmp_path, state_of(seen(**how)), *BAD[bad])
    model = seen(**how)
    before = remembered(model)
    with pytest.raises(StateError):
        neotta.load(model, path)
    assert remembered(model) == before
    with pytest.raises(StateError):
        neotta.merge([state_of(model), path])
    assert torch.isfinite(answer(model, list("aabbb") if streams else None)).all()


@pytest.mark.parametrize("bad", IDS)
def test_malformed_stream_ids_are_refused_and_the_streams_stay(bad, tmp_path):
    state = changed(tmp_path, state_of(seen(streams=True)), "ids", IDS[bad])
    model = seen(streams=True, capacity=2, folder=tmp_path) if bad == "too many" else seen(streams=True)
    before = remembered(model)
    with pytest.raises(StateError):
        neotta.load(model, state)
    assert remembered(model) == before
    with pytest.raises(StateError):
        neotta.merge([state, state])


@pytest.mark.parametrize("wrong", [{"method": "nothing"}, {"method": 3}, {"heads": []}, {"heads": {}}, {"options": 3}])
def test_a_description_that_says_nothing_is_refused(wrong, tmp_path):
    arrays, about = unpacked(state_of(seen()).to_bytes(), "it")
    (tmp_path / "s").write_bytes(packed(arrays, {**about, **wrong}))
    for model in (make(), nn.Sequential(nn.Linear(D, 4))):
        with pytest.raises(StateError):
            neotta.load(model, tmp_path / "s", strict=False)
    with pytest.raises(StateError):
        neotta.merge([tmp_path / "s"])


def test_a_plain_model_stays_plain(tmp_path):
    state = changed(tmp_path, state_of(seen()), *BAD["NaN"])
    model = nn.Sequential(nn.Linear(D, 4))
    with pytest.raises(StateError, match="NaN, Inf"):
        neotta.load(model, state, strict=False)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize("value", [3e38, -3e38, 1e60])
@pytest.mark.parametrize(("method", "entry"), [("neo", "total"), ("neo-continual", "total"), ("neo-stream", "shift")])
def test_finite_values_that_make_infinite_answers_are_refused(method, entry, value, tmp_path):
    state = changed(tmp_path, state_of(seen(method=method)), entry, filled(value))
    model = seen(method=method)
    before = remembered(model)
    with pytest.raises(StateError, match=r"would subtract numbers beyond 1e\+07"):
        neotta.load(model, state)
    assert remembered(model) == before
    assert torch.isfinite(answer(model)).all()


def test_a_probability_beyond_1_is_refused(tmp_path):
    path = changed(tmp_path, state_of(seen(method="neo-stream")), "sticky", filled(1.5))
    with pytest.raises(StateError, match="out of range"):
        neotta.load(make(method="neo-stream"), path)


def test_a_mean_too_large_for_a_stream_is_refused(tmp_path):
    one = changed(tmp_path, state_of(seen()), "total", filled(1e300))
    model = seen(streams=True)
    before = remembered(model)
    with pytest.raises(StateError):
        neotta.load(model, one, stream="a")
    assert remembered(model) == before


@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-stream"])
def test_good_states_are_taken(method):
    model, twin = seen(method=method), make(method=method)
    neotta.load(twin, state_of(model))
    assert remembered(twin) == remembered(model)


@pytest.mark.parametrize("method", ["neo", "tent", "sar", "t3a", "cotta"])
def test_every_method_checks_what_it_is_given(method, images):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    adapter = neotta.create(method, model.eval())
    adapter(images)
    good = adapter.state_dict()
    adapter.load_state_dict(good)
    for name, tensor in good.items():
        if not tensor.numel() or adapter._about_entry(name).any_value:
            continue
        real = tensor.is_floating_point()
        for wrong in (filled(float("nan"))(tensor) if real else tensor - tensor - 1, tensor.to(torch.complex64)):
            with pytest.raises(StateError):
                adapter.load_state_dict({**good, name: wrong})
            assert fingerprint(adapter.state_dict()) == fingerprint(good)


@pytest.mark.parametrize("size", [1.0, 9.9e5, 1e7, 3e38])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-stream"])
def test_whatever_a_model_has_seen_can_be_saved_and_loaded(method, streams, size, tmp_path):
    model, twin = (make(method=method, streams=streams) for _ in range(2))
    ids = list("aab") if streams else None
    with torch.no_grad(), warnings.catch_warnings(), neotta.streams(ids or [0]):
        warnings.simplefilter("ignore", RuntimeWarning)  # rows that are too large
        for factor in (1.0, size, -size, 1.0):
            model(factor * torch.tensor([[1.0] * D, [-1.0] * D, [0.5, 1.0] * (D // 2)]))
    neotta.save(model, tmp_path / "state")
    neotta.load(twin, tmp_path / "state")
    assert remembered(twin) == remembered(model)
    assert torch.isfinite(answer(twin, list("aabbb") if streams else None)).all()
