"""Streams that wait on disk: through a model, and in the store itself."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import FEATURES, answer, batch, many, plain
from torch import nn

import neotta
from neotta.errors import InputError, OptionError, StateFileError, StateMismatchError, StorageError
from neotta.neo.stream_store import StreamStore


@settings(max_examples=10)
@given(plan=st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=12))
def test_evicted_streams_come_back_as_they_went(tmp_path_factory, plan):
    small, large = many(capacity=5, folder=tmp_path_factory.mktemp("streams")), many()
    for turn, ids in enumerate(plan):
        data = batch(len(ids), turn)
        assert torch.equal(answer(small, data, ids), answer(large, data, ids))
    assert len(neotta.head(small).streams._rows) <= 5
    assert len(neotta.head(small).streams.mean) <= 64
    assert neotta.head(small).streams.counts() == neotta.head(large).streams.counts()
    for name in neotta.head(large).streams.counts():
        one, other = (neotta.head(model).streams.centroid(name).state() for model in (small, large))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_least_recently_used_streams_go_first(tmp_path):
    model = many(capacity=3, folder=tmp_path)
    for ids in (["a"], ["b"], ["c"], ["a"], ["d"]):
        answer(model, batch(1), ids)
    assert list(neotta.head(model).streams._rows) == ["c", "a", "d"]
    with pytest.raises(InputError, match="batch of 4 streams does not fit into a capacity of 3"):
        answer(model, batch(4), list("wxyz"))
    assert neotta.head(model).count == 5


def test_a_folder_is_taken_up_again_and_saved_whole(tmp_path):
    model = many(capacity=2, folder=tmp_path / "folder")
    answer(model, batch(2), ["a", "b"])
    answer(model, batch(2), ["c", "d"])
    with pytest.raises(StateFileError, match="in use"):
        many(capacity=2, folder=tmp_path / "folder")
    neotta.save(model, tmp_path / "all")
    neotta.head(model).streams.flush()
    expected = neotta.head(model).streams.counts()
    neotta.restore(model)

    again = many(capacity=2, folder=tmp_path / "folder")
    assert neotta.head(again).streams.counts() == expected == dict.fromkeys("abcd", 1)
    neotta.reset(again, stream="a")
    assert "a" not in neotta.head(again).streams.counts()
    neotta.load(again, tmp_path / "all")
    assert neotta.head(again).streams.counts() == expected
    neotta.reset(again)
    assert neotta.head(again).streams.counts() == {}
    unlimited = plain()
    neotta.load(unlimited, tmp_path / "all")
    assert neotta.head(unlimited).streams.counts() == expected


def test_a_folder_of_another_model_is_refused(tmp_path):
    many(capacity=2, folder=tmp_path)
    for model, method in ((plain(classes=3), "neo"), (plain(), "neo-continual")):
        with pytest.raises(StateMismatchError, match="another model or method"):
            neotta.adapt(model, method, head="classes", streams=True, capacity=2, folder=tmp_path)
        assert type(model.classes) is nn.Linear


def test_damage_on_disk_is_found_and_loses_nothing_else(tmp_path):
    model = many(capacity=1, folder=tmp_path)
    for name in "abc":
        answer(model, batch(1), [name])
    neotta.restore(model)
    file = tmp_path / "classes" / "0.safetensors"
    content = bytearray(file.read_bytes())
    first = content.index(batch(1)[0].numpy().tobytes())  # the mean of "a", which was the first to go
    content[first] ^= 1
    file.write_bytes(content)
    model = many(capacity=1, folder=tmp_path)
    with pytest.raises(StateFileError, match=r"stream 'a' .* is damaged.*stream='a'"):
        answer(model, batch(1), ["a"])
    answer(model, batch(1), ["b"])
    assert neotta.head(model).streams.counts()["b"] == 2
    neotta.reset(model, stream="a")
    answer(model, batch(1), ["a"])
    neotta.restore(model)
    file.write_bytes(content[:-1])
    with pytest.raises(StateFileError, match=r"0\.safetensors' is damaged"):
        many(capacity=1, folder=tmp_path)


def test_a_full_disk_is_an_error_and_the_streams_stay(tmp_path, monkeypatch):
    model = many(capacity=2, folder=tmp_path)
    answer(model, batch(2), ["a", "b"])

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left"):
            answer(model, batch(1), ["c"])
    assert neotta.head(model).streams.counts() == {"a": 1, "b": 1}
    answer(model, batch(2), ["c", "a"])
    assert neotta.head(model).streams.counts() == {"a": 2, "b": 1, "c": 1}


KILLED = """
import sys, torch, neotta
from torch import nn
torch.manual_seed(0)
model = neotta.adapt(nn.Sequential(nn.Linear(500, 2)), streams=True, capacity=8, folder=sys.argv[1])
turn = 0
while True:
    ids = [turn * 8 + place for place in range(8)]
    with neotta.streams(ids), torch.no_grad():
        model(torch.tensor(ids).float().unsqueeze(1).expand(8, 500))
    turn += 1
    if turn == 3:
        print("evicting", flush=True)
"""


@pytest.mark.slow
def test_a_process_killed_while_it_evicts_leaves_whole_streams(tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.kill()
    torch.manual_seed(0)
    model = neotta.adapt(nn.Sequential(nn.Linear(500, 2)), streams=True, capacity=8, folder=tmp_path)
    ids, state = neotta.head(model).streams.state()
    assert len(ids) >= 8
    assert len(ids) % 8 == 0
    assert torch.equal(state["mean"], torch.tensor(ids).float().unsqueeze(1).expand(-1, 500))


def test_a_model_with_a_folder_is_not_copied(tmp_path):
    with pytest.raises(OptionError, match="two models would write into one folder"):
        copy.deepcopy(many(capacity=2, folder=tmp_path))


# ---- the store


def states(*seeds: int) -> dict[str, torch.Tensor]:
    """States of as many streams, (n, ...) each; the seed tells them apart."""
    seed = torch.tensor(seeds, dtype=torch.int64)
    means = torch.stack([batch(1, each)[0] for each in seeds]) if seeds else torch.empty(0, FEATURES)
    return {"count": seed, "batches": seed + 1, "rejected": seed * 0, "scatter": seed / 3.0, "mean": means}


def held(store: StreamStore) -> dict[int | str, int]:
    """What is in a store, by the seeds of `states`; each stream is whole."""
    ids, found = store.read()
    seeds = found["count"].tolist()
    for name, tensor in states(*seeds).items():
        assert torch.equal(found[name], tensor.to(found[name].dtype)), name
    assert store.counts() == dict(zip(ids, seeds, strict=True))
    return dict(zip(ids, seeds, strict=True))


NAMES = st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=2)), unique=True, max_size=6)
CHANGES = st.tuples(st.sampled_from(["write", "replace", "delete", "clear", "open"]), NAMES)


@settings(max_examples=30)
@given(changes=st.lists(CHANGES, max_size=15))
def test_a_store_holds_what_was_written_last_also_when_it_is_opened_again(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("store")
    store, expected = StreamStore(folder, FEATURES, "me"), {}
    for turn, (change, names) in enumerate(changes):
        seeds = [100 * turn + place for place in range(len(names))]
        if change in ("write", "replace"):
            store.write(names, states(*seeds), replace=change == "replace")
            expected = {**({} if change == "replace" else expected), **dict(zip(names, seeds, strict=True))}
        elif change == "delete":
            store.delete(names)
            expected = {name: seed for name, seed in expected.items() if name not in names}
        elif change == "clear":
            store.delete()
            expected = {}
        else:
            del store
            store = StreamStore(folder, FEATURES, "me")
        assert held(store) == expected
    ids, _ = store.read([*list(expected)[:2], "never written"])
    assert ids == list(expected)[:2]


def test_wherever_the_process_dies_the_streams_are_those_before_or_after(tmp_path):
    """The line in the index is the last thing to be written; it is cut after every byte."""
    store = StreamStore(tmp_path / "store", FEATURES, "me")
    store.write(["a", 7], states(1, 2))
    index = tmp_path / "store" / "index.jsonl"
    before = index.stat().st_size
    store.write([7, "b"], states(3, 4))
    del store
    content = index.read_bytes()
    for size in range(before, len(content) + 1):
        shutil.copytree(tmp_path / "store", tmp_path / "copy", dirs_exist_ok=True)
        (tmp_path / "copy" / "index.jsonl").write_bytes(content[:size])
        store = StreamStore(tmp_path / "copy", FEATURES, "me")
        expected = {"a": 1, 7: 2} if size < len(content) else {"a": 1, 7: 3, "b": 4}
        assert held(store) == expected
        store.write(["c"], states(5))
        del store
        assert held(StreamStore(tmp_path / "copy", FEATURES, "me")) == {**expected, "c": 5}


def test_the_files_are_safetensors_and_lines_of_json(tmp_path):
    from safetensors.numpy import load_file

    store = StreamStore(tmp_path, FEATURES, "me")
    store.write(list(range(1100)), states(*range(1100)))
    shapes = [load_file(tmp_path / f"{number}.safetensors")["records"].shape for number in range(2)]
    assert shapes == [(1024, 60), (2048, 60)]  # 4 numbers of 8 bytes, 6 of 4, and the checksum
    assert [sorted(json.loads(line)) for line in (tmp_path / "index.jsonl").read_text().splitlines()] == [
        ["crc", "format", "owner"],
        ["crc", "ids", "slots"],
    ]
    assert held(store) == {item: item for item in range(1100)}


def test_writing_again_and_again_needs_no_more_room(tmp_path):
    store = StreamStore(tmp_path, FEATURES, "me")
    names = list(range(200))
    for _ in range(60):
        store.write(names, states(*names))
    assert (tmp_path / "index.jsonl").stat().st_size < 11_000 * 20  # entries that no longer count are cleared away
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == ["0.safetensors"]
    del store
    assert held(StreamStore(tmp_path, FEATURES, "me")) == {item: item for item in names}


def test_a_damaged_index_is_refused(tmp_path):
    store = StreamStore(tmp_path, FEATURES, "me")
    store.write(["a"], states(1))
    store.write(["b"], states(2))
    del store
    index = tmp_path / "index.jsonl"
    content = index.read_text()
    index.write_text(content.replace('"a"', '"x"'))
    with pytest.raises(StateFileError, match=r"line 2 of .* is damaged"):
        StreamStore(tmp_path, FEATURES, "me")
    for other in ("", "something else\n", "[1]\n", "{}\n", content.splitlines()[0]):
        index.write_text(other)
        with pytest.raises(StateFileError, match="is damaged, or no such file"):
            StreamStore(tmp_path, FEATURES, "me")
    index.write_text(content)
    with pytest.raises(StateMismatchError, match="another model"):
        StreamStore(tmp_path, FEATURES, "you")
    assert held(StreamStore(tmp_path, FEATURES, "me")) == {"a": 1, "b": 2}


def test_a_file_of_slots_that_was_lost_is_noticed_stream_by_stream(tmp_path):
    store = StreamStore(tmp_path, FEATURES, "me")
    store.write(list(range(1025)), states(*range(1025)))
    del store
    (tmp_path / "1.safetensors").unlink()  # with the last of them
    store = StreamStore(tmp_path, FEATURES, "me")
    assert store.read([3])[1]["count"].tolist() == [3]
    with pytest.raises(StateFileError, match=r"stream 1024 in .* is damaged"):
        store.read([1024])


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        StreamStore(tmp_path / "file" / "folder", FEATURES, "me")
