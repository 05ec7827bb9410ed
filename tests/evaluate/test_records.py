from __future__ import annotations

import errno
import hashlib
import json
import math
import multiprocessing
import os
import stat
import threading
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta._locked_file import locked
from neotta.errors import DataError, StorageError
from neotta.evaluate.records import Records, as_line, content_key, results, write_records


def record(number, **more):
    return {"key": content_key({"run": number}), "number": number, **more}


def test_what_is_appended_is_read(tmp_path):
    records = Records(tmp_path / "deep" / "r.jsonl")
    assert records.read() == []
    records.append(record(1, metrics={"top1": 50.0, "nll": math.nan}))
    records.append(record(2, status="failed", error="it broke"))
    first, second = records.read()
    assert first["metrics"] == {"top1": 50.0, "nll": None}
    assert records.keys() == {first["key"]}
    records.append(record(2, status="ok"))
    assert records.keys() == {first["key"], second["key"]}
    assert len(records.read()) == 2


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text()))
def test_the_key_is_the_content(content):
    shuffled = dict(reversed(list(content.items())))
    assert content_key(content) == content_key(shuffled)
    assert content_key(content) != content_key({**content, "another": 1})


@pytest.mark.parametrize("damage", ["flip", "cut", "text", "middle"])
def test_damaged_lines_are_moved_aside_and_the_rest_kept(tmp_path, damage):
    records = Records(tmp_path / "r.jsonl")
    for number in range(3):
        records.append(record(number, value=1.5))
    lines = records.path.read_bytes().splitlines(keepends=True)
    if damage == "flip":
        lines[1] = lines[1].replace(b"1.5", b"9.5")
    elif damage == "cut":
        lines[2] = lines[2][:30]
    elif damage == "text":
        lines[1] = b"what is this\n"
    else:
        lines[1] = b"\xff\xfe" + lines[1][5:]
    broken = b"".join(lines)
    records.path.write_bytes(broken)
    with pytest.warns(RuntimeWarning, match="1 of 3 records"):
        kept = records.read()
    assert [entry["number"] for entry in kept] == ([0, 1] if damage == "cut" else [0, 2])
    assert (tmp_path / "r.jsonl.damaged-1").read_bytes() == broken
    assert records.read() == kept


def test_who_only_reads_leaves_the_file_as_it_is(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    for number in range(3):
        records.append(record(number, value=1.5))
    broken = records.path.read_bytes().replace(b"1.5", b"9.5", 1)
    records.path.write_bytes(broken)
    with pytest.warns(RuntimeWarning, match=r"1 of 3 records .* left out"):
        assert len(results(records.path)) == 2
    assert records.path.read_bytes() == broken
    assert list(tmp_path.iterdir()) == [records.path]


def test_another_kind_of_file_is_not_touched(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("seeds = 3\n")
    with pytest.raises(DataError, match=r"plan.toml' holds no records of runs"):
        Records(path).keys()
    assert path.read_text() == "seeds = 3\n"
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(bytes(100))
    with pytest.warns(RuntimeWarning, match="1 of 1 records"):
        assert Records(path).keys() == set()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_a_device_keeps_no_records():
    with pytest.raises(DataError, match="'/dev/full' is no file that keeps what is written to it"):
        Records("/dev/full")


def test_a_file_that_cannot_be_repaired_stays_whole(tmp_path, monkeypatch):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1))
    broken = records.path.read_bytes() + b"nonsense\n"
    records.path.write_bytes(broken)

    def full(path, content):
        with path.open("wb") as file:
            file.write(content[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match=r"1 of 2 records .* cannot be repaired: .*No space left"):
        records.read()
    assert records.path.read_bytes() == broken
    assert list(tmp_path.iterdir()) == [records.path]


def test_a_file_that_cannot_be_opened_for_repair_is_named(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"half')
    opened = Path.open

    def read_only(path, mode="r", *args, **named):
        if "+" in mode:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, mode, *args, **named)

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.raises(StorageError, match=r"^1 of 1 records .* cannot be repaired: Permission denied"):
        Records(path).read()


@pytest.mark.filterwarnings("ignore:1 of 1 records")
def test_readers_of_a_damaged_file_do_not_wait_for_each_other(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.path.write_bytes(b'{"half')
    with locked(records.path, "rb", shared=True):
        reader = threading.Thread(target=records.read, kwargs={"repair": False})
        reader.start()
        reader.join(20)
        assert not reader.is_alive()


def test_a_line_cut_short_by_a_dying_writer_does_not_spoil_the_next(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1))
    with records.path.open("ab") as file:
        file.write(b'{"key": "half')
    records.append(record(2))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert [entry["number"] for entry in records.read()] == [1, 2]


def write_many(path, start):
    records = Records(path)
    for number in range(start, start + 50):
        records.append(record(number, padding="x" * 5000))


def test_processes_append_side_by_side(tmp_path):
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, start)) for start in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Records(path).read()) == 150


def test_results_are_a_table(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1, options={"alpha": 0.1}, metrics={"top1": 50.0}))
    records.append(record(2, options={}, metrics={"top1": 60.0}))
    table = results(tmp_path / "r.jsonl")
    assert list(table["metrics.top1"]) == [50.0, 60.0]
    assert table["options.alpha"][0] == 0.1
    assert len(results([tmp_path / "r.jsonl", tmp_path / "r.jsonl"])) == 4
    with pytest.raises(DataError, match="no file of records"):
        results(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="folder"):
        Records(tmp_path)
    assert json.loads(records.path.read_text().splitlines()[0])["sha256"]


def test_a_file_that_has_grown_changed_or_gone_is_read_as_it_is(tmp_path):
    path = tmp_path / "records.jsonl"
    records, other = Records(path), Records(tmp_path / "other.jsonl")
    for number in range(3):
        records.append({"key": str(number), "value": number})
        other.append({"key": "elsewhere"})
        found = records.read()
        assert [record["value"] for record in found] == list(range(number + 1))
        found[0].pop("value")  # nobody else's
    records.append({"key": "1", "value": 10})
    assert [(record["key"], record["value"]) for record in records.read()] == [("0", 0), ("2", 2), ("1", 10)]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[2] + lines[0])
    assert [record["value"] for record in records.read()] == [2, 0]
    with path.open("a") as file:
        file.write('{"key": "damaged')
    with pytest.warns(RuntimeWarning, match="1 of 3 records"):
        assert [record["value"] for record in records.read()] == [2, 0]
    path.unlink()
    assert records.read() == []
    assert [record["key"] for record in other.read()] == ["elsewhere"]


def test_a_line_by_hand():
    """The format is what other programs read, and what records of older versions are found by."""
    digest = hashlib.sha256('{"key":"é","value":[1.5,null]}'.encode()).hexdigest()
    line = as_line({"value": (1.5, math.inf), "key": "é", "sha256": "of an older version"})
    assert line == f'{{"key":"é","sha256":"{digest}","value":[1.5,null]}}'
    assert as_line(MappingProxyType({"key": "a"})) == as_line({"key": "a"})
    assert content_key({"run": 1}) == hashlib.sha256(b'{"run":1}').hexdigest()[:32]
    assert content_key({"b": {"d": -math.inf, "c": [math.nan]}, "a": 1}) == content_key(
        {"a": 1, "b": {"c": [None], "d": None}}
    )


@pytest.mark.parametrize(
    "line", ["[1]", "3", '{"number": 1}', '{"key": 5}', '{"key": "a"}', '{"key": "a", "sha256": "b"}']
)
def test_lines_that_are_no_records_are_damaged(tmp_path, line):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1))
    with records.path.open("a") as file:
        file.write(f"\n   \n{line}\n")
    with pytest.warns(RuntimeWarning, match="1 of 2 records"):
        assert [entry["number"] for entry in records.read()] == [1]


def test_a_file_of_damaged_lines_alone_is_repaired_and_numbered(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    for number in (1, 2, 3):
        records.path.write_text(f'{{"half {number}\n')
        with pytest.warns(RuntimeWarning, match=f"1 of 1 records in .* is kept as 'r.jsonl.damaged-{number}'"):
            assert records.read() == []
        assert records.path.read_text() == ""
        assert (tmp_path / f"r.jsonl.damaged-{number}").read_text() == f'{{"half {number}\n'


@pytest.mark.parametrize("sync", [True, False])
def test_what_is_flushed_when(tmp_path, monkeypatch, sync):
    flushed, real = [], os.fsync

    def fsync(handle):
        flushed.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    records = Records(tmp_path / "a" / "b" / "r.jsonl")
    records.append(record(1), sync=sync)
    assert flushed == ([False, True] if sync else []), "the file, and the name of a new file"
    flushed.clear()
    records.append(record(2), sync=sync)
    assert flushed == ([False] if sync else [])


def test_by_default_a_record_is_on_the_disk_when_append_returns(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    Records(tmp_path / "r.jsonl").append(record(1))
    assert len(flushed) == 2


def test_the_last_of_records_with_one_key_comes_last(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    for number, value in ((1, "old"), (2, "other"), (1, "new")):
        records.append(record(number, value=value))
    for _ in range(2):  # the second time from memory
        assert [(entry["number"], entry["value"]) for entry in records.read()] == [(2, "other"), (1, "new")]


def test_columns_are_the_ends_of_paths(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1, options={}, deep={"a": {"b": 1, "c": {}}}, listed=[{"x": 1}]))
    table = results(records.path)
    assert set(table.columns) == {"key", "number", "sha256", "deep.a.b", "listed"}
    assert len(results(str(records.path))) == 1


def test_records_are_written_to_a_new_file_in_order(tmp_path):
    write_records([record(2), record(1)], tmp_path / "new.jsonl")
    assert (tmp_path / "new.jsonl").read_text() == f"{as_line(record(2))}\n{as_line(record(1))}\n"
    assert [entry["number"] for entry in Records(tmp_path / "new.jsonl").read()] == [2, 1]


def test_a_file_that_cannot_be_opened_is_the_packages_own_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the results cannot be written"):
        Records(tmp_path / "file" / "r.jsonl").append(record(1))


def test_parquet_is_read_but_not_appended_to(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "r.parquet"
    write_records([record(2, value=1.5), record(1, value=2.5)], path)
    for _ in range(2):  # the second time from memory
        assert [(entry["number"], entry["value"]) for entry in Records(path).read()] == [(2, 1.5), (1, 2.5)]
    assert as_line(Records(path).read()[0]) == as_line(record(2, value=1.5))
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"cannot append records to the Parquet file .*convert"):
        Records(path).append(record(3))
    assert path.read_bytes() == before
    write_records([record(5, value=0.5)], path)
    assert [entry["number"] for entry in Records(path).read()] == [5], "another file by the same name"
