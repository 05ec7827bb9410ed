"""Table 4: batch sizes and alpha. Table 5: neural collapse."""

import dataclasses
import itertools

import numpy as np
import pytest
from support.answered import packed
from support.digits_by_hand import Moving, accuracy, embeddings, head, labels, permutation

from neotta.errors import DataError
from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.paper.claims import counted
from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.items import ablations, collapse
from neotta.paper.measured import Measured
from neotta.paper.study import Study, Subject

DOMAINS = ("fog/5", "contrast/5")
SEEDS = (2020, 1234)


@pytest.fixture(scope="module")
def found(evidence):
    items = chosen(["batch-size", "alpha", "collapse"])
    evidence.gather(items)
    assert not evidence.problems
    return {item.name: item.find(evidence) for item in items}


# ---- batch size


def test_batch_sizes_make_no_difference_to_the_mean_of_all_samples(found):
    tables = found["batch-size"].parts
    values = []
    for seed in SEEDS:
        adapted, rest = np.split(permutation(seed), [48])
        per_domain = [accuracy(domain, rest, embeddings(domain)[adapted].mean(0)) for domain in DOMAINS]
        values.append(np.mean(per_domain))
    for size in (1, 4, 8, 16, 32):
        row = _row(tables[0], "batch size", str(size))
        assert row["measured_mean"] == pytest.approx(np.mean(values), abs=0.05)
        assert abs(_row(tables[1], "batch size", str(size))["measured_mean"]) < 0.1
    assert _row(tables[0], "batch size", "64")["measured_mean"] is None, "48 samples fill no batch of 64"
    assert _row(tables[1], "batch size", "1")["published"] == pytest.approx(56.91 - 56.97)
    assert found["batch-size"].holds == "yes"


def test_a_difference_between_batch_sizes_is_a_matter_of_certainty_beyond_what_the_paper_has():
    same = Interval(0.0, 0.0, 3)
    assert ablations._spread({1: Interval(-0.1, 0.01, 3), 64: same}) == (0.1, "yes")
    assert ablations._spread({1: Interval(-0.5, 0.1, 3), 64: same}) == (0.5, "no")
    assert ablations._spread({1: Interval(-0.5, 0.9, 3), 4: Interval(0.25, 0.9, 3), 64: same}) == (0.75, "unclear")


# ---- alpha


@pytest.mark.parametrize("weight", [0.001, 0.005, 0.5])
def test_accuracy_of_a_moving_average_with_each_weight(found, weight):
    table, beside = found["alpha"].parts[:2]
    reached = {each: reached_with(each) for each in (0.001, weight)}
    assert _row(table, "alpha", weight)["gain_mean"] == pytest.approx(reached[weight], abs=0.01)
    row = _row(beside, "alpha", f"{weight:g}")
    assert row["measured_mean"] == pytest.approx(reached[weight] - reached[0.001], abs=0.01)


def reached_with(weight):
    """The gain over no adaptation."""
    gains = []
    for seed in SEEDS:
        adapted, rest = np.split(permutation(seed), [48])
        per_domain = []
        for domain in DOMAINS:
            rule = Moving(weight)
            for start in range(0, 48, 16):
                centroid = rule(embeddings(domain)[adapted[start : start + 16]])
            per_domain.append(accuracy(domain, rest, centroid) - accuracy(domain, rest))
        gains.append(np.mean(per_domain))
    return np.mean(gains)


def test_the_rows_that_the_paper_prints_with_two_digits_are_run(found):
    table, beside = found["alpha"].parts[:2]
    assert [row["alpha"] for row in table.data] == [0.001, 0.005, 0.01, 0.05, 0.1, 0.5]
    printed = {row["alpha"]: row["published"] for row in beside.data}
    assert printed == pytest.approx({"0.001": 0, "0.005": 0.13, "0.01": 0.32, "0.05": 1.12, "0.1": 1.87, "0.5": 3.37})
    assert all(row["measured_mean"] is not None for row in beside.data)
    assert any("0.00, 0.01 and 0.01" in note and "does not say" in note for note in found["alpha"].notes)


def test_the_answer_names_the_best_weight(found):
    rows = found["alpha"].parts[0].data
    best = max(rows, key=lambda row: row["gain_mean"])
    assert f"alpha = {best['alpha']:g} gives most, {best['gain_mean']:+.1f}" in found["alpha"].answer


def test_accuracy_has_to_grow_over_all_weights_and_must_not_fall_at_a_step():
    def judged(*reached):
        """Accuracies in percent on 1000 images, for as many weights."""
        numbers = dict(zip(ablations.ALPHAS, reached, strict=False))
        labels = [f"neo-continual alpha={weight}" for weight in numbers]
        records = [
            answered(label, number, seed)
            for label, number in zip(labels, numbers.values(), strict=True)
            for seed in range(3)
        ]
        return ablations._grows(Measured.of(records), labels)

    def answered(label, number, seed):
        right = np.arange(1000) < 10 * number
        about = {"key": f"{label} {seed}", "method": label, "domain": "fog/5", "domains": ["fog/5"], "seed": seed}
        answers = packed(right, np.arange(1000) + 1000 * seed, seed=1)
        scores = {"metrics": {"top1": number}, "batch_size": 8}
        return Record.make({**about, **scores, "status": "ok", "answers": answers, "manifests": [str(seed)]})

    assert judged(50, 51, 52, 53, 54, 55) == "yes"
    assert judged(50, 51, 56, 53, 54) == "partly"
    assert judged(50, 51, 53, 52.9, 54) == "yes", "a fall that may be chance is none"
    assert judged(50, 50, 50, 50, 50) == "unclear"
    assert judged(50, 51, 60, 53, 50) == "no"
    assert judged(50) == "unclear"


# ---- neural collapse


def test_neural_collapse_by_its_definitions(found):
    clean, truth = embeddings("clean"), labels()
    weight, bias = head()
    means = np.stack([clean[truth == label].mean(0) for label in range(10)])
    spread = [np.mean(np.square(clean[truth == label] - means[label]).sum(1)) for label in range(10)]
    pairs = list(itertools.combinations(range(10), 2))
    nc1 = np.mean([(spread[i] + spread[j]) / 2 / np.square(means[i] - means[j]).sum() for i, j in pairs])
    centred = means - means.mean(0)
    simplex = (np.eye(10) - 0.1) / 3

    def error(gram):
        return np.linalg.norm(gram / np.linalg.norm(gram) - simplex)

    nearest = np.square(clean[:, None] - means[None]).sum(2).argmin(1)
    nc4 = np.mean(nearest == (clean @ weight.T + bias).argmax(1))
    row = _row(found["collapse"].parts[0], "model", "digits")
    expected = (nc1, error(centred @ centred.T), error(weight @ centred.T), nc4)
    assert [row[name] for name in collapse.MEASURES] == pytest.approx(expected, rel=1e-4)


def test_published_models_stand_in_the_same_table(found):
    table, beside = found["collapse"].parts[:2]
    printed = [row["model"] for row in table.data if row["published"]]
    assert printed == [f"{name} (published)" for name in ("vit-small", "vit-base", "vit-large")]
    assert [row["published"] for row in beside.data] == [0.5110, 1.0092, 0.9501, 0.9238]


def test_collapse_is_judged_by_the_least_collapsed_model_of_the_paper():
    assert counted(collapse.collapsed([0.6, 1.25, 1.2, 0.86])) == "yes"
    assert counted(collapse.collapsed([0.6, 1.25, 1.2, 0.84])) == "partly"
    assert counted(collapse.collapsed([0.7, 1.3, 1.3, 0.5])) == "no"


def test_with_one_image_per_class_there_is_no_collapse_to_measure(evidence):
    with pytest.raises(DataError, match="several images of each class"):
        collapse._measure(evidence, dataclasses.replace(evidence.settings[0], images=8))


def test_few_images_per_class_are_warned_of(evidence, monkeypatch):
    few = {"values": [0.6, 1.25, 1.2, 0.86], "images": 40, "classes": 10}
    monkeypatch.setattr(collapse, "_measure", lambda *_: few)
    (item,) = chosen(["collapse"])
    notes = item.find(evidence).notes
    assert any("4.0 per class" in note for note in notes)
    assert any("NC1 comes out too low" in note for note in notes)


# ---- all of them


def test_without_runs_or_clean_images_nothing_is_claimed(tmp_path):
    study = Study(subjects=[Subject(corruptions=[])], methods=["none"], samples=4, seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    for item in chosen(["batch-size", "alpha", "collapse"]):
        finding = item.find(evidence)
        assert (finding.answer, finding.holds, finding.parts) == ("Nothing could be measured.", "unclear", [])


def _row(table, corner, value):
    return next(row for row in table.data if row[corner] == value)
