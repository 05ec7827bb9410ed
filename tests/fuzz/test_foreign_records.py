"""Records from strangers: damaged lines, and lines that make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.answered import records_of
from support.fuzzing import STRANGE, damaged, fuzz, only_own_errors, strange

from neotta.cli.compare import compare
from neotta.errors import DataError
from neotta.evaluate.answers import unpack
from neotta.evaluate.records import Record, Records, as_line
from neotta.evaluate.results import results

RIGHT = {"none": [10, 12], "neo": [15, 11]}
RECORDS = [record.entries() for record in records_of(RIGHT, ["fog/3", "fog/5"], images=20)]
for record in RECORDS:
    record |= {"preset": "paper", "options": {"a": "1"}, "order": "correlated", "order_options": {"delta": 0.1}}
    record |= {"question": "q", "revision": "1", "packages": {"neotta": "1"}, "seconds": 0.5, "error": "none"}
RECORDS[0] |= {"per_domain": {"fog/3": {"top1": 50.0, "ece": None}, "fog/5": {"top1": 60.0}}}
TUNED = {"among": {"a": [1, 2]}, "tried": [[{"a": 1}, 50.0]], "on": ["snow/3"], "accuracy": 50.0}
RECORDS[2] |= {"tuned": TUNED, "order": "continual", "source_domain": "clean", "held_out_samples": 3}
RECORDS[3] |= {"left_out": "it cannot run"}
RECORDS[4] |= {"status": "failed", "error": "OSError: it broke"}


def written(folder, records):
    (folder / "r.jsonl").write_text("".join(f"{as_line(record)}\n" for record in records), encoding="utf-8")
    return folder / "r.jsonl"


@given(data=st.data())
@fuzz(25)
def test_damaged_records(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    path.write_bytes(data.draw(damaged("".join(f"{as_line(record)}\n" for record in RECORDS[:4]).encode())))
    with only_own_errors():
        assert len(Records(path).read()) <= 8


@given(data=st.data())
@fuzz(15)
def test_records_that_are_whole_but_make_no_sense(data, tmp_path_factory):
    number = data.draw(st.integers(0, 4))
    record = data.draw(strange(RECORDS[number]))
    try:
        path = written(tmp_path_factory.mktemp("records"), [*RECORDS[:number], *RECORDS[number + 1 :], record])
    except (TypeError, ValueError, AttributeError):
        return  # no JSON
    with only_own_errors():
        results(path)
    for over_time in (False, True):
        with only_own_errors():
            compare([path], over_time=over_time)


ANSWERS = RECORDS[0]["answers"]
KINDS = STRANGE | st.sampled_from([10**9, 2**40, 3, "01?", "10x", [0, 1], [[0]], [-1], [2**70]])
FEW = {**ANSWERS, "right": "01?", "images": [3, 2, 2], "domain": [0, 0, 0]}
DRAWN = [ANSWERS, FEW, {name: value for name, value in FEW.items() if name != "images"}]


@given(answers=st.sampled_from(DRAWN).flatmap(lambda good: strange(good, KINDS)))
@fuzz(100)
def test_answers_that_make_no_sense(answers):
    with only_own_errors():
        unpack(Record.model_construct(key="", answers=answers, seed=1, batch_size=8))


@pytest.mark.parametrize(
    ("entry", "value", "named"),
    [
        ("seed", [], "its entry 'seed'"),
        ("method", None, "its entry 'method'"),
        ("metrics", {"top1": 1e300}, "its entry 'metrics.top1'"),
        ("metrics", {"top1": "50"}, "its entry 'metrics.top1'"),
        ("tuned", {"among": []}, "its entry 'tuned.among'"),
        ("answers", {**ANSWERS, "images": [2**40]}, "20 positions"),
        ("answers", {**ANSWERS, "pools": [["fog/3", 2**40, "0"]]}, "'pools'"),
    ],
)
def test_a_record_that_makes_no_sense_is_named(entry, value, named, tmp_path):
    path = written(tmp_path, [{**RECORDS[5], entry: value}, RECORDS[6]])
    with pytest.raises(DataError, match=f"the record '{RECORDS[5]['key']}'") as raised:
        compare([path])
    assert named in str(raised.value)


@pytest.mark.parametrize("line", ['{"key":[]}', "[" * 100_000])
def test_lines_that_no_record_can_have(line, tmp_path):
    path = written(tmp_path, RECORDS[:1])
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.warns(RuntimeWarning, match="1 of 2 lines"):
        assert len(Records(path).read()) == 1


def test_a_domain_of_which_no_answer_is_known(tmp_path, capsys):
    """A record may name a domain, with its accuracy, in which no sample of its answers lies."""
    domains = {"fog/3": {"top1": 50.0}, "snow/3": {"top1": 40.0, "ece": None}}
    path = written(tmp_path, [{**record, "per_domain": domains} for record in RECORDS[5:]])
    compare([path])
    assert "do not say which samples were right" in " ".join(capsys.readouterr().out.split())
