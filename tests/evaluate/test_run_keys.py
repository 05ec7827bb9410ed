"""What the key of a run is made of, entry by entry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.benches import open_bench

from neotta.adapters.registry import find
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import content_key

PLAN = {"corruptions": ["fog"], "severities": [3], "methods": "neo", "seeds": [7], "samples": [16], "batch_sizes": [8]}


@pytest.fixture(scope="module")
def bench():
    return open_bench(Plan.make(PLAN))


def run_of(bench, **changes):
    return bench.runs(Plan.make({**PLAN, **changes}))[0]


def test_every_entry(bench):
    run = run_of(bench)
    content = bench.content(run)
    preprocess = bench.data.preprocess
    assert content == {
        "revision": "1",
        "weights": content["weights"],
        "preprocess": preprocess.to_dict(),
        "classes": None,
        "manifests": [(content["manifests"][0][0], True, True)],
        "samples": 16,
        "seed": 7,
        "method": "neo",
        "options": {"weighting": "sample", "shrinkage": "None"},
    }
    assert len(content["weights"]) >= 16
    assert content_key(content) == bench.key(run)
    assert content_key(content) != content_key({**content, "preprocess": {**preprocess.to_dict(), "mean": [0, 0, 0]}})


def test_each_order_of_a_run_says_whether_it_is_the_first_or_the_last(bench):
    held = bench.content(run_of(bench, order="hold-out", held_out_samples=32))
    assert [(first, last) for _, first, last in held["manifests"]] == [(True, False), (False, True)]
    assert len({manifest for manifest, _, _ in held["manifests"]}) == 2


def test_the_kept_classes(bench, monkeypatch):
    monkeypatch.setattr(bench.data, "class_indices", np.array([3, 5]))
    assert bench.content(run_of(bench))["classes"] == [3, 5]


def test_the_question_of_a_record_is_the_same_for_every_revision(bench):
    record = bench.record(run_of(bench))
    assert record.model_copy(update={"revision": "other", "key": "other"}).question == record.question
    for name, other in {"weights": "x", "seed": 8, "manifests": ["x"], "options": {"weighting": "batch"}}.items():
        assert record.model_copy(update={name: other}).question != record.question


def test_what_follows_from_the_data_is_no_option_but_what_is_given_is(bench):
    run = run_of(bench, methods="cotta")
    needed = bench.needed(run, lambda count: torch.zeros(count, 3, 8, 8))
    preprocess = bench.data.preprocess
    assert (tuple(needed["mean"]), tuple(needed["std"])) == (tuple(preprocess.mean), tuple(preprocess.std))
    assert needed["seed"] == 7
    options = bench.options(run)
    assert not {"mean", "std", "seed"} & set(options)
    assert options["lr"] == str(find("cotta").Options.make("cotta", {}, run.preset).lr)
    given = run.model_copy(update={"options": {"lr": 0.5, "seed": 3}})
    assert bench.options(given) == {**options, "lr": "0.5", "seed": "3"}


def test_the_source_images_that_a_method_asks_for_are_in_the_key(bench):
    assert "source" not in bench.content(run_of(bench)), "neo asks for none"
    run = run_of(bench, methods="foa")
    assert "source" not in bench.options(run)
    assert bench.content(run)["source"] == bench.data.clean.digest(find("foa").declaration.source_images)


def test_tuning_and_separate_states_are_in_the_key_of_those_who_have_them(bench):
    run = run_of(bench)
    plain = bench.content(run)
    assert not {"tuned", "separate"} & set(plain)
    tuned = bench.content(run.model_copy(update={"tuned": {"alpha": [0.1]}}))
    assert tuned == {**plain, "tuned": {"alpha": [0.1]}}
    cameras = run_of(bench, order="cameras")
    apart = cameras.model_copy(update={"order_options": {**cameras.order_options, "separate": True}})
    assert "separate" not in bench.content(cameras)
    assert bench.content(apart)["separate"] is True
    assert bench.key(apart) != bench.key(cameras)
