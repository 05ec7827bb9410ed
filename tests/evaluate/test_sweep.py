from __future__ import annotations

import resource

import pytest
from support.benches import lasting, sweep

from neotta.errors import DataError, NeottaError, OptionError, StorageError, UnknownMethodError
from neotta.evaluate.plan import Plan, split_methods
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Watcher

SMALL = {"corruptions": ["contrast", "fog"], "severities": [3], "seeds": 2, "samples": [48], "methods": "none,neo"}


def plan(**changes):
    return Plan.make({**SMALL, **changes})


class Notes(Watcher):
    def __init__(self, stop_after=None, stop_encoding=False):
        self.runs, self.images, self.methods, self.seen = None, None, [], 0
        self._stop_after, self._stop_encoding = stop_after, stop_encoding

    def planned(self, runs, skipped, images):
        self.runs, self.images = runs, images

    def encoded(self, count):
        self.seen += count
        if self._stop_encoding:
            raise KeyboardInterrupt

    def recorded(self, record):
        self.methods.append(record.method)
        if len(self.methods) == self._stop_after:
            raise KeyboardInterrupt


def test_what_is_recorded_is_not_done_again(tmp_path):
    path = tmp_path / "results.jsonl"
    first = sweep(plan(), path)
    assert (first.done, first.skipped, first.failed) == (8, 0, [])
    before = path.read_bytes()
    again = sweep(plan(), path)
    assert (again.done, again.skipped, again.keys) == (0, 8, first.keys)
    assert path.read_bytes() == before
    more = sweep(plan(methods="none,neo,lame"), path)
    assert (more.done, more.skipped) == (4, 8)
    forced = sweep(plan(), path, force=True)
    assert (forced.done, forced.skipped) == (8, 0)
    assert len(path.read_bytes().splitlines()) == 20
    assert len(Records(path).read()) == 12


def test_an_interrupted_sweep_continues(tmp_path):
    path = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        sweep(plan(), path, cache=tmp_path / "cache", progress=Notes(stop_after=3))
    assert len(Records(path).read()) == 3
    rest = Notes()
    summary = sweep(plan(), path, cache=tmp_path / "cache", progress=rest)
    assert (summary.done, summary.skipped, rest.images) == (5, 3, 0)
    assert len(path.read_bytes().splitlines()) == 8
    whole = tmp_path / "whole.jsonl"
    sweep(plan(), whole)
    assert lasting(Records(path).read()) == lasting(Records(whole).read())


def test_what_was_encoded_before_an_interruption_is_kept(tmp_path):
    settings = {"cache": tmp_path / "cache"}
    wanted = plan(samples=[150], seeds=1)
    notes = Notes(stop_encoding=True)
    with pytest.raises(KeyboardInterrupt):
        sweep(wanted, tmp_path / "results.jsonl", progress=notes, **settings)
    assert (notes.images, notes.seen) == (300, 64)
    assert not (tmp_path / "results.jsonl").exists()
    rest = Notes()
    sweep(wanted, tmp_path / "results.jsonl", progress=rest, **settings)
    assert rest.images == rest.seen == 236


def test_a_failed_run_is_recorded_and_tried_again(tmp_path):
    path = tmp_path / "results.jsonl"
    wanted = plan(methods="neo-bn,neo", seeds=1)
    summary = sweep(wanted, path)
    assert (summary.done, [record.method for record in summary.failed]) == (4, ["neo-bn", "neo-bn"])
    assert all("BatchNorm" in record.error for record in summary.failed)
    again = sweep(wanted, path)
    assert (again.done, again.skipped, len(again.failed)) == (2, 2, 2)
    assert len(Records(path).read()) == 4


def test_runs_whose_data_are_missing_fail_and_the_rest_goes_on(tmp_path):
    summary = sweep(plan(samples=[48, 5000], seeds=1), tmp_path / "results.jsonl")
    assert (summary.done, len(summary.failed)) == (8, 4)
    assert all("5000 samples are asked for" in record.error for record in summary.failed)
    assert len({record.key for record in summary.failed}) == 4


def test_the_same_run_asked_for_twice_is_done_once(tmp_path):
    summary = sweep(plan(methods="neo,neo:weighting=sample", seeds=1), tmp_path / "results.jsonl")
    assert (summary.done, summary.skipped, len(summary.keys)) == (2, 2, 2)


@pytest.mark.parametrize(
    ("changes", "settings", "error", "match"),
    [
        ({"methods": "neo,tnet"}, {}, UnknownMethodError, "did you mean 'tent'"),
        ({"methods": "neo-continual:alfa=0.1"}, {}, OptionError, "no option 'alfa'"),
        ({"methods": "neo@best"}, {}, OptionError, "no preset 'best'"),
        ({}, {"engine": "threads"}, OptionError, "no engine 'threads': choose local or ray"),
        ({}, {"jobs": 0}, OptionError, "jobs must be at least 1"),
        ({"data": "nowhere"}, {}, DataError, "nowhere"),
    ],
)
def test_mistakes_are_found_before_anything_is_done(tmp_path, changes, settings, error, match):
    path = tmp_path / "results.jsonl"
    with pytest.raises(error, match=match):
        sweep(plan(**changes), path, **settings)
    assert not path.exists()


def test_a_cache_that_cannot_be_written_to_is_a_clear_error(tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(StorageError, match="embeddings cannot be kept in"):
        sweep(plan(), tmp_path / "results.jsonl", cache=tmp_path / "cache")
    assert issubclass(StorageError, NeottaError)


def test_a_file_that_cannot_be_appended_to_is_refused_before_anything_is_done(tmp_path):
    notes = Notes()
    with pytest.raises(DataError, match="cannot append records to the Parquet file"):
        sweep(plan(), tmp_path / "results.parquet", progress=notes)
    assert notes.runs is None


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path):
    """The limit on the size of files stands for the size of the disk."""
    path = tmp_path / "results.jsonl"
    sweep(plan(seeds=1), path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(StorageError, match=r"the results cannot be written.*what was recorded before is safe"):
            sweep(plan(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert sweep(plan(), path).done == 4


def test_methods_and_their_options_are_told_apart():
    text = "none,neo-continual:alpha=0.05|0.1,debias=true,tent:lr=0.001,sar@original"
    assert split_methods(text) == ["none", "neo-continual:alpha=0.05|0.1,debias=true", "tent:lr=0.001", "sar@original"]
    (first, second) = Plan.make({"methods": "neo-continual:alpha=0.05|0.1,debias=true,none"}).methods
    assert first.options == {"alpha": [0.05, 0.1], "debias": True}
    assert second.method == "none"
