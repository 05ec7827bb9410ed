"""What is expensive is done once: loading and hashing a model, opening data, predicting."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from PIL import Image

from neotta.data import digits, opening
from neotta.evaluate import bench, domains, execute, unlabelled
from neotta.paper import evidence
from neotta.paper.item import items


@pytest.fixture
def calls(monkeypatch):
    """Counts calls, which still do what they do."""
    found = Counter()

    def count(owner, name):
        real = getattr(owner, name)

        def counted(*args, **kwargs):
            found[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(bench, "load_model")
    count(bench, "identity")
    for owner in (execute, unlabelled):
        count(owner, "predict")
    for owner in (opening, domains, evidence):
        count(owner, "open_data")
    return found


@pytest.mark.slow
def test_all_of_the_paper_loads_and_hashes_the_model_once(command, tmp_path, calls):
    words = ["--corruptions", "fog", "--samples", "16", "--seeds", "1", "--methods", "none,neo"]
    (tmp_path / "study.toml").write_text('jobs = 1\ncache = "cache"\n')
    done = command("paper", "all", *words, "--config", "study.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (calls["load_model"], calls["identity"], calls["open_data"]) == (1, 1, 1)


def test_items_share_the_model_and_the_data(command, tmp_path, calls):
    words = ["--corruptions", "fog", "--samples", "24", "--seeds", "1", "--methods", "none,neo"]
    several = [name for name in items() if name.endswith(("corruptions", "batch-size", "alpha", "collapse"))]
    assert len(several) == 4
    (tmp_path / "study.toml").write_text('jobs = 1\ncache = "cache"\n')
    done = command("paper", *several, *words, "--config", "study.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (calls["load_model"], calls["identity"], calls["open_data"]) == (1, 1, 1)


def test_the_unlabelled_report_predicts_once(command, tmp_path, calls):
    (tmp_path / "mine").mkdir()
    for index in range(12):
        Image.fromarray(digits("test").read(index)).save(tmp_path / "mine" / f"{index}.png")
    (tmp_path / "plan.toml").write_text('predictions = "answers.csv"\ncache = false\n')
    (tmp_path / "again.toml").write_text("cache = false\n")
    words = ["digits", "mine", "--seeds", "1", "--methods", "none,neo,tent"]
    done = command("run", *words, "--config", "plan.toml", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Without labels nobody can tell" in done.stdout
    assert (tmp_path / "answers.csv").is_file()
    assert (calls["predict"], calls["load_model"], calls["open_data"]) == (3, 1, 1)
    # Recorded before, so the report has to predict.
    again = command("run", *words, "--config", "again.toml", folder=tmp_path)
    assert "0 runs done, 3 already recorded" in again.stdout
    assert calls["predict"] == 6


@pytest.mark.slow
def test_the_predictions_of_other_processes_are_used(command, tmp_path, calls):
    (tmp_path / "plan.toml").write_text('predictions = "answers.csv"\ncache = false\nworkers = 0\n')
    words = ["--corruptions", "fog", "--samples", "24", "--seeds", "1", "--jobs", "2", "--config", "plan.toml"]
    done = command("run", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 25
    assert calls["predict"] == 0
    assert "neotta.evaluate.engines.processes" in sys.modules
