"""Streams that wait on disk: through a model, and in the store itself."""

from __future__ import annotations

import ast
import copy
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stream_models import FEATURES, answer, batch, many, plain
from torch import nn

import neotta
from neotta.errors import InputError, OptionError, StateFileError, StateMismatchError, StorageError
from neotta.neo.rules import MeanRule
from neotta.neo.sqlite_store import FILE, SqliteStore
from neotta.neo.stream_cache import record_type
from neotta.neo.stream_ids import unpack


@settings(max_examples=10)
@given(plan=st.lists(st.lists(st.integers(0, 12), max_size=5), max_size=12))
def test_evicted_streams_come_back_as_they_went(tmp_path_factory, plan):
    small, large = many(capacity=5, folder=tmp_path_factory.mktemp("streams")), many()
    for turn, ids in enumerate(plan):
        data = batch(len(ids), turn)
        assert torch.equal(answer(small, data, ids), answer(large, data, ids))
    assert len(neotta.head(small).streams.cache._rows) <= 5
    assert len(neotta.head(small).streams.cache.count) <= 64
    assert neotta.head(small).streams.counts() == neotta.head(large).streams.counts()
    for name in neotta.head(large).streams.counts():
        one, other = (neotta.head(model).streams.centroid(name).state() for model in (small, large))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_least_recently_used_streams_go_first(tmp_path):
    model = many(capacity=3, folder=tmp_path)
    for ids in (["a"], ["b"], ["c"], ["a"], ["d"]):
        answer(model, batch(1), ids)
    assert list(neotta.head(model).streams.cache._rows) == ["c", "a", "d"]
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
        (content,) = database.execute("SELECT fields FROM streams WHERE id = '\"a\"'").fetchone()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        database.execute("UPDATE streams SET fields = ? WHERE id = '\"a\"'", (flipped,))
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
    database = neotta.head(model).streams.cache.store._database
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
    state = neotta.head(model).streams.state()
    ids = unpack(state["ids"])
    assert len(ids) >= 8
    assert len(ids) % 8 == 0
    assert torch.equal(state["mean"], torch.tensor(ids).float().unsqueeze(1).expand(-1, 500))


def test_a_model_with_a_folder_is_not_copied(tmp_path):
    with pytest.raises(OptionError, match="two models would write into one folder"):
        copy.deepcopy(many(capacity=2, folder=tmp_path))


# ---- the store


RECORD = record_type(MeanRule().fields(FEATURES))


def states(*seeds: int) -> dict[str, np.ndarray]:
    """States of as many streams, (n, ...) each; the seed tells them apart."""
    seed = np.array(seeds, np.int64)
    means = np.stack([batch(1, each)[0].numpy() for each in seeds]) if seeds else np.empty((0, FEATURES), np.float32)
    return {
        "count": seed,
        "batches": seed + 1,
        "rejected": seed * 0,
        "scatter": seed / 3.0,
        "discount": seed / 7.0,
        "mean": means,
    }


def held(store: SqliteStore) -> dict[int | str, int]:
    """What is in a store, by the seeds of `states`; each stream is whole."""
    ids, found = store.read()
    seeds = found["count"].tolist()
    for name, array in states(*seeds).items():
        assert np.array_equal(found[name], array), name
    assert store.counts() == dict(zip(ids, seeds, strict=True))
    return dict(zip(ids, seeds, strict=True))


NAMES = st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=2)), unique=True, max_size=6)
CHANGES = st.tuples(st.sampled_from(["write", "replace", "delete", "clear", "open"]), NAMES)


@settings(max_examples=30)
@given(changes=st.lists(CHANGES, max_size=15))
def test_a_store_holds_what_was_written_last_also_when_it_is_opened_again(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("store")
    store, expected = SqliteStore(folder, RECORD, "me"), {}
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
            store = SqliteStore(folder, RECORD, "me")
        assert held(store) == expected
    ids, _ = store.read([*list(expected)[:2], "never written"])
    assert ids == list(expected)[:2]


WRITER = """
import sys, numpy as np
from neotta.neo.rules import MeanRule
from neotta.neo.stream_cache import record_type
from neotta.neo.sqlite_store import SqliteStore
record = record_type(MeanRule().fields(4))
store, turn = SqliteStore(sys.argv[1], record, "me"), 0
while True:
    turn += 1
    fields = np.zeros(50, record)
    fields["count"] = turn
    fields["mean"] = turn
    store.write(list(range(50)), {name: fields[name] for name in record.names})
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
        ids, fields = SqliteStore(tmp_path, record_type(MeanRule().fields(4)), "me").read()
        assert sorted(ids) == list(range(50))
        turns = set(fields["count"].tolist())
        assert len(turns) == 1
        assert turns.pop() in (acknowledged, acknowledged + 1)
        assert (fields["mean"] == fields["count"][:, None]).all()


def test_a_torn_log_is_rolled_back(tmp_path):
    """The write-ahead log is cut after every so many bytes, as by a machine that lost its power."""
    store = SqliteStore(tmp_path / "store", RECORD, "me")
    store.write(["a", 7], states(1, 2))
    log = tmp_path / "store" / f"{FILE}-wal"
    before = log.stat().st_size
    store.write([7, "b"], states(3, 4))
    content = log.read_bytes()
    for size in range(before, len(content) + 1, 97):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "store" / FILE, tmp_path / "copy" / FILE)
        (tmp_path / "copy" / f"{FILE}-wal").write_bytes(content[:size])
        copy = SqliteStore(tmp_path / "copy", RECORD, "me")
        assert held(copy) in ({"a": 1, 7: 2}, {"a": 1, 7: 3, "b": 4})
        copy.write(["c"], states(5))
        assert held(copy)["c"] == 5
        del copy
    assert held(store) == {"a": 1, 7: 3, "b": 4}


def test_others_may_read_while_one_writes(tmp_path):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a"], states(1))
    with closing(sqlite3.connect(f"file:{tmp_path / FILE}?mode=ro", uri=True)) as reader:
        assert reader.execute("SELECT id, count FROM streams").fetchall() == [('"a"', 1)]
        store.write(["b"], states(2))
        assert reader.execute("SELECT count(*) FROM streams").fetchone() == (2,)
    for place in (tmp_path, tmp_path / ".." / tmp_path.name):
        with pytest.raises(StateFileError, match="in use"):
            SqliteStore(place, RECORD, "me")
    again = f"""
from neotta.neo.rules import MeanRule
from neotta.neo.stream_cache import record_type
from neotta.neo.sqlite_store import SqliteStore
SqliteStore({str(tmp_path)!r}, record_type(MeanRule().fields({FEATURES})), "me")
"""
    other = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=False)
    assert "in use by another model or process" in other.stderr
    del store
    assert held(SqliteStore(tmp_path, RECORD, "me")) == {"a": 1, "b": 2}


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
    try:
        answer("c")
    except neotta.NeottaError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
answer("c")
print(neotta.head(model).streams.counts())
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORKED, tmp_path], capture_output=True, text=True, check=True)
    refused, counts = done.stdout.splitlines()
    assert "opened by the process that forked this one" in refused
    assert ast.literal_eval(counts) == {"a": 1, "b": 1, "c": 1}


def test_a_database_of_another_kind_is_refused_and_stays(tmp_path):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a"], states(1))
    del store
    with pytest.raises(StateMismatchError, match="another model"):
        SqliteStore(tmp_path, RECORD, "you")
    with pytest.raises(StateMismatchError, match="another model"):
        SqliteStore(tmp_path, record_type(MeanRule().fields(FEATURES + 1)), "me")
    assert held(SqliteStore(tmp_path, RECORD, "me")) == {"a": 1}
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.execute("UPDATE about SET value = 'other' WHERE key = 'format'")
        database.commit()
    with pytest.raises(StateFileError, match="not a database of streams"):
        SqliteStore(tmp_path, RECORD, "me")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be read or written"):
        SqliteStore(tmp_path / "file" / "folder", RECORD, "me")


def test_many_streams_are_read_in_the_order_asked_for(tmp_path):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(range(1203), states(*range(1203)))
    asked = [*range(1202, -1, -1), "absent"]
    ids, found = store.read(asked)
    assert ids == asked[:-1]
    assert found["count"].tolist() == ids
    assert store.read([])[0] == []


def test_a_change_is_on_the_disk_when_the_call_returns(tmp_path):
    store = SqliteStore(tmp_path / "a" / "b", RECORD, "me")
    assert store._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._database.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_a_store_is_used_by_other_threads_than_the_one_that_opened_it(tmp_path):
    store, found = SqliteStore(tmp_path, RECORD, "me"), []
    thread = threading.Thread(target=lambda: found.append(store.write(["a"], states(1)) or held(store)))
    thread.start()
    thread.join()
    assert found == [{"a": 1}]


def test_a_closed_store_leaves_nothing_open_and_lets_others_in(tmp_path):
    open_files = Path("/proc/self/fd")
    before = len(list(open_files.iterdir())) if open_files.is_dir() else 0
    for turn in range(3):
        store = SqliteStore(tmp_path, RECORD, "me")
        store.write([turn], states(turn))
        store.close()
        store.close()  # a second time does nothing
        with pytest.raises(StateFileError, match="damaged"):  # as SQLite says of a closed database
            store.counts()
    assert (len(list(open_files.iterdir())) if open_files.is_dir() else 0) == before
    for _ in range(2):
        with pytest.raises(StateMismatchError):
            SqliteStore(tmp_path, RECORD, "you")  # a refused one lets go of the folder, too
    assert held(SqliteStore(tmp_path, RECORD, "me")) == {0: 0, 1: 1, 2: 2}


def test_the_lock_has_the_permissions_of_any_new_file(tmp_path):
    before = os.umask(0o022)
    try:
        SqliteStore(tmp_path, RECORD, "me").close()
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert (tmp_path / "lock").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", -1),
        ("batches", -2),
        ("mean", np.nan),
        ("mean", np.inf),
        ("mean", 1.01e17),
        ("mean", -2e17),
        ("scatter", -np.inf),
    ],
)
def test_values_that_make_no_sense_are_named(tmp_path, name, value):
    store = SqliteStore(tmp_path, RECORD, "me")
    fields = states(0, 1, 2)
    fields[name] = fields[name].copy()
    fields[name].reshape(3, -1)[1, -1] = value
    store.write(["a", "b", "c"], fields)
    assert store.read(["a", "c"])[0] == ["a", "c"]
    with pytest.raises(StateFileError, match=rf"stream 'b' .* holds a {name} that makes no sense"):
        store.read()


@pytest.mark.parametrize("value", [1e17, -1e17])
def test_the_largest_mean_is_read(tmp_path, value):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a"], {**states(1), "mean": np.full((1, FEATURES), value, np.float32)})
    assert store.read()[1]["mean"].ravel().tolist() == [float(np.float32(value))] * FEATURES


@pytest.mark.parametrize("key", ["true", "1.5", "null", "[1]", "{", "nonsense", "[" * 100_000])
def test_ids_that_are_none_are_damage(tmp_path, key):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a"], states(1))
    store._database.execute("UPDATE streams SET id = ?", (key,))
    for read in (store.read, store.counts):
        with pytest.raises(StateFileError, match="is not the id of a stream"):
            read()


def test_contents_that_are_exchanged_or_cut_short_are_damage(tmp_path):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a", "b"], states(1, 2))
    content = dict(store._database.execute("SELECT id, fields FROM streams"))
    for wrong in (content['"b"'], content['"a"'][:-1], content['"a"'] + b"\0", b""):
        store._database.execute("UPDATE streams SET fields = ? WHERE id = '\"a\"'", (wrong,))
        with pytest.raises(StateFileError, match=r"stream 'a' .* does not match its checksum"):
            store.read(["a"])
        assert store.read(["b"])[1]["count"].tolist() == [2]


def test_a_write_that_fails_half_way_changes_nothing(tmp_path):
    store = SqliteStore(tmp_path, RECORD, "me")
    store.write(["a"], states(1))
    for replace in (False, True):
        with pytest.raises(TypeError):
            store.write(["b", {"no": {"id"}}], states(2, 3), replace=replace)
        assert held(store) == {"a": 1}
    store.write(["b"], states(2))
    assert held(store) == {"a": 1, "b": 2}
