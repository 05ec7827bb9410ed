from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from support.answered import packed
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.errors import NeottaError
from neotta.evaluate.frame import frame
from neotta.evaluate.records import Record, Records, content_key
from neotta.report.over_time import STEPS, over_time


def recorded(method, right, *, seed=1, domain="fog/5", batch_size=10, **more):
    answers = packed(right, np.arange(len(right)) + 1000 * seed, domain=domain, seed=seed, batch_size=batch_size)
    made = {
        "method": method, "domain": domain, "domains": [domain], "seed": seed, "model": "m", "data": "d",
        "weights": "w", "samples": len(right), "batch_size": batch_size, "manifests": [f"{domain} {seed}"],
        "status": "ok", "metrics": {"top1": 100 * float(np.mean(right))}, "answers": answers, **more,
    }  # fmt: skip
    return Record.make({**made, "key": content_key(made)})


FALLING = np.arange(40) < 15  # right in the first batch and half of the second
STEADY = np.arange(40) % 2 == 0


@pytest.fixture
def results(tmp_path):
    records = Records(tmp_path / "results.jsonl")
    for seed in (1, 2, 3):
        records.append(recorded("none", STEADY, seed=seed))
        records.append(recorded("tent", FALLING, seed=seed))
    return records.path


def run(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)], env={"COLUMNS": "100"})


def test_accuracy_by_batch(results):
    found = over_time(frame(Records(results).read())).set_index("method")
    assert [*found.loc["tent", ["first_batch", "last_batch", "mean"]].itertuples(index=False, name=None)] == [
        (1, 1, 100.0), (2, 2, 50.0), (3, 3, 0.0), (4, 4, 0.0),
    ]  # fmt: skip
    assert found.loc["none", "mean"].tolist() == [50.0] * 4
    assert (found["seeds"] == 3).all()
    assert found.loc["tent", "half_width"].between(0, 40, inclusive="neither").all()


def test_many_batches_are_shown_together():
    records = [recorded("none", np.arange(107) < 50, batch_size=1), recorded("neo", np.arange(53) < 50, batch_size=1)]
    long, short = (over_time(frame([each])) for each in records)
    assert len(long) <= STEPS
    assert [long["first_batch"].iloc[0], long["last_batch"].iloc[0], long["last_batch"].iloc[-1]] == [1, 6, 107]
    assert short["mean"].iloc[-1] == 0


def test_the_command_shows_and_draws_it(results, tmp_path):
    lines = run(results, "--over-time").stdout.splitlines()
    assert ["batch", "none", "tent"] in [line.split() for line in lines]
    assert any(line.split()[:1] + line.split()[4:5] == ["3", "0.0"] for line in lines)
    page = run(results, "--over-time", "--format", "csv").stdout
    rows = [row for row in csv.DictReader(io.StringIO(page)) if row["method"] == "tent"]
    assert [float(row["mean"]) for row in rows] == [100, 50, 0, 0]
    assert "| 2 | 50.0 ±" in run(results, "--over-time", "--format", "markdown").stdout
    assert r"\begin{tabular}{lrr}" in run(results, "--over-time", "--format", "latex").stdout
    for name, start in (("figure.png", b"\x89PNG"), ("figure.svg", b"<svg")):
        assert run(results, "--over-time", "--output", tmp_path / name).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(start)


def test_what_cannot_be_shown(results, tmp_path):
    old = Records(tmp_path / "old.jsonl")
    old.append(recorded("none", STEADY).model_copy(update={"answers": None}))
    for words, message in (
        ([results, "-o", "f.png"], "only --over-time draws one"),
        ([old.path, "--over-time"], "no record says which samples were right"),
    ):
        with pytest.raises(NeottaError, match=message):
            raise run(*words).exception
    Records(results).append(recorded("neo", STEADY).model_copy(update={"answers": None}))
    assert "do not say which samples were right: neo" in run(results, "--over-time").stdout.replace("\n", " ")
