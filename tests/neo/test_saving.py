from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import NotAdaptedError, StateFileError, StateMismatchError, StorageError
from neotta.neo.find_head import logits_of
from neotta.neo.statefile import read_state, write_state


@torch.no_grad()
def answer(model, images):
    return logits_of(model(images))


def snapshot(model):
    return {name: head.streams.state() for name, head in neotta.heads(model).items()}


def equal(one, other):
    return all(torch.equal(one[head], other[head]) for head in one)


def test_a_saved_state_continues_exactly(any_model, images, tmp_path):
    model, _ = any_model
    twin = copy.deepcopy(model)
    answer(neotta.adapt(model, "neo"), images)
    neotta.save(model, tmp_path / "fog.safetensors")
    neotta.load(twin, tmp_path / "fog.safetensors")
    assert equal(snapshot(model), snapshot(twin))
    assert torch.equal(answer(model, images), answer(twin, images))


def test_the_file_is_small(tmp_path):
    model = neotta.adapt(nn.Sequential(nn.Linear(768, 1000)), "neo")
    neotta.save(model, tmp_path / "s.safetensors")
    assert (tmp_path / "s.safetensors").stat().st_size < 12_000
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_variants_and_moving_statistics_are_saved(images, tmp_path):
    import timm

    model = timm.create_model("resnet10t", num_classes=5, channels=(8, 8, 16, 16)).eval()
    twin = copy.deepcopy(model)
    answer(neotta.adapt(model, "neo-bn", statistics="ema"), images)
    neotta.save(model, tmp_path / "s")
    neotta.load(twin, tmp_path / "s")
    assert torch.equal(answer(model, images), answer(twin, images))


def small(classes=4, features=3072):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


@pytest.fixture
def saved(images, tmp_path):
    model = neotta.adapt(small(), "neo")
    answer(model, images)
    neotta.save(model, tmp_path / "s")
    return tmp_path / "s"


def refused(model, path, error, match):
    """The load fails, and the model is as it was."""
    adapted = any(isinstance(module, neotta.NEOHead) for module in model.modules())
    before = snapshot(model) if adapted else dict(model.named_modules())
    with pytest.raises(error, match=match):
        neotta.load(model, path)
    assert equal(before, snapshot(model)) if adapted else before == dict(model.named_modules())


@pytest.mark.parametrize("adapted", [True, False])
def test_states_of_others_are_refused(saved, adapted):
    def model(**sizes):
        return neotta.adapt(small(**sizes), "neo") if adapted else small(**sizes)

    refused(model(features=12), saved, StateMismatchError, "belongs to another model")
    other = model()
    with torch.no_grad():
        other[1].weight += 1
    refused(other, saved, StateMismatchError, "strict=False")
    neotta.load(other, saved, strict=False)
    assert neotta.head(other).count == 6


def test_a_state_of_another_method_is_refused(saved):
    refused(neotta.adapt(small(), "neo-continual"), saved, StateMismatchError, "expected neo-continual")
    refused(nn.Sequential(nn.Linear(3, 4)), saved, StateMismatchError, "no layer '1'")


def test_damaged_files_are_refused(saved, tmp_path):
    content = saved.read_bytes()
    for name, bytes_ in {
        "empty": b"",
        "truncated": content[:-10],
        "short": content[:20],
        "text": b"not a state at all" * 10,
        "flipped": content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    }.items():
        (tmp_path / name).write_bytes(bytes_)
        refused(neotta.adapt(small(), "neo"), tmp_path / name, StateFileError, "damaged|no safetensors")
    refused(neotta.adapt(small(), "neo"), tmp_path / "nowhere", StateFileError, "no state file")
    from safetensors.torch import save_file

    save_file({"mean": torch.zeros(3)}, tmp_path / "foreign")
    refused(neotta.adapt(small(), "neo"), tmp_path / "foreign", StateFileError, "not written by")


def test_a_damaged_header_is_noticed(saved, tmp_path):
    content = saved.read_bytes()
    wanted = small()
    neotta.load(wanted, saved)
    size = 8 + int.from_bytes(content[:8], "little")
    for place in range(size):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 7)
        (tmp_path / "flipped").write_bytes(flipped)
        model = small()
        try:
            neotta.load(model, tmp_path / "flipped")
        except StateFileError:
            continue
        # what is left is a change that changes nothing, as of one blank to another
        assert equal(snapshot(wanted), snapshot(model))


def test_numbers_as_keys_survive(tmp_path):
    write_state(tmp_path / "s", {"t": torch.zeros(2)}, {"of": {9: 1, 10: (2, 3)}})
    assert read_state(tmp_path / "s")[1]["of"] == {"9": 1, "10": [2, 3]}


def test_only_adapted_models_are_saved(tmp_path):
    with pytest.raises(NotAdaptedError):
        neotta.save(small(), tmp_path / "s")
    assert not list(tmp_path.iterdir())


def test_a_reader_sees_no_damage_while_another_saves(tmp_path):
    path, stop, steps = tmp_path / "s", threading.Event(), []

    def save_on_and_on():
        while not stop.is_set():
            step = len(steps) + 1
            write_state(path, {"step": torch.full((1 + 5000 * (step % 3),), step)}, {"step": step})
            steps.append(step)

    writer = threading.Thread(target=save_on_and_on)
    writer.start()
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            if steps:
                tensors, about = read_state(path)
                assert int(tensors["step"][-1]) == about["step"]
    finally:
        stop.set()
        writer.join()
    assert len(steps) > 10


def test_a_state_goes_through_a_symbolic_link(saved, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(saved)
    model = neotta.adapt(small(), "neo")
    neotta.save(model, link)
    assert link.is_symlink()
    neotta.load(model, link)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    old = saved.read_bytes()
    model = neotta.adapt(small(), "neo")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        neotta.save(model, saved)
    assert saved.read_bytes() == old
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


ENDLESS = """
import os, sys, torch, neotta
from torch import nn
model = neotta.adapt(nn.Sequential(nn.Linear(2000, 2)), "neo")
for line in sys.stdin:  # each asks for a process that saves until it is killed; a fork takes no time to start
    if process := os.fork():
        os.waitpid(process, 0)
        print("gone", flush=True)
        continue
    step = 0
    while True:
        step += 1
        neotta.head(model).streams.put(torch.full((1, 2005), float(step)))
        neotta.save(model, sys.argv[1])
        if step == 1:
            print(os.getpid(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_save_killed_at_any_point_leaves_a_whole_file(tmp_path):
    path = tmp_path / "s"
    parent = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    with parent:
        for attempt in range(8):
            parent.stdin.write("\n")
            saving = int(parent.stdout.readline())
            time.sleep(0.01 * (attempt + 1))
            os.kill(saving, signal.SIGKILL)
            assert parent.stdout.readline() == "gone\n"
            model = nn.Sequential(nn.Linear(2000, 2))
            neotta.load(model, path, strict=False)
            head = neotta.head(model)
            assert torch.equal(head.streams.state(), torch.full((1, 2005), float(head.count), dtype=torch.float64))
    assert parent.returncode == 0
