"""Options are chosen on domains that are not reported, and every record says so."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from support.benches import open_bench

from neotta.errors import DataError, OptionError
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import sweep
from neotta.evaluate.tuning import reported_plan, trial_plan, tune, tuning_lines

METHODS = "none,neo-continual:alpha=0.01|0.9"
PLAN = {"corruptions": ["fog"], "methods": METHODS, "tune": "contrast", "seeds": [1], "samples": [64]}


def planned(**changes):
    return Plan.make({**PLAN, **changes})


def test_the_best_options_on_the_other_domains_are_taken(tmp_path):
    plan, path = planned(), tmp_path / "results.jsonl"
    bench = open_bench(plan)
    chosen = tune(bench, plan, path)
    tried = {record.options["alpha"]: record for record in Records(path.with_name("results.tuning.jsonl")).read()}
    assert {record.domain for record in tried.values()} == {"contrast/5"}
    best = max(tried.values(), key=lambda record: record.metrics["top1"])
    none, continual = chosen.methods
    assert none == plan.methods[0]
    assert str(continual.options["alpha"]) == best.options["alpha"]
    sweep(bench, chosen, Records(path))
    first, second = Records(path).read()
    assert "tuned" not in first
    assert second.tuned.on == ["contrast/5"]
    assert second.tuned.among == {"alpha": [0.01, 0.9]}
    assert second.tuned.accuracy == pytest.approx(best.metrics["top1"], abs=1e-3)
    (line,) = tuning_lines([first, second])
    assert f"alpha={best.options['alpha']} was the best of 2 settings (alpha: 0.01, 0.9) on contrast/5" in line
    untuned = bench.runs(chosen.model_copy(update={"methods": [continual.model_copy(update={"tuned": None})]}))
    assert bench.key(untuned[0]) != second.key, "a record says whether it was tuned"


def test_tuning_continues_where_it_stopped(tmp_path):
    plan, path = planned(), tmp_path / "results.jsonl"
    tune(open_bench(plan), plan, path)
    before = path.with_name("results.tuning.jsonl").read_bytes()
    bench = open_bench(plan)
    tune(bench, plan, path)
    assert path.with_name("results.tuning.jsonl").read_bytes() == before
    assert bench.embeddings.encoded == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": "fog"}, "fog would be tuned on and reported"),
        ({"tune": "fog/3"}, "fog would be tuned on and reported"),
        ({"tune": "glass_blur", "corruptions": ["all"]}, "glass_blur would be tuned on and reported"),
        ({"tune": ["extra"], "corruptions": ["spatter"]}, "spatter would be"),
        ({"methods": "none,neo"}, "nothing to tune"),
    ],
)
def test_nothing_is_tuned_on_what_is_reported(changes, message):
    with pytest.raises(OptionError, match=message):
        trial_plan(planned(**changes))


def test_the_extra_corruptions_are_tuned_on_at_the_severities_that_are_reported_or_named():
    trial = trial_plan(planned(tune="extra", severities=[2, 4]))
    assert trial.corruptions == ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
    assert trial.severities == [2, 4]
    assert [method.method for method in trial.methods] == ["neo-continual"]
    named = trial_plan(planned(tune=["contrast/3", "snow"], corruptions=["fog/4"]))
    assert (named.corruptions, named.severities) == (["contrast/3", "snow"], [4])


@pytest.fixture
def photos(tmp_path):
    """Three domains of three classes each, of random images."""
    random = np.random.default_rng(0)
    for domain in ("fog/5", "spatter/5", "snow/5"):
        for name in "012":
            folder = tmp_path / "photos" / domain / name
            folder.mkdir(parents=True)
            for number in range(4):
                Image.fromarray(random.integers(0, 255, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    return str(tmp_path / "photos")


def test_named_domains_of_the_data_are_not_reported(photos, tmp_path):
    given = {"data": photos, "corruptions": [], "tune": "spatter", "samples": [-1]}
    whole = planned(**given)
    plan = reported_plan(whole, open_bench(whole).data.source.domains)
    assert plan.domains == ["snow/5", "fog/5"]
    bench = open_bench(plan)
    chosen = tune(bench, plan, tmp_path / "results.jsonl")
    assert {record.domain for record in Records(tmp_path / "results.tuning.jsonl").read()} == {"spatter/5"}
    assert chosen.methods[1].tuned["on"] == ["spatter/5"]
    explicit = planned(**given, domains=["fog/5", "spatter/5"])
    with pytest.raises(OptionError, match="spatter/5 would be tuned on and reported"):
        tune(open_bench(explicit), explicit, tmp_path / "results.jsonl")
    with pytest.raises(OptionError, match="none is left"):
        reported_plan(planned(**{**given, "tune": "*"}), ["fog/5", "spatter/5"])


def test_what_fails_cannot_be_chosen(tmp_path, monkeypatch):
    plan = planned()
    bench = open_bench(plan)
    monkeypatch.setattr(bench, "adapter", lambda run: 1 / 0)
    with pytest.raises(DataError, match="neo-continual cannot be tuned"):
        tune(bench, plan, tmp_path / "results.jsonl")
