"""A new stream begins where the fleet is."""

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.errors import OptionError

CLASSES = 6
SHIFT = np.array([3.0, -2.0, 1.5, -1.0, -2.5, 1.0])


def head(**options):
    """A model whose input are its logits."""
    model = nn.Sequential(nn.Linear(CLASSES, CLASSES))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(CLASSES))
        model[0].bias.zero_()
    return neotta.adapt(model, "neo-stream", streams=True, **options)


def frames(labels, random, shift=SHIFT):
    noise = random.normal(size=(len(labels), CLASSES))
    return torch.from_numpy(8.0 * np.eye(CLASSES)[labels] + noise + shift).float()


@torch.no_grad()
def watched(model, cameras=30, rounds=20, seed=0, shift=lambda camera: SHIFT):
    """Let cameras, each of which sees two classes, watch for some frames."""
    random = np.random.default_rng(seed)
    pairs = [random.permutation(CLASSES)[:2] for _ in range(cameras)]
    for _ in range(rounds):
        rows = [frames([random.choice(pair)], random, shift(camera)) for camera, pair in enumerate(pairs)]
        with neotta.streams([f"camera {camera}" for camera in range(cameras)]):
            model(torch.cat(rows))
    return model


@torch.no_grad()
def first_shift(model, stream="new"):
    with neotta.streams([stream]):
        model(frames([2], np.random.default_rng(9)))
    return neotta.head(model).centre(stream=stream).numpy()


def centred(vector):
    return vector - vector.mean()


def test_the_fleet_knows_what_no_camera_can_tell():
    model = watched(head())
    assert np.abs(neotta.head(model).centre(stream="camera 3").numpy()).max() == 0, "two classes only"
    found = first_shift(model)
    wanted = centred(SHIFT)
    assert np.linalg.norm(found - wanted) < 0.4 * np.linalg.norm(wanted)
    assert np.abs(first_shift(watched(head(start="plain")))).max() == 0


def test_small_fleets_and_those_that_differ_begin_plain():
    assert np.abs(first_shift(head())).max() == 0
    assert np.abs(first_shift(watched(head(), cameras=7))).max() == 0
    assert np.abs(first_shift(watched(head(), shift=lambda camera: 0 * SHIFT))).max() < 0.3
    half = first_shift(watched(head(), shift=lambda camera: SHIFT if camera % 2 else -SHIFT))
    assert np.linalg.norm(half) < 0.2 * np.linalg.norm(SHIFT)


@pytest.mark.parametrize("poison", [1e6, 1e3, 30.0, -30.0])
def test_one_poisoned_camera_hardly_moves_the_start(poison):
    good = first_shift(watched(head()))
    bad = first_shift(watched(head(), shift=lambda camera: SHIFT + (poison if camera == 4 else 0) * np.eye(CLASSES)[0]))
    assert np.linalg.norm(good - bad) < 0.15 * np.linalg.norm(good)


def test_a_start_is_fixed_once_the_stream_exists():
    model = watched(head())
    first = first_shift(model)
    before = neotta.head(model).memory.state()["start"]
    watched(model, seed=3, shift=lambda camera: -3 * SHIFT)
    after = neotta.head(model).memory.state()
    assert torch.equal(after["start"], before)
    assert np.array_equal(neotta.head(model).centre(stream="new").numpy(), first)


def test_a_saved_fleet_gives_the_same_start(tmp_path):
    model, path = watched(head()), tmp_path / "fleet.safetensors"
    neotta.save(model, path)
    other = nn.Sequential(nn.Linear(CLASSES, CLASSES))
    other.load_state_dict({"0.weight": torch.eye(CLASSES), "0.bias": torch.zeros(CLASSES)})
    neotta.load(other, path)
    assert np.array_equal(first_shift(other), first_shift(model))
    neotta.save(model, tmp_path / "one.safetensors", stream="new")
    alone = neotta.adapt(neotta.restore(other), "neo-stream")
    neotta.load(alone, tmp_path / "one.safetensors")
    assert np.array_equal(neotta.head(alone).centre().numpy(), first_shift(model, "another"))


def test_streams_in_a_store_begin_there_too(tmp_path):
    model = watched(head(capacity=32, folder=tmp_path))
    wanted = first_shift(model)
    assert np.linalg.norm(wanted) > 1
    for number in range(20):
        first_shift(model, f"more {number}")
    assert np.array_equal(neotta.head(model).centre(stream="new").numpy(), wanted), "back from the store"


def test_predicting_only_creates_no_stream():
    model = watched(head())
    neotta.head(model).freeze()
    data = frames([1], np.random.default_rng(1))
    with torch.no_grad(), neotta.streams(["unknown"]):
        assert torch.equal(model(data), data)
    assert "unknown" not in neotta.head(model).streams.counts()


def test_wrong_starts_are_refused():
    with pytest.raises(OptionError, match="'fleet' or 'plain'"):
        head(start="zero")
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(OptionError, match="neo-stream"):
        neotta.adapt(model, "neo", streams=True, start="fleet")
    with pytest.raises(OptionError, match="streams=True"):
        neotta.adapt(model, "neo-stream", start="plain")
