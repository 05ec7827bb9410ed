"""Figure 5c: domain after domain without a reset."""

import dataclasses

import numpy as np
import pytest
from support.digits_by_hand import Moving, Neo, domain_order, nothing, online

from neotta.evaluate.metrics import Interval
from neotta.evaluate.records import Record
from neotta.paper.item import chosen
from neotta.paper.items import continual
from neotta.paper.measured import Measured

DOMAINS = ("fog/5", "contrast/5")
SEEDS = (2020, 1234)
RULES = {"none": lambda: nothing, "neo": Neo, "neo-continual": Moving}


@pytest.fixture(scope="module")
def item():
    return chosen(["continual"])[0]


@pytest.fixture(scope="module")
def found(evidence, item):
    evidence.gather([item])
    assert not evidence.problems
    return item.find(evidence)


@pytest.fixture(scope="module")
def expected():
    """For each method and seed the accuracies along the sequence."""
    paths = {}
    for method, make in RULES.items():
        for seed in SEEDS:
            rule = make()
            order = domain_order(DOMAINS, seed)
            paths[method, seed] = [(domain, online(rule, domain, 48, seed, 16)) for domain in order]
    return paths


def test_the_order_of_the_domains_is_that_of_the_stream(evidence, item, found):
    orders = continual.sequences(evidence.records(*item.plans(evidence.settings[0])))
    assert orders == {seed: tuple(domain_order(DOMAINS, seed)) for seed in SEEDS}


def through(method, seed, reached):
    """A record of a run through domains; `reached` is the accuracy in each of them."""
    about = {"key": f"{method} {seed}", "method": method, "seed": seed, "order": "continual", "samples": 48}
    scores = {domain: {"top1": top1} for domain, top1 in reached.items()}
    about |= {"domains": sorted(reached), "per_domain": scores, "manifests": [str(seed)], "metrics": {"top1": 0.0}}
    return Record.make({**about, "status": "ok"})


ORDERS = {1: ("a", "b"), 2: ("b", "a")}


def test_a_place_holds_another_domain_for_every_seed():
    """What is drawn over the index is that of the domain which stood there, also where accuracy is zero."""
    reached = {1: {"a": 10.0, "b": 20.0}, 2: {"a": 30.0, "b": 0.0}}
    records = [
        through(method, seed, {domain: top1 + more for domain, top1 in each.items()})
        for seed, each in reached.items()
        for method, more in (("none", 0.0), ("neo", 4.0))
    ]
    path = Measured.of(records).over_index(ORDERS)
    assert [point.mean.mean for point in path["none"]] == [(10 + 0) / 2, (20 + 30) / 2]
    assert [(point.x, point.gain.mean, point.gain.runs) for point in path["neo"]] == [(1, 4.0, 2), (2, 4.0, 2)]
    assert [point.gain.runs for point in path["none"]] == [0, 0]


def test_methods_with_other_seeds_are_followed_over_those_that_they_share():
    having = {"none": (1, 2), "neo": (1, 2), "tent": (1,)}
    records = [through(m, seed, dict.fromkeys("ab", 10.0 * seed)) for m, seeds in having.items() for seed in seeds]
    found = Measured.of(records)
    assert {label: [point.mean.mean for point in points] for label, points in found.over_index(ORDERS).items()} == {
        label: [10.0, 10.0] for label in having
    }
    assert "With fewer seeds: TENT; their means" in found.basis


def test_each_method_reaches_what_it_should_in_each_domain(found, expected):
    table = found.parts[2]
    for method in RULES:
        for domain in DOMAINS:
            values = [dict(expected[method, seed])[domain] for seed in SEEDS]
            row = next(row for row in table.data if row["domain"] == domain and row["method"] == method)
            assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)


def test_bars_show_the_mean_gain(found, expected):
    bars = {row["method"]: row["mean"] for row in found.parts[0].data}
    for method in ("neo", "neo-continual"):
        gains = [
            mine - theirs
            for seed in SEEDS
            for (_, mine), (_, theirs) in zip(expected[method, seed], expected["none", seed], strict=True)
        ]
        assert bars[method] == pytest.approx(np.mean(gains), abs=0.01)
    assert list(bars.values()) == sorted(bars.values(), reverse=True)
    assert set(bars) == {"neo", "neo-continual", "t3a", "lame"}, "all methods of the study, and NEO-Continual"


def test_the_path_follows_the_order_of_each_seed(found, expected):
    for method in RULES:
        for place in (0, 1):
            values = [expected[method, seed][place][1] for seed in SEEDS]
            gains = np.subtract(values, [expected["none", seed][place][1] for seed in SEEDS])
            row = next(row for row in found.parts[1].data if row["method"] == method and row["index"] == place + 1)
            assert row["mean"] == pytest.approx(np.mean(values), abs=0.01)
            if method != "none":
                assert row["gain_mean"] == pytest.approx(gains.mean(), abs=0.01)


def test_figures_can_be_drawn(found):
    assert "gain over no adaptation" in found.parts[0].svg()
    assert "place of the domain" in found.parts[1].svg()


def test_a_single_domain_is_passed_over(found):
    assert any("mild: has one domain" in note for note in found.notes)


def test_the_answer_ranks_neo_continual_among_the_methods_of_others(found):
    gain = next(row["mean"] for row in found.parts[0].data if row["method"] == "neo-continual")
    assert f"NEO-Continual gains {gain:+.1f}" in found.answer


def test_methods_that_the_study_has_are_not_run_twice(evidence, item):
    study = evidence.study.model_copy(update={"methods": ["none", "neo-continual:alpha=0.05"]})
    setting = dataclasses.replace(evidence.settings[0], study=study)
    assert [plan.method for plan in item.plans(setting)[0].methods] == ["none", "neo-continual"]


def test_the_claim_allows_surgeon_alone_to_be_better():
    gains, loses = Interval(1.0, 0.1, 3), Interval(-1.0, 0.1, 3)
    more, less, same = Interval(2.0, 0.1, 3), Interval(-2.0, 0.1, 3), Interval(-2.0, 5.0, 3)
    assert continual._holds(gains, {"surgeon": more, "cotta": less}) == "yes"
    assert continual._holds(gains, {"cotta": more}) == "partly"
    assert continual._holds(loses, {"cotta": more}) == "no"
    assert continual._holds(Interval(1.0, 4.0, 3), {"cotta": same}) == "unclear"


def test_a_difference_that_may_be_chance_is_no_rank():
    gains = {"neo-continual": Interval(1.0, 0.1, 3), "cotta": Interval(0.9, 0.1, 3)}
    same = Interval(-0.1, 0.5, 3)
    ours = gains["neo-continual"]
    answer = continual._answer(2, ours, gains, {"cotta": same}, (" (here)", " (there)"))
    assert "in a row (here); for comparison (there), CoTTA +0.9" in answer
    assert "before" not in answer
    assert answer.endswith("; its difference to CoTTA may be chance")
