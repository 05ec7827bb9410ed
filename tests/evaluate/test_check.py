"""What a check advises."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import neotta
from neotta.cli.check import doubt, sentences
from neotta.evaluate.check import DRAWS, ORDERS, RULES, CheckReport, Orders, RuleCost, recentered
from neotta.neo.reference import measured
from neotta.neo.reference_file import Reference


def report(worst, classes=10, shares=None, labelled=True, accuracy=90.0, shown=("clean",)):
    """A report in which each rule costs this much everywhere, by rule and whether it has a reference."""
    head = nn.Linear(4, classes)
    known = measured(head, torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), "head")
    rules = [
        RuleCost(
            rule, reference, {domain: {kind: {1: [cost], 16: [cost, cost]} for kind in ORDERS} for domain in shown}
        )
        for (rule, reference), cost in worst.items()
    ]
    return CheckReport(
        "a model",
        "clean",
        "head",
        classes,
        100,
        labelled,
        accuracy if labelled else math.nan,
        20.0 if labelled else math.nan,
        list(np.full(classes, 1 / classes)) if shares is None else shares,
        Reference({"head": known}, {"head": ""}),
        rules,
    )


SAFE = {("neo-stream", False): 0.2, ("neo-stream", True): 0.1, ("neo", False): -40.0, ("neo", True): -0.5}


@pytest.mark.parametrize(
    ("changes", "classes", "line"),
    [
        ({}, 10, "neotta.adapt(model)"),
        ({("neo-stream", False): -3.0}, 10, 'neotta.adapt(model, reference="reference.safetensors")'),
        ({("neo-stream", False): -3.0, ("neo-stream", True): -2.0}, 10, None),  # whatever else may be bearable
        ({}, 2, 'neotta.adapt(model, "neo", reference="reference.safetensors")'),
        ({("neo", True): -5.0}, 2, None),
    ],
)
def test_the_line_to_use(changes, classes, line):
    found = report({**SAFE, **changes}, classes)
    assert (None if found.advice is None else found.advice.line) == line
    text = "\n".join(sentences(found))
    assert (f"Use: model = {line}" if line else "Use none") in text
    assert found.as_dict()["advice"] == line


def test_unbalanced_classes_are_named():
    text = "\n".join(sentences(report(SAFE, 2, shares=[0.9, 0.1])))
    assert "90% of the answers are class 0" in text
    assert "one number" in text
    assert "no labels" in "\n".join(sentences(report(SAFE, labelled=False)))
    assert "1 of 3 classes are never predicted" in "\n".join(sentences(report(SAFE, 3, shares=[0.5, 0.5, 0.0])))


def test_a_model_that_only_guesses_is_not_judged():
    found = report(SAFE, accuracy=20.0)
    text = "\n".join(sentences(found))
    assert "no better than always giving the most frequent label (20.0 %)" in text
    assert text.endswith("Use none.")
    assert found.as_dict()["advice"] is None
    assert report(SAFE, accuracy=20.1).advice is not None


def test_one_bad_draw_is_enough_to_recommend_nothing():
    found = report(SAFE)
    found.rules = [found.rules[0], found.rules[2]]
    assert found.advice is found.rules[0]
    found.rules[0].changes["clean"]["some-classes:classes=2"] = {16: [0.2] * 99 + [-6.0]}
    assert found.rules[0].of_order("clean", "some-classes:classes=2") == (pytest.approx(0.14, abs=0.01), -6.0)
    assert found.advice is None
    assert "or 5 in some draw" in "\n".join(sentences(found))


def test_under_a_shift_the_rule_that_gains_most_of_the_harmless_ones_is_recommended():
    found = report({**SAFE, ("neo-bn", False): 0.0}, shown=("clean", "fog/5"))
    stream, known, _, neo, norm = found.rules
    for rule, gain in ((stream, 2.0), (known, 2.01), (neo, 1.0), (norm, 7.0)):
        rule.changes["fog/5"] = {kind: {16: [gain]} for kind in ORDERS}
    assert found.advice is norm
    assert "neo-bn changes accuracy under fog/5 by +7.0 points" in "\n".join(sentences(found))
    norm.changes["clean"]["some-classes"] = {16: [-50.0]}
    assert found.advice is stream, "the simplest of those that gain as much"
    for rule in found.rules:
        rule.changes["fog/5"] = {kind: {16: [0.0]} for kind in ORDERS}
    assert "gain nothing under the corruptions" in "\n".join(sentences(found))


EIGHTS = [0.05] * 8 + [0.6, 0.0]


def test_images_that_do_not_look_clean_get_no_advice_without_labels():
    found = report(dict.fromkeys(SAFE, -50.0), shares=EIGHTS, labelled=False)
    text = "\n".join([doubt(found), *sentences(found)])
    assert found.doubts == ["60% of the plain answers are class 8"]
    assert (found.advice, "neotta judge" in text, "Use none" in text) == (None, True, False)
    assert not report(SAFE, 2, shares=[0.9, 0.1]).doubts, "one of two classes may be rare"
    found = report(SAFE, shares=EIGHTS)
    assert found.doubts
    found.guessing = 58.0
    assert not found.doubts, "so many labels are that class"


@pytest.mark.parametrize(("surety", "clean"), [(math.nan, True), (1.0, True), (0.9, True), (0.8, False)])
def test_images_of_which_the_model_is_less_sure_than_of_clean_ones_do_not_look_clean(surety, clean):
    found = report(SAFE, labelled=False)
    found.surety = surety
    assert (not found.doubts) is clean
    assert (found.advice is not None) is clean


@pytest.mark.parametrize("shares", [None, EIGHTS])
def test_with_labels_a_gain_is_recommended_and_never_none_beside_it(shares):
    found = report({**SAFE, ("neo", False): 25.3}, shares=shares, accuracy=35.0)
    neo = found.rules[2]
    assert found.noise == pytest.approx(200 * math.sqrt(0.35 * 0.65 / 50))
    assert found.advice is neo
    assert sentences(found)[-1] == 'Use: model = neotta.adapt(model, "neo")'
    neo.changes["clean"]["some-classes"] = {16: [-6.0]}
    text = "\n".join(sentences(found))
    assert "+25.3 points where the classes are mixed" in text
    assert "one class (-6.0, worst draw -6.0)" in text
    assert text.endswith('Use, where that does not occur: model = neotta.adapt(model, "neo")')
    neo.changes["clean"]["some-classes"] = {16: [9.0] * 9 + [-8.0]}
    assert "one class (+7.3, worst draw -8.0)" in "\n".join(sentences(found))
    neo.changes["clean"]["iid"] = {16: [13.0]}  # within the noise
    assert found.advice is (found.rules[0] if shares is None else None)
    assert (sentences(found)[-1].startswith("Use none: no rule gains more than 13.5 points")) is (shares is not None)


@pytest.mark.parametrize("rule", RULES)
def test_streams_come_in_batches_of_the_size_that_is_named_and_know_nothing_of_each_other(rule):
    random = torch.Generator().manual_seed(0)
    head = nn.Linear(4, 3)
    streams = [torch.randn(count, 4, generator=random) + 2 for count in (24, 20, 8)]
    shown = {}
    for size in (1, 16):
        shown[size] = recentered(head, rule, None, streams, size)
        for rows, classes in zip(streams, shown[size], strict=True):
            model = neotta.adapt(nn.Sequential(nn.Identity(), copy.deepcopy(head)), rule, head="1")
            with torch.no_grad():
                expected = torch.cat([model(batch).argmax(1) for batch in rows.split(size)])
            assert torch.equal(classes, expected)
    if rule == "neo":
        assert not torch.equal(torch.cat(shown[1]), torch.cat(shown[16]))


def test_every_draw_of_every_order_is_measured():
    rows, head = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)), nn.Linear(4, 3)
    same = Orders(np.arange(90) % 3).changes(
        rows, head, lambda streams, _: [head(s).argmax(1) for s in streams], (1, 16)
    )
    assert list(same) == list(ORDERS)
    assert all(draws == [0.0] * DRAWS for sizes in same.values() for draws in sizes.values())
