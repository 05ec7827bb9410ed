from __future__ import annotations

import re

import numpy as np
import pytest
from support.digits_by_hand import Neo, nothing, online
from support.small_studies import small_study

from neotta.paper.catalog import chosen
from neotta.paper.evidence import Evidence

(ITEM,) = chosen(["corruptions"])
SEEDS = [2020, 1234, 9999]
DOMAINS = ("fog/5", "contrast/5")
RULES = {"none": lambda: nothing, "neo": Neo}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Three seeds for methods that run from embeddings; fewer samples and one seed for one that does not."""
    folder = tmp_path_factory.mktemp("corruptions")
    study = small_study(methods=["none", "neo", "tent"], seeds=SEEDS, slow_samples=32, slow_seeds=[2020])
    evidence = Evidence(study, folder / "records.jsonl", cache=folder / "cache")
    evidence.gather([ITEM])
    return ITEM.find(evidence)


def by_hand(method, domain, samples, seeds):
    return [online(RULES[method](), domain, samples, seed, 16) for seed in seeds]


@pytest.mark.parametrize(("samples", "seeds"), [(48, SEEDS), (32, [2020])])
@pytest.mark.parametrize("method", RULES)
def test_accuracies_are_those_of_the_equations(found, samples, seeds, method):
    tables = [part for part in found.parts if f"{samples} samples" in part.title and "difference" not in part.title]
    assert len(tables) == 1
    cells = {row["domain"]: row for row in tables[0].data if row["method"] == method}
    for domain in ("clean", *DOMAINS):
        assert cells[domain]["mean"] == pytest.approx(np.mean(by_hand(method, domain, samples, seeds)), abs=0.01)
        assert 2 < cells[domain]["half_width"] < 20
    shifted = [by_hand(method, domain, samples, seeds) for domain in DOMAINS]
    assert cells["average"]["mean"] == pytest.approx(np.mean(shifted), abs=0.01)


def test_the_gain_is_told_from_the_most_seeds_and_the_rank_from_all_methods(found):
    gains = [
        np.mean([by_hand("neo", domain, 48, [seed])[0] - by_hand("none", domain, 48, [seed])[0] for domain in DOMAINS])
        for seed in SEEDS
    ]
    gain = re.escape(f"by {np.mean(gains):+.1f} ")
    assert re.search(gain + r"\[\S+, \S+\] points \(48 samples, 3 seeds\)", found.answer)
    assert "of 3 methods" in found.answer
    assert "(32 samples, 1 seed)" in found.answer
    assert found.holds != "unclear"
