"""Figure 5a and 5b: accuracy by the number of samples, and of classes, adapted on."""

import dataclasses
import math

import numpy as np
import pytest
from support.digits_by_hand import Neo, accuracy, embeddings, labels, online, permutation

from neotta.data.orders import few_classes
from neotta.evaluate.metrics import Interval
from neotta.paper.claims import doubt, nearly, some, together
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items import samples
from neotta.paper.study import Study, Subject

DOMAINS = ("fog/5", "contrast/5")
SEEDS = (2020, 1234)


@pytest.fixture(scope="module")
def found(evidence):
    items = chosen(["samples", "classes"])
    evidence.gather(items)
    assert not evidence.problems
    return [item.find(evidence) for item in items]


@pytest.mark.parametrize("count", [1, 4, 32])
def test_accuracy_on_the_rest_after_some_samples(found, count):
    expected = {"none": [], "neo": []}
    for seed in SEEDS:
        order = permutation(seed)
        adapted, rest = order[:count], order[count:]
        expected["none"].append(np.mean([accuracy(domain, rest) for domain in DOMAINS]))
        centroids = {domain: embeddings(domain)[adapted].mean(0) for domain in DOMAINS}
        expected["neo"].append(np.mean([accuracy(domain, rest, centroids[domain]) for domain in DOMAINS]))
    for method, values in expected.items():
        row = _row(found[0].parts[1], samples=count, method=method)
        assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)
        assert row["half_width"] > 1
    gain = np.subtract(expected["neo"], expected["none"])
    assert row["gain_mean"] == pytest.approx(gain.mean(), abs=0.01)
    beside = _row(found[0].parts[2], samples=str(count))
    assert (beside["published"], beside["measured_mean"]) == (1.5 if count == 1 else None, row["gain_mean"])


def test_samples_are_no_more_than_the_study_allows_and_leave_as_many(evidence):
    item = chosen(["samples"])[0]
    setting = evidence.settings[0]
    assert item.plans(setting)[0].samples == [1, 2, 4, 8, 16, 32]
    assert item.plans(_with(setting, samples=512))[0].samples == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert item.plans(dataclasses.replace(setting, images=9))[0].samples == [1, 2, 4]
    assert item.plans(dataclasses.replace(setting, images=1)) == []


def test_the_last_point_is_the_whole_dataset_scored_while_adapting(evidence, found):
    item = chosen(["samples"])[0]
    setting = evidence.settings[0]
    held_out, last = item.plans(setting)
    assert (held_out.order, last.order, last.samples) == ("hold-out", "iid", [-1])
    assert item.plans(dataclasses.replace(setting, images=50_000))[1].samples == [-1]
    assert item.plans(dataclasses.replace(setting, images=90_000))[1].samples == [50_000]
    values = [online(Neo(), domain, 600, seed, 16) for domain in DOMAINS for seed in SEEDS]
    assert _row(found[0].parts[1], samples=600, method="neo")["mean"] == pytest.approx(np.mean(values), abs=0.01)
    assert found[0].parts[1].grid.rows[-1][0] == "all 600"
    assert ">all 600<" in found[0].parts[0].svg()


@pytest.mark.parametrize("classes", [1, 5])
def test_accuracy_after_samples_of_a_few_classes(found, classes):
    values = []
    for seed in SEEDS:
        per_domain = []
        for domain in DOMAINS:
            held = few_classes({domain: labels()}, classes=classes, samples=48, disjoint=True, seed=seed)
            adapted = np.unique(labels()[held.adapt.index])
            assert len(adapted) == classes
            assert not np.isin(labels()[held.validate.index], adapted).any(), "only the remaining classes are scored"
            centroid = embeddings(domain)[held.adapt.index].mean(0)
            per_domain.append(accuracy(domain, held.validate.index, centroid))
        values.append(np.mean(per_domain))
    row = _row(found[1].parts[1], classes=classes, method="neo")
    assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)


def test_classes_are_no_more_than_there_are_and_have_enough_images(evidence):
    item = chosen(["classes"])[0]
    setting = _with(evidence.settings[0], samples=512)
    assert setting.fewest == min(np.bincount(labels()))

    def asked(**changes):
        plans = item.plans(dataclasses.replace(setting, **changes))
        return [(*plan.samples, plan.order_options["classes"], plan.held_out_samples) for plan in plans]

    assert asked() == [(50, number, 4096) for number in (1, 2, 5)], (
        "with ten of ten classes none would be left to score"
    )
    many = [(50, number, 4096) for number in (1, 2, 5, 10, 20, 50)]
    assert asked(images=50000, classes=1000, fewest=50) == many
    assert asked(images=5000, classes=100, fewest=50) == many
    assert asked(images=1000, classes=1000, fewest=1) == [(50, 50, 4096)], "one image per class: 50 of 50 classes"
    assert asked(fewest=0) == [], "nothing is known of classes without labels"
    assert asked(images=4000, classes=200, fewest=11) == [
        *((11, number, 4096) for number in (1, 2, 5, 10)),
        *((50, number, 4096) for number in (5, 10, 20, 50)),
    ], "also as few samples as every class has, for one class alone"


def test_what_the_data_does_not_allow_is_said(found):
    assert any("50 samples of 10, 20 and 50 classes are not possible" in note for note in found[1].notes)


def test_two_numbers_of_samples_stand_side_by_side(evidence, monkeypatch):
    item = chosen(["classes"])[0]
    monkeypatch.setattr(evidence, "settings", [dataclasses.replace(evidence.settings[0], fewest=12)])
    evidence.gather([item])
    finding = item.find(evidence)
    figure = finding.parts[0]
    shown = {samples: {row["classes"] for row in figure.data if row["samples"] == samples} for samples in (12, 48)}
    assert shown == {12: {1, 2, 5}, 48: {5}}
    values = []
    for domain in DOMAINS:
        for seed in SEEDS:
            held = few_classes({domain: labels()}, classes=1, samples=12, disjoint=True, seed=seed)
            centroid = embeddings(domain)[held.adapt.index].mean(0)
            values.append(accuracy(domain, held.validate.index, centroid))
    row = next(r for r in figure.data if (r["samples"], r["classes"], r["method"]) == (12, 1, "neo"))
    assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)
    assert "12 samples give" in finding.answer
    assert "48 samples give" in finding.answer
    assert "among the 12 samples" in figure.svg()


def test_answers_name_the_extremes(found):
    rows = found[0].parts[1].data
    one, most = (_gain(rows, "samples", number) for number in (1, 600))
    assert f"adapting on 1 sample gives {one:+.1f}" in found[0].answer
    assert f"with all 600, the most tried, {most:+.1f}" in found[0].answer
    one = _gain(found[1].parts[1].data, "classes", 1)
    assert f"48 samples give {one:+.1f}" in found[1].answer
    assert "if they are of 1 class" in found[1].answer


def test_figures_show_both_subjects(found):
    for finding in found:
        names = [part.name for part in finding.parts if hasattr(part, "svg")]
        assert len(names) == len(set(names)) == 2
        assert "<svg" in finding.parts[0].svg()


def test_without_runs_nothing_is_claimed(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none"], samples=4, seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    for item in chosen(["samples", "classes"]):
        finding = item.find(evidence)
        assert (finding.answer, finding.holds, finding.parts) == ("Nothing could be measured.", "unclear", [])


def test_one_seed_of_a_state_that_is_scored_on_other_images_gives_no_interval(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none"], samples=4, seeds=[7], held_out_samples=50)
    evidence = Evidence(study, tmp_path / "records.jsonl")
    item = chosen(["samples"])[0]
    evidence.gather([item])
    finding = item.find(evidence)
    rest = permutation(7)[4:54]
    centroid = embeddings("fog/5")[permutation(7)[:4]].mean(0)
    row = _row(finding.parts[1], samples=4, method="neo")
    assert row["mean"] == pytest.approx(accuracy("fog/5", rest, centroid), abs=0.01)
    assert row["half_width"] is None
    assert "[" in finding.answer
    finding.parts[0].svg()


def test_verdicts_on_claims_of_several_parts():
    assert together(["yes", "yes"]) == "yes"
    assert together(["yes", "no"]) == together(["unclear", "yes", "no"]) == "partly"
    assert together(["unclear", "yes"]) == "unclear"
    assert together(["unclear", "no"]) == "no"
    assert together(["unclear"]) == "unclear"


def test_a_gain_is_less_than_nearly_all_only_if_the_intervals_lie_apart():
    assert nearly(_interval(3.7, 0.5), _interval(4.0, 0.1)) == "yes"
    assert nearly(_interval(3.0, 0.5), _interval(4.0, 0.1)) == "no"
    assert nearly(_interval(3.0, 1.5), _interval(4.0, 0.1)) == "unclear"
    assert nearly(_interval(-1.0, 0.1), _interval(-2.0, 0.1)) == "no"
    assert nearly(_interval(3.7, math.nan), _interval(4.0, math.nan)) == "unclear"


def test_the_gains_after_one_sample_and_after_64_are_judged_by_the_published_ones():
    most = {512: _interval(3.7, 0.2)}
    assert samples._enough({1: _interval(1.4, 0.3), 64: _interval(3.6, 0.2), **most}) == "yes"
    assert samples._enough({1: _interval(1.4, 0.3), 64: _interval(2.9, 0.2), 512: _interval(3.0, 0.2)}) == "partly"
    assert samples._enough({1: _interval(0.4, 0.3), 64: _interval(2.0, 0.2), **most}) == "no"
    assert samples._enough({1: _interval(1.4, 1.5), 64: _interval(3.6, 0.2), **most}) == "unclear"
    assert samples._enough({1: _interval(1.4, 0.3), 32: _interval(3.6, 0.2)}) == "unclear", "64 were not tried"


def test_words():
    assert (some(1, "class"), some(2, "class"), some(8.0, "sample")) == ("1 class", "2 classes", "8 samples")
    interval = _interval(0.5, 0.6)
    assert doubt(interval) == " (which may be chance)"
    assert doubt(_interval(0.5, 0.4)) == ""
    assert "no interval" in doubt(_interval(0.5, math.nan))


def _interval(mean, half_width):
    return Interval(mean, half_width, 3)


def _with(setting, **changes):
    return dataclasses.replace(setting, study=setting.study.model_copy(update=changes))


def _row(table, **where):
    return next(row for row in table.data if all(row[name] == value for name, value in where.items()))


def _gain(rows, corner, number):
    return next(row["gain_mean"] for row in rows if row[corner] == number and row["method"] == "neo")
