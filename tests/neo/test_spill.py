"""Streams on disk: through a model, and in the database itself."""

from __future__ import annotations

import ast
import copy
import gc
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import answer, batch, many, plain
from torch import nn

import neotta
from neotta.errors import InputError, OptionError, StateFileError, StateMismatchError, StorageError
from neotta.neo.spill import FILE, FORMAT, Spill


@settings(max_examples=10)
@given(plan=st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=12))
@pytest.mark.parametrize("method", ["neo", "neo-stream"])
def test_evicted_streams_come_back_as_they_went(tmp_path_factory, method, plan):
    small, large = many(method, capacity=5, folder=tmp_path_factory.mktemp("streams")), many(method)
    for turn, ids in enumerate(plan):
        data = batch(len(ids), turn)
        assert torch.equal(answer(small, data, ids), answer(large, data, ids))
    assert len(neotta.head(small).streams._rows) <= 5
    assert len(neotta.head(small).streams.table) <= 6
    assert neotta.head(small).streams.counts() == neotta.head(large).streams.counts()
    for name in neotta.head(large).streams.counts():
        assert torch.equal(*(neotta.head(model).streams.state(name) for model in (small, large)))


def test_a_folder_belongs_to_the_weights_of_a_convolutional_head(tmp_path):
    def convolutional():
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 5, 1), nn.Flatten()).eval()

    example = torch.randn(2, 3, 4, 4)
    model = neotta.adapt(convolutional(), streams=True, folder=tmp_path, example=example)
    answer(model, example, ["a", "b"])
    neotta.restore(model)
    with pytest.raises(StateMismatchError, match="another model or method"):
        neotta.adapt(convolutional(), streams=True, folder=tmp_path, example=example)


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
    with closing(sqlite3.connect(tmp_path / "classes" / FILE)) as database:
        (content,) = database.execute("SELECT state FROM streams WHERE id = '\"a\"'").fetchone()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        database.execute("UPDATE streams SET state = ? WHERE id = '\"a\"'", (flipped,))
        database.commit()
    model = many(capacity=1, folder=tmp_path)
    with pytest.raises(StateFileError, match=r"stream 'a' .* is damaged.*stream='a'"):
        answer(model, batch(1), ["a"])
    answer(model, batch(1), ["b"])
    assert neotta.head(model).streams.counts()["b"] == 2
    neotta.reset(model, stream="a")
    answer(model, batch(1), ["a"])
    neotta.restore(model)
    (tmp_path / "classes" / FILE).write_bytes(b"not a database, but long enough to be taken for one" * 100)
    with pytest.raises(StateFileError, match="are damaged"):
        many(capacity=1, folder=tmp_path)


def test_a_full_disk_is_an_error_and_the_streams_stay(tmp_path):
    model = many(capacity=2, folder=tmp_path)
    answer(model, batch(2), ["a", "b"])
    database = neotta.head(model).streams.spill._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says what it says on a full disk
    names = iter(range(10_000))

    def fill():
        for name in names:
            answer(model, batch(1), [f"{name} {'x' * 500}"])

    with pytest.raises(StorageError, match="full"):
        fill()
    before = neotta.head(model).streams.counts()
    assert before["a"] == before["b"] == 1
    assert set(before.values()) == {1}
    database.execute("PRAGMA max_page_count = 1000000")
    answer(model, batch(2), ["new", "a"])
    assert neotta.head(model).streams.counts() == {**before, "new": 1, "a": 2}


KILLED = """
import sys, torch, neotta
from torch import nn
torch.manual_seed(0)
model = neotta.adapt(nn.Sequential(nn.Linear(500, 2)), "neo", streams=True, capacity=8, folder=sys.argv[1])
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
    model = neotta.adapt(nn.Sequential(nn.Linear(500, 2)), "neo", streams=True, capacity=8, folder=tmp_path)
    streams = neotta.head(model).streams
    ids, states = streams.everything()
    assert len(ids) >= 8
    assert len(ids) % 8 == 0
    assert torch.equal(streams.rule.offset(states), torch.tensor(ids).double().unsqueeze(1).expand(-1, 500))


def test_one_stream_is_reset_in_memory_and_on_disk(tmp_path):
    model = many(capacity=2, folder=tmp_path)
    for ids in (["a", "b"], ["c"], ["b"]):
        answer(model, batch(len(ids)), ids)
    streams = neotta.head(model).streams
    assert streams.counts() == {"a": 1, "b": 2, "c": 1}
    for name in "ab":  # one on disk; one in memory, of which an older state is on disk
        neotta.reset(model, stream=name)
        assert name not in streams.counts()
        with pytest.raises(InputError, match=f"no stream '{name}'"):
            streams.state(name)
    answer(model, batch(2, 5), ["a", "b"])
    assert streams.counts() == {"c": 1, "a": 1, "b": 1}
    torch.testing.assert_close(neotta.head(model).offset("b").float(), batch(2, 5)[1])


def test_a_folder_without_a_capacity_is_read_at_the_start_and_written_by_flush(tmp_path):
    model = many(folder=tmp_path)
    answer(model, batch(3), list("abc"))
    neotta.head(model).streams.flush()
    neotta.restore(model)
    again = many(folder=tmp_path)
    answer(again, batch(2), ["a", "d"])
    assert neotta.head(again).streams.counts() == {"a": 2, "b": 1, "c": 1, "d": 1}


def test_paused_a_stream_on_disk_answers_as_it_did(tmp_path):
    small, large = many("neo-stream", capacity=2, folder=tmp_path), many("neo-stream")
    for turn in range(4):
        for ids in (["a", "a", "b"], ["c", "d", "c"]):
            assert torch.equal(answer(small, batch(3, turn), ids), answer(large, batch(3, turn), ids))
    for model in (small, large):
        neotta.head(model).freeze()
    for ids in (["a", "b", "a"], ["c", "x", "c"]):
        assert torch.equal(answer(small, batch(3), ids), answer(large, batch(3), ids))
    assert neotta.head(small).streams.counts() == neotta.head(large).streams.counts()


def test_a_model_with_a_folder_is_not_copied(tmp_path):
    with pytest.raises(OptionError, match="two models would write into one folder"):
        copy.deepcopy(many(capacity=2, folder=tmp_path))


# ---- the database


WIDTH = 9


def states(*seeds: int) -> torch.Tensor:
    """States of as many streams, (n, width); the seed, also their count, tells them apart."""
    return torch.tensor(seeds, dtype=torch.float64)[:, None] / torch.arange(1, WIDTH + 1)


def held(spill: Spill) -> dict[int | str, int]:
    """What is in a database, by the seeds of `states`; each stream is whole."""
    ids, found = spill.read()
    seeds = [int(seed) for seed in found[:, 0].tolist()]
    assert torch.equal(found, states(*seeds))
    assert spill.counts() == dict(zip(ids, seeds, strict=True))
    return dict(zip(ids, seeds, strict=True))


NAMES = st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=2)), unique=True, max_size=6)
CHANGES = st.tuples(st.sampled_from(["write", "replace", "delete", "clear", "open"]), NAMES)


@settings(max_examples=30)
@given(changes=st.lists(CHANGES, max_size=15))
def test_a_spill_holds_what_was_written_last_also_when_it_is_opened_again(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("spill")
    spill, expected = Spill(folder, WIDTH, "me"), {}
    for turn, (change, names) in enumerate(changes):
        seeds = [100 * turn + place for place in range(len(names))]
        if change in ("write", "replace"):
            spill.write(names, states(*seeds), replace=change == "replace")
            expected = {**({} if change == "replace" else expected), **dict(zip(names, seeds, strict=True))}
        elif change == "delete":
            spill.delete(names)
            expected = {name: seed for name, seed in expected.items() if name not in names}
        elif change == "clear":
            spill.delete()
            expected = {}
        else:
            del spill
            spill = Spill(folder, WIDTH, "me")
        assert held(spill) == expected
    ids, _ = spill.read([*list(expected)[:2], "never written"])
    assert ids == list(expected)[:2]


WRITER = """
import sys, torch
from neotta.neo.spill import Spill
spill, turn = Spill(sys.argv[1], 4, "me"), 0
while True:
    turn += 1
    spill.write(list(range(50)), torch.full((50, 4), float(turn)))
    print(turn, flush=True)
"""


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill_and_nothing_is_torn(tmp_path):
    for trial in range(5):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3 + trial):
                acknowledged = int(process.stdout.readline())
            process.kill()
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        ids, found = Spill(tmp_path, 4, "me").read()
        assert sorted(ids) == list(range(50))
        turns = set(found.flatten().tolist())
        assert len(turns) == 1
        assert turns.pop() in (acknowledged, acknowledged + 1)


def test_a_torn_log_is_rolled_back(tmp_path):
    """The write-ahead log is cut after every so many bytes, as by a machine that lost its power."""
    spill = Spill(tmp_path / "spill", WIDTH, "me")
    spill.write(["a", 7], states(1, 2))
    log = tmp_path / "spill" / f"{FILE}-wal"
    before = log.stat().st_size
    spill.write([7, "b"], states(3, 4))
    content = log.read_bytes()
    for size in range(before, len(content) + 1, 97):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "spill" / FILE, tmp_path / "copy" / FILE)
        (tmp_path / "copy" / f"{FILE}-wal").write_bytes(content[:size])
        copy = Spill(tmp_path / "copy", WIDTH, "me")
        assert held(copy) in ({"a": 1, 7: 2}, {"a": 1, 7: 3, "b": 4})
        copy.write(["c"], states(5))
        assert held(copy)["c"] == 5
        del copy
    assert held(spill) == {"a": 1, 7: 3, "b": 4}


def open_elsewhere(folder):
    """Open a database in another process; what it says."""
    code = f"from neotta.neo.spill import Spill; print(Spill({str(folder)!r}, {WIDTH}, 'me').counts())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_one_model_opens_a_folder_at_a_time(tmp_path):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(["a"], states(1))
    for place in (tmp_path, tmp_path / ".." / tmp_path.name):
        with pytest.raises(StateFileError, match="in use by another model or process"):
            Spill(place, WIDTH, "me")
    gc.collect()  # to close the second connections of this process must not lift the lock of the first
    assert "in use by another model or process" in open_elsewhere(tmp_path)
    spill.write(["b"], states(2))
    assert held(spill) == {"a": 1, "b": 2}
    spill.close()
    assert open_elsewhere(tmp_path) == "{'a': 1, 'b': 2}\n"
    assert held(Spill(tmp_path, WIDTH, "me")) == {"a": 1, "b": 2}


def test_a_folder_whose_process_was_killed_can_be_opened(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER.replace("4", str(WIDTH)), tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        with pytest.raises(StateFileError, match="in use"):
            Spill(tmp_path, WIDTH, "me")
        process.kill()
    assert len(Spill(tmp_path, WIDTH, "me").counts()) == 50


FORKED = """
import os, sys, torch, neotta
from torch import nn
torch.set_num_threads(1)
model = neotta.adapt(nn.Sequential(nn.Linear(4, 2)), "neo", streams=True, capacity=1, folder=sys.argv[1])
def answer(name):
    with neotta.streams([name]), torch.no_grad():
        model(torch.ones(1, 4))
answer("a")
answer("b")
if os.fork() == 0:
    for stream in "cb":  # "b" is held in memory
        try:
            answer(stream)
        except neotta.NeottaError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
answer("c")
print(neotta.head(model).streams.counts())
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORKED, tmp_path], capture_output=True, text=True, check=True)
    new, held_in_memory, counts = done.stdout.splitlines()
    for refused in (new, held_in_memory):
        assert "opened by the process that forked this one" in refused
    assert ast.literal_eval(counts) == {"a": 1, "b": 1, "c": 1}


def test_a_database_of_another_kind_is_refused_and_stays(tmp_path):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(["a"], states(1))
    del spill
    with pytest.raises(StateMismatchError, match="another model"):
        Spill(tmp_path, WIDTH, "you")
    with pytest.raises(StateMismatchError, match="another model"):
        Spill(tmp_path, WIDTH + 1, "me")
    assert held(Spill(tmp_path, WIDTH, "me")) == {"a": 1}
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("UPDATE about SET value = 'other' WHERE key = 'format'")
        database.commit()
    with pytest.raises(StateFileError, match=rf"another folder|{FORMAT}"):
        Spill(tmp_path, WIDTH, "me")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be read or written"):
        Spill(tmp_path / "file" / "folder", WIDTH, "me")


def test_many_streams_are_read_in_the_order_asked_for(tmp_path):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(range(1203), states(*range(1203)))
    asked = [*range(1202, -1, -1), "absent"]
    ids, found = spill.read(asked)
    assert ids == asked[:-1]
    assert found[:, 0].tolist() == ids
    assert spill.read([])[1].shape == (0, WIDTH)


def test_a_change_is_on_the_disk_when_the_call_returns(tmp_path):
    spill = Spill(tmp_path / "a" / "b", WIDTH, "me")
    assert spill._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert spill._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_spill_is_used_by_other_threads_than_the_one_that_opened_it(tmp_path):
    spill, found = Spill(tmp_path, WIDTH, "me"), []
    thread = threading.Thread(target=lambda: found.append(spill.write(["a"], states(1)) or held(spill)))
    thread.start()
    thread.join()
    assert found == [{"a": 1}]


def test_a_closed_spill_leaves_nothing_open_and_lets_others_in(tmp_path):
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir())) if open_files.is_dir() else 0
    for turn in range(3):
        spill = Spill(tmp_path, WIDTH, "me")
        spill.write([turn], states(turn))
        spill.close()
        spill.close()  # a second time does nothing
        with pytest.raises(StateFileError, match="closed"):
            spill.counts()
    assert (len(list(open_files.iterdir())) if open_files.is_dir() else 0) == before
    for _ in range(2):
        with pytest.raises(StateMismatchError):
            Spill(tmp_path, WIDTH, "you")  # a refused one lets go of the folder, too
    assert held(Spill(tmp_path, WIDTH, "me")) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("key", ["true", "1.5", "null", "[1]", "{", "nonsense", "[" * 100_000])
def test_ids_that_are_none_are_damage(tmp_path, key):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(["a"], states(1))
    spill._database.execute("UPDATE streams SET id = ?", (key,))
    for read in (spill.read, spill.counts):
        with pytest.raises(StateFileError, match="is not the id of a stream"):
            read()


def test_contents_that_are_exchanged_or_cut_short_are_damage(tmp_path):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(["a", "b"], states(1, 2))
    content = dict(spill._database.execute("SELECT id, state FROM streams"))
    for wrong in (content['"b"'], content['"a"'][:-1], content['"a"'] + b"\0", b""):
        spill._database.execute("UPDATE streams SET state = ? WHERE id = '\"a\"'", (wrong,))
        with pytest.raises(StateFileError, match=r"stream 'a' .* does not match its checksum"):
            spill.read(["a"])
        assert spill.read(["b"])[1][:, 0].tolist() == [2]


def test_a_write_that_fails_half_way_changes_nothing(tmp_path):
    spill = Spill(tmp_path, WIDTH, "me")
    spill.write(["a"], states(1))
    for replace in (False, True):
        with pytest.raises(TypeError):
            spill.write(["b", {"no": {"id"}}], states(2, 3), replace=replace)
        assert held(spill) == {"a": 1}
    spill.write(["b"], states(2))
    assert held(spill) == {"a": 1, "b": 2}
