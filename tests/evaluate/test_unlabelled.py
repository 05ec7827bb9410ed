from __future__ import annotations

import csv
import io
import sys
import warnings

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from support.benches import open_bench

from neotta.cli.outcome import write_predictions
from neotta.data import digits
from neotta.data.corruptions import corrupt
from neotta.errors import MissingExtraError, OptionError
from neotta.evaluate.answers import UNKNOWN, PredictionStats, RunResult
from neotta.evaluate.plan import Plan
from neotta.evaluate.unlabelled import predictions, reported_runs, unlabelled_report

COUNT = 120


def write_images(folder, corruption=None, labelled=False, count=COUNT):
    source = digits("test")
    for index in np.random.default_rng(0).permutation(len(source))[:count]:
        image = source.read(index)
        if corruption is not None:
            image = corrupt(image, corruption, 5, preset="cifar", seed=int(index))
        place = folder / str(source.labels[index]) if labelled else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{index}.png")
    return folder


def bench(folder, methods="none,neo", **more):
    return open_bench(Plan.make({"data": str(folder), "methods": methods, "seeds": 1, "samples": -1, **more}))


def made(session):
    return unlabelled_report(session, reported_runs(session.runs()))


def said(report):
    return " ".join(report.notes)


@pytest.fixture(scope="module")
def foggy(tmp_path_factory):
    """A folder of foggy digits without labels, its session and the report on it."""
    session = bench(write_images(tmp_path_factory.mktemp("data") / "foggy", "fog"), "none,neo,tent,neo-bn")
    return session, made(session)


def test_changed_predictions_are_counted(foggy):
    session, report = foggy
    none, neo, tent, _ = session.runs()
    found = {run.method: session.predict(run).stats for run in (none, neo, tent)}
    rows = {row["method"]: row for row in report.table.to_dict("records")}
    assert set(rows) == {"neo", "tent"}
    for method, row in rows.items():
        before, after = found["none"].predicted, found[method].predicted
        assert row["samples"] == COUNT
        assert row["changed predictions"] == int((before != after).sum())
        for when, answers in (("before", before), ("after", after)):
            counts = torch.bincount(answers, minlength=10)
            often, share = int(counts.argmax()), int(counts.max()) / COUNT
            assert row[f"most frequent {when}"].startswith(f"{often} {share:.0%}, ")
    assert rows["neo"]["changed predictions"] > 20
    assert "neo-bn could not be run: UnsupportedModelError" in said(report)
    assert "BatchNorm" in said(report)
    assert "Without labels nobody can tell" in said(report)
    assert "neotta judge" in said(report)


def test_unreadable_images_are_counted_and_named(tmp_path):
    write_images(tmp_path, count=20)
    (tmp_path / "[b]damaged.png").write_bytes((tmp_path / next(tmp_path.glob("*.png"))).read_bytes()[:60])
    session = bench(tmp_path, "neo")
    with pytest.warns(UserWarning, match="damaged.png"):
        report = made(session)
    assert report.table["samples"].tolist() == [20]
    assert "1 image could not be read: [b]damaged.png" in said(report)


def test_nothing_readable(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = made(bench(tmp_path))
    assert len(report.table) == 0
    assert "1 image could not be read: a.png" in said(report)


def test_one_setting_is_reported(tmp_path):
    session = bench(write_images(tmp_path, count=40), "neo", seeds=2, samples=[16, 8], batch_sizes=[4, 8])
    report = made(session)
    assert "Order iid, seed 2020, 16 samples, batch size 4." in report.notes
    assert report.table[["method", "samples"]].values.tolist() == [["neo", 16]]


def test_domains_of_a_continual_run_are_told_apart():
    plan = {"corruptions": ["clean", "fog"], "order": "continual", "methods": "neo", "seeds": 1, "samples": [32]}
    session = open_bench(Plan.make(plan))
    table = made(session).table
    assert dict(zip(table["domain"], table["samples"], strict=True)) == {"clean": 32, "fog/5": 32}


def test_one_sided_predictions_are_warned_of(tmp_path):
    source = digits("test")
    for index in np.flatnonzero(source.labels == 3):
        Image.fromarray(source.read(index)).save(tmp_path / f"{index}.png")
    assert "% of the plain answers are class '3'" in said(made(bench(tmp_path)))


# ---- files


def every(session):
    return predictions(session, reported_runs(session.runs(), every_seed=True))[0]


def test_csv(foggy, tmp_path):
    session, report = foggy
    write_predictions(tmp_path / "p.csv", every(session), [str(digit) for digit in range(10)])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text(encoding="utf-8"))))
    assert len(rows) == COUNT
    assert list(rows[0]) == [
        "id", "domain", "seed", "none.prediction", "none.confidence", "neo.prediction", "neo.confidence",
        "tent.prediction", "tent.confidence",
    ]  # fmt: skip
    changed = sum(row["none.prediction"] != row["neo.prediction"] for row in rows)
    assert changed == report.table["changed predictions"].iloc[0]
    known = session.predict(session.runs()[1])
    columns = known.ids, known.stats.predicted.tolist(), known.stats.confidence.tolist()
    for row, name, found, confidence in zip(rows, *columns, strict=True):
        assert (row["id"], row["neo.prediction"]) == (name, str(found))
        assert float(row["neo.confidence"]) == pytest.approx(confidence, abs=1e-6)


def result(method, ids, logits, labels=None):
    known = [UNKNOWN if label is None else label for label in labels or [None] * len(ids)]
    stats = PredictionStats.of(torch.tensor(logits), torch.tensor(known))
    return RunResult(list(ids), ["d"] * len(ids), stats).frame().assign(seed=7, method=method)


@pytest.mark.parametrize("names", [["cat", 'dog, "big"'], None])
def test_labels_names_and_gaps(tmp_path, names):
    both = [result("none", "ab", [[0.0, 1.0], [2.0, 0.0]], [1, None]), result("neo", "b", [[0.0, 0.0]])]
    write_predictions(tmp_path / "p.csv", pandas.concat(both), names)
    rows = list(csv.reader(io.StringIO((tmp_path / "p.csv").read_text(encoding="utf-8"))))
    cat, dog = names or ("0", "1")
    assert rows == [
        ["id", "domain", "seed", "label", "none.prediction", "none.confidence", "neo.prediction", "neo.confidence"],
        ["a", "d", "7", dog, dog, "0.731059", "", ""],
        ["b", "d", "7", "", cat, "0.880797", cat, "0.500000"],
    ]


def test_every_seed_has_its_lines(tmp_path):
    session = bench(write_images(tmp_path / "images", count=20), seeds=2, samples=[16], batch_sizes=[4])
    write_predictions(tmp_path / "p.csv", every(session))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text(encoding="utf-8"))))
    ids = {}
    for run in (run for run in session.runs() if run.method == "neo"):
        mine, known = [row for row in rows if row["seed"] == str(run.seed)], session.predict(run)
        ids[run.seed] = [row["id"] for row in mine]
        assert ids[run.seed] == known.ids
        assert [int(row["neo.prediction"]) for row in mine] == known.stats.predicted.tolist()
    assert list(ids) == [2020, 1234]
    assert ids[2020] != ids[1234]


def test_parquet(foggy, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    session, _ = foggy
    write_predictions(tmp_path / "p.parquet", every(session))
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    known = session.predict(session.runs()[1])
    assert table["id"] == known.ids
    assert table["neo.prediction"] == known.stats.predicted.tolist()
    assert table["neo.confidence"] == known.stats.confidence.tolist()


def test_files_that_cannot_be_written(foggy, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match=r"\.csv or \.parquet"):
        write_predictions(tmp_path / "p.xlsx", every(foggy[0]))
    frame = every(foggy[0])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"neotta\[lab\]"):
        write_predictions(tmp_path / "p.parquet", frame)
    assert list(tmp_path.iterdir()) == []
