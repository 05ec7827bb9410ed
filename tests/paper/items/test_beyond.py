"""Beyond the paper: few samples with and without shrinkage, and the start of NEO-Continual."""

import numpy as np
import pytest
from support.digits_by_hand import Moving, Neo, accuracy, domain_order, embeddings, nothing, online, permutation, shrunk

from neotta.paper.evidence import Evidence
from neotta.paper.item import chosen
from neotta.paper.study import Study, Subject

DOMAINS = ("fog/5", "contrast/5")
SEEDS = (2020, 1234)
AVERAGES = {"neo-continual": {}, "neo-continual, debiased": {"debias": True}}


@pytest.fixture(scope="module")
def few(evidence):
    return _found(evidence, "few-samples")


@pytest.fixture(scope="module")
def start(evidence):
    return _found(evidence, "continual-start")


@pytest.mark.parametrize("samples", [1, 2, 16])
@pytest.mark.parametrize(("where", "domains"), [("shifted", DOMAINS), ("clean", ["clean"])])
def test_both_rules_after_few_samples(few, samples, where, domains):
    rules = {"none": lambda vectors: 0.0, "neo": lambda vectors: vectors.mean(0), "neo, shrunk": shrunk}
    for name, rule in rules.items():
        values = []
        for seed in SEEDS:
            adapted, rest = np.split(permutation(seed), [samples])
            values.append(np.mean([accuracy(domain, rest, rule(embeddings(domain)[adapted])) for domain in domains]))
        row = _row(few.parts[0], where=where, method=name, samples=samples)
        assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)


@pytest.mark.parametrize(("where", "domains"), [("shifted", DOMAINS), ("clean", ["clean"])])
def test_both_rules_online_with_single_images(few, where, domains):
    for name, make in {"none": lambda: nothing, "neo": Neo, "neo, shrunk": lambda: Neo(shrinkage=True)}.items():
        values = [np.mean([online(make(), domain, 48, seed, 1) for domain in domains]) for seed in SEEDS]
        row = _row(few.parts[3], where=where, method=name)
        assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)


def test_one_sample_is_no_reason_to_move_the_shrunk_mean(few):
    assert _row(few.parts[0], where="clean", method="neo, shrunk", samples=1)["gain_mean"] == 0
    assert _row(few.parts[0], where="clean", method="neo", samples=1)["gain_mean"] < 0


def test_the_answer_tells_the_worst_of_neo(few):
    rows = [row for row in few.parts[0].data if row["where"] == "clean" and row["method"] == "neo"]
    worst = min(rows, key=lambda row: row["gain_mean"])
    assert f"on clean images NEO is at its worst after {worst['samples']:g} sample" in few.answer
    assert f"with {worst['gain_mean']:+.1f}" in few.answer


@pytest.mark.parametrize("samples", [16, 32, 48])
def test_the_first_batches_of_a_moving_average(start, samples):
    for name, options in AVERAGES.items():
        values = [
            np.mean([online(Moving(**options), domain, samples, seed, 16) for domain in DOMAINS]) for seed in SEEDS
        ]
        assert _row(start.parts[1], method=name, samples=samples)["mean"] == pytest.approx(np.mean(values), abs=0.01)


def test_a_moving_average_over_domains_in_a_row(start):
    for name, options in AVERAGES.items():
        values = []
        for seed in SEEDS:
            rule = Moving(**options)
            values += [online(rule, domain, 48, seed, 16) for domain in domain_order(DOMAINS, seed)]
        row = _row(start.parts[2], method=name)
        assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)
        assert f"{row['gain_mean']:+.1f}" in start.answer


def test_without_the_zero_start_the_first_batch_is_neos(start):
    neo, debiased = (_row(start.parts[1], method=name, samples=16) for name in ("neo", "neo-continual, debiased"))
    assert neo["mean"] == debiased["mean"]


def test_a_single_domain_has_a_start_but_no_row_of_domains(start):
    titles = [part.title for part in start.parts]
    assert any(title.startswith("mild: accuracy over the first samples") for title in titles)
    assert not any(title.startswith("mild") and "in a row" in title for title in titles)


def test_nothing_is_claimed_of_the_paper(few, start):
    assert few.holds is None
    assert start.holds is None
    assert all(item.claim == item.place == "" for item in chosen(["few-samples", "continual-start"]))


def test_figures_can_be_drawn(few, start):
    assert "clean images" in few.parts[0].svg()
    assert "debiased" in start.parts[0].svg()


def test_without_clean_images_the_shifted_ones_remain(tmp_path):
    study = Study(subjects=[Subject(corruptions=[])], methods=["none"], samples=4, seeds=[1], held_out_samples=20)
    evidence = Evidence(study, tmp_path / "records.jsonl")
    finding = _found(evidence, "few-samples")
    assert {row["where"] for row in finding.parts[0].data} == {"shifted"}
    assert any("there are no clean images" in note for note in finding.notes)
    finding.parts[0].svg()


def test_without_runs_nothing_is_said(tmp_path):
    study = Study(subjects=[Subject(corruptions=["fog"])], methods=["none"], samples=4, seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    for item in chosen(["few-samples", "continual-start"]):
        assert item.find(evidence).answer == "Nothing could be measured."


def _found(evidence, name):
    item = chosen([name])[0]
    evidence.gather([item])
    assert not evidence.problems
    return item.find(evidence)


def _row(part, **where):
    return next(row for row in part.data if all(row[name] == value for name, value in where.items()))
