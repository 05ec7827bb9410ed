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
        "protocol": "online",
        "samples": 16,
        "seed": 7,
        "method": "neo",
        "options": {"weighting": "sample", "shrinkage": "None"},
    }
    assert len(content["weights"]) >= 16
    assert content_key(content) == bench.key(run)
    assert content_key(content) != content_key({**content, "preprocess": {**preprocess.to_dict(), "mean": [0, 0, 0]}})


def test_each_part_of_a_protocol_says_whether_it_is_the_first_or_the_last(bench):
    held = bench.content(run_of(bench, protocol="hold-out", held_out_samples=32))
    assert [(first, last) for _, first, last in held["manifests"]] == [(True, False), (False, True)]
    assert len({manifest for manifest, _, _ in held["manifests"]}) == 2


def test_the_kept_classes(bench, monkeypatch):
    monkeypatch.setattr(bench.data, "class_indices", np.array([3, 5]))
    assert bench.content(run_of(bench))["classes"] == [3, 5]


@pytest.mark.parametrize("name", ["weights", "preprocess", "classes", "manifests", "protocol", "samples", "seed"])
def test_the_question_is_all_but_the_revision(bench, name):
    run = run_of(bench)
    content = bench.content(run)
    question = bench.question(run, content)
    assert question == bench.question(run, {**content, "revision": "other"})
    assert question == bench.question(run, {**content, "source": "clean images of the data"})
    assert question != bench.question(run, {**content, name: "other"})
    assert question != bench.question(run, {**content, "options": {**content["options"], "weighting": "batch"}})
    assert question == content_key({key: content[key] for key in content if key != "revision"})


def test_source_images_of_other_data_are_in_the_question(bench, monkeypatch):
    run = run_of(bench)
    content = bench.content(run)
    monkeypatch.setattr(bench, "plan", bench.plan.model_copy(update={"source": "digits"}))
    assert bench.question(run, content) != bench.question(run, {**content, "source": "others"})


def test_older_records_had_the_seed_of_the_method(bench):
    run = run_of(bench, methods="cotta")
    content = bench.content(run)
    default = str(find("cotta").Options.model_fields["seed"].default)
    question = bench.question(run, content)
    with_seed = {**content, "options": {**content["options"], "seed": default}}
    assert question == bench.question(run, with_seed)
    assert question != bench.question(run, {**content, "options": {**content["options"], "seed": "99"}})
    assert question != bench.question(run_of(bench), content), "neo draws nothing"


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


def test_the_source_images_that_a_method_asks_for(bench):
    asked = []
    images = bench.blank_images(5, asked)
    assert (asked, tuple(images.shape)) == ([5], (2, 3, *bench.data.preprocess.size))
    run = run_of(bench, methods="foa")
    asked = []
    assert "source" not in bench.options(run, asked)
    assert len(asked) == 1
    assert bench.content(run)["source"] == bench.data.clean.digest(asked[0])


def test_the_most_clean_images_that_a_method_asks_for_are_in_the_key(bench, monkeypatch):
    known, run = bench.options, run_of(bench)
    assert "source" not in bench.content(run), "neo asks for none"
    monkeypatch.setattr(bench, "options", lambda run, counts: counts.extend([3, 9, 5]) or known(run))
    assert bench.content(run)["source"] == bench.data.clean.digest(9)


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
