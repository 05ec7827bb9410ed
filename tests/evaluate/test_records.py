from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import stat
from pathlib import Path
from types import MappingProxyType

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.errors import DataError, StorageError
from neotta.evaluate.records import Record, Records, as_line, content_key, write_records
from neotta.evaluate.results import results


def record(number, **more):
    return Record.make({"key": content_key({"run": number}), "number": number, **more})


def test_what_is_appended_is_read(tmp_path):
    records = Records(tmp_path / "deep" / "r.jsonl")
    assert records.read() == []
    records.append(record(1, metrics={"top1": 50.0, "nll": math.nan}))
    records.append(record(2, status="failed", error="it broke"))
    first, second = records.read()
    assert first.metrics == {"top1": 50.0, "nll": None}
    assert records.keys() == {first.key}
    records.append(record(2, status="ok"))
    assert records.keys() == {first.key, second.key}
    assert len(records.read()) == 2


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text()))
def test_the_key_is_the_content(content):
    shuffled = dict(reversed(list(content.items())))
    assert content_key(content) == content_key(shuffled)
    assert content_key(content) != content_key({**content, "another": 1})


@pytest.mark.parametrize("damage", ["cut", "text", "middle"])
def test_unreadable_lines_are_skipped_and_stay_in_the_file(tmp_path, damage):
    records = Records(tmp_path / "r.jsonl")
    for number in range(3):
        records.append(record(number, value=1.5))
    lines = records.path.read_bytes().splitlines(keepends=True)
    if damage == "cut":
        lines[2] = lines[2][:30]
    elif damage == "text":
        lines[1] = b"what is this\n"
    else:
        lines[1] = b"\xff\xfe" + lines[1][5:]
    broken = b"".join(lines)
    records.path.write_bytes(broken)
    with pytest.warns(RuntimeWarning, match="1 of 3 lines"):
        kept = records.read()
    assert [entry.number for entry in kept] == ([0, 1] if damage == "cut" else [0, 2])
    with pytest.warns(RuntimeWarning, match="1 of 3 lines"):
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_a_device_keeps_no_records():
    with pytest.raises(DataError, match="'/dev/full' is no file that keeps what is written to it"):
        Records("/dev/full")


def test_a_line_cut_short_by_a_dying_writer_does_not_spoil_the_next(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1))
    with records.path.open("ab") as file:
        file.write(b'{"key": "half')
    records.append(record(2))
    with pytest.warns(RuntimeWarning, match="1 of 3 lines"):
        assert [entry.number for entry in records.read()] == [1, 2]


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
    table = results(tmp_path / "r.jsonl").frame()
    assert list(table["top1"]) == [50.0, 60.0]
    assert list(table["method"]) == ["unknown alpha=0.1", "unknown"]
    assert len(results([tmp_path / "r.jsonl", tmp_path / "r.jsonl"])) == 4
    with pytest.raises(DataError, match="no file of records"):
        results(tmp_path / "nothing.jsonl")
    with pytest.raises(DataError, match="folder"):
        Records(tmp_path)


def test_a_file_that_has_grown_changed_or_gone_is_read_as_it_is(tmp_path):
    path = tmp_path / "records.jsonl"
    records, other = Records(path), Records(tmp_path / "other.jsonl")
    for number in range(3):
        records.append(Record(key=str(number), value=number))
        other.append(Record(key="elsewhere"))
        found = records.read()
        assert [record.value for record in found] == list(range(number + 1))
    records.append(Record(key="1", value=10))
    assert [(record.key, record.value) for record in records.read()] == [("0", 0), ("2", 2), ("1", 10)]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[2] + lines[0])
    assert [record.value for record in records.read()] == [2, 0]
    with path.open("a") as file:
        file.write('{"key": "damaged')
    with pytest.warns(RuntimeWarning, match="1 of 3 lines"):
        assert [record.value for record in records.read()] == [2, 0]
    path.unlink()
    assert records.read() == []
    assert [record.key for record in other.read()] == ["elsewhere"]


def test_a_line_by_hand():
    """The format is what other programs read."""
    assert as_line({"value": (1.5, math.inf), "key": "é"}) == '{"key":"é","value":[1.5,null]}'
    assert as_line(MappingProxyType({"key": "a"})) == as_line({"key": "a"})
    assert content_key({"run": 1}) == hashlib.sha256(b'{"run":1}').hexdigest()[:32]
    assert content_key({"b": {"d": -math.inf, "c": [math.nan]}, "a": 1}) == content_key(
        {"a": 1, "b": {"c": [None], "d": None}}
    )


@pytest.mark.parametrize("line", ["[1]", "3", '{"number": 1}', '{"key": 5}', "[" * 100_000])
def test_lines_that_are_no_records_are_skipped(tmp_path, line):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1))
    with records.path.open("a") as file:
        file.write(f"\n   \n{line}\n")
    with pytest.warns(RuntimeWarning, match="1 of 2 lines"):
        assert [entry.number for entry in records.read()] == [1]


def test_what_is_flushed_when(tmp_path, monkeypatch):
    flushed, real = [], os.fsync

    def fsync(handle):
        flushed.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    records = Records(tmp_path / "a" / "b" / "r.jsonl")
    records.append(record(1))
    assert flushed == [False, True], "the file, and the name of a new file"
    flushed.clear()
    records.append(record(2))
    assert flushed == [False]


def test_the_last_of_records_with_one_key_comes_last(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    for number, value in ((1, "old"), (2, "other"), (1, "new")):
        records.append(record(number, value=value))
    for _ in range(2):  # the second time from memory
        assert [(entry.number, entry.value) for entry in records.read()] == [(2, "other"), (1, "new")]


def test_columns_are_the_ends_of_paths(tmp_path):
    records = Records(tmp_path / "r.jsonl")
    records.append(record(1, options={}, deep={"a": {"b": 1, "c": {}}}, listed=[{"x": 1}]))
    table = results(records.path).frame()
    assert {"key", "number", "deep.a.b", "listed"} <= set(table.columns)
    assert len(results(str(records.path))) == 1


def test_records_are_written_to_a_new_file_in_order(tmp_path):
    write_records([record(2), record(1)], tmp_path / "new.jsonl")
    assert (tmp_path / "new.jsonl").read_text() == "".join(
        f"{as_line(record(number).entries())}\n" for number in (2, 1)
    )
    assert [entry.number for entry in Records(tmp_path / "new.jsonl").read()] == [2, 1]


def test_an_entry_that_does_not_fit_is_named_and_others_may_be_new(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"key": "a", "seed": 1, "invented": [1]}\n')
    (found,) = Records(path).read()
    assert (found.seed, found.invented, found.measured) == (1, [1], False)
    assert found.entries() == {"key": "a", "seed": 1, "invented": [1]}
    path.write_text('{"key": "a", "seed": "one"}\n')
    with pytest.raises(DataError, match="the record 'a' cannot be read: its entry 'seed' does not fit"):
        Records(path).read()
    with pytest.raises(DataError, match=r"the record 'b' cannot be read: its entry 'metrics.top1'"):
        Record.make({"key": "b", "metrics": {"top1": "high"}})


def test_a_file_that_cannot_be_opened_is_the_packages_own_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the results cannot be written"):
        Records(tmp_path / "file" / "r.jsonl").append(record(1))


def test_parquet_is_read_but_not_appended_to(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "r.parquet"
    write_records([record(2, value=1.5), record(1, value=2.5)], path)
    for _ in range(2):  # the second time from memory
        assert [(entry.number, entry.value) for entry in Records(path).read()] == [(2, 1.5), (1, 2.5)]
    assert Records(path).read()[0] == record(2, value=1.5)
    before = path.read_bytes()
    with pytest.raises(DataError, match="cannot append records to the Parquet file"):
        Records(path).append(record(3))
    assert path.read_bytes() == before
    write_records([record(5, value=0.5)], path)
    assert [entry.number for entry in Records(path).read()] == [5], "another file by the same name"


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


@given(
    st.lists(
        st.dictionaries(
            st.text(max_size=3).filter(lambda name: not name.endswith(".json")),
            VALUES | st.lists(VALUES) | st.dictionaries(st.text(), VALUES),
        ),
        max_size=4,
    )
)
def test_parquet_gives_back_what_was_written(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("any") / "any.parquet"
    records = [{**each, "key": str(number)} for number, each in enumerate(entries)]
    write_records(map(Record.make, records), path)
    known = [{name: value for name, value in record.items() if value is not None} for record in records]
    assert [record.entries() for record in Records(path).read()] == known


def test_columns_of_parquet_have_types_or_hold_json(tmp_path):
    import pandas

    records = [Record(key="a", metrics={"top1": 1.5}, seed=1), Record(key="b", metrics={})]
    write_records(records, tmp_path / "a.parquet")
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert {name: str(kind) for name, kind in frame.dtypes.items()}["seed"] == "Int64"
    assert list(frame["metrics.json"]) == ['{"top1": 1.5}', "{}"]


def test_files_that_hold_no_records_are_named(tmp_path):
    import pandas

    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"cannot read records from .*broken"):
        Records(tmp_path / "broken.parquet").read()
    pandas.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="another kind of Parquet file"):
        Records(tmp_path / "other.parquet").read()
    pandas.DataFrame({"key": ["a"], "metrics.json": ["{"]}).to_parquet(tmp_path / "half.parquet")
    with pytest.raises(DataError, match=r"cannot read records from .*half"):
        Records(tmp_path / "half.parquet").read()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_records_of_earlier_versions_are_rejected_in_one_line(tmp_path, form):
    entries = {"key": "k", "method": "neo", "protocol": "online", "stream": "iid", "metrics": {"top1": 1.0}}
    path = tmp_path / f"old.{form}"
    if form == "jsonl":
        path.write_text(json.dumps(entries) + "\n")
    else:
        frame = pandas.DataFrame({"key": ["k"], "protocol": ["online"], "metrics.json": ['{"top1": 1.0}']})
        frame.to_parquet(path)
    with pytest.raises(DataError, match=r"'k' .* neotta 0\.3 or earlier") as caught:
        Records(path).read()
    assert "\n" not in str(caught.value)
