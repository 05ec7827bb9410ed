"""Records in Parquet read like lines of JSON, and nothing is lost on the way."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.errors import DataError
from neotta.evaluate.records import Records, as_line, results, write_records
from neotta.evaluate.records_parquet import read_parquet, write_parquet

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results" / "records.parquet"
NAMES = st.text("ab./5", min_size=1, max_size=3)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)
RECORDS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4).map(lambda found: {**found, "key": "1"}), max_size=4)


@given(RECORDS)
def test_every_record_comes_back_as_it_was(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("any") / "any.parquet"
    write_parquet(records, path)
    back = read_parquet(path)
    assert [json.dumps(each, sort_keys=True) for each in back] == [json.dumps(each, sort_keys=True) for each in records]


def test_what_was_measured_on_real_models_converts_to_lines_and_back(tmp_path):
    records = Records(RESULTS).read()
    assert len(records) > 10_000
    assert RESULTS.stat().st_size <= 2_000_000
    write_records(records, tmp_path / "lines.jsonl")
    lines = Records(tmp_path / "lines.jsonl").read()  # checks the checksum of each line
    assert lines == records
    write_records(lines[:500], tmp_path / "again.parquet")
    assert [as_line(each) for each in Records(tmp_path / "again.parquet").read()] == [as_line(e) for e in records[:500]]


def test_a_parquet_file_is_compared_like_lines(tmp_path):
    records = [
        {"key": f"{method}{seed}", "status": "ok", "method": method, "options": {}, "domain": "fog/5", "seed": seed}
        | {"domains": ["fog/5"], "manifests": [str(seed)], "metrics": {"top1": value + seed, "ece": None}}
        for method, value in (("none", 50.0), ("neo", 60.5))
        for seed in (1, 2)
    ]
    for name in ("a.jsonl", "a.parquet"):
        write_records(records, tmp_path / name)
    printed = [CliRunner().invoke(app, ["compare", str(tmp_path / name)]) for name in ("a.jsonl", "a.parquet")]
    assert printed[0].exit_code == printed[1].exit_code == 0
    assert printed[0].output == printed[1].output
    tables = [results(tmp_path / name).sort_index(axis=1) for name in ("a.jsonl", "a.parquet")]
    assert tables[0].equals(tables[1])


def test_a_column_has_the_type_of_its_values(tmp_path):
    write_parquet(
        [{"metrics": {"top1": 1.5}, "seed": 1}, {"metrics": {}, "seed": 2, "note": None}], tmp_path / "a.parquet"
    )
    types = {field.name: str(field.type) for field in pyarrow.parquet.read_schema(tmp_path / "a.parquet")}
    assert types == {"metrics.top1": "double", "seed": "int64", "metrics": "string", "note": "string"}


def test_nothing_is_appended_to_a_parquet_file(tmp_path):
    path = tmp_path / "a.parquet"
    write_records([{"key": "1"}], path)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"cannot append .*: convert it with `neotta records convert .*a\.jsonl`"):
        Records(path).append({"key": "2"})
    assert path.read_bytes() == before


def test_other_files_are_refused(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot read records from"):
        Records(tmp_path / "broken.parquet").read()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="another kind of Parquet file"):
        Records(tmp_path / "other.parquet").read()


def test_a_file_that_was_replaced_is_read_again(tmp_path):
    path = tmp_path / "a.parquet"
    for key in ("1", "22"):
        write_records([{"key": key}], path)
        assert [record["key"] for record in Records(path).read()] == [key]
    Records(path).read()[0]["added"] = True
    assert "added" not in Records(path).read()[0]


def test_a_command_converts(tmp_path):
    lines, columns, again = (str(tmp_path / name) for name in ("a.jsonl", "a.parquet", "b.jsonl"))
    write_records([{"key": "1", "metrics": {"top1": 2.0}}, {"key": "2"}], lines)
    for source, target in ((lines, columns), (columns, again)):
        result = CliRunner().invoke(app, ["records", "convert", source, target], catch_exceptions=False)
        assert result.output.startswith(f"2 records in {target}")
    assert Path(again).read_bytes() == Path(lines).read_bytes()
    with pytest.raises(DataError, match="exists: name a new file"):
        CliRunner().invoke(app, ["records", "convert", lines, columns], catch_exceptions=False)
    with pytest.raises(DataError, match="there is no file"):
        CliRunner().invoke(app, ["records", "convert", str(tmp_path / "c.jsonl"), again], catch_exceptions=False)
