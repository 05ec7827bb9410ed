"""What a check advises."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from neotta.evaluate.check import ORDERS, CheckReport, RuleCost
from neotta.evaluate.check_words import sentences
from neotta.neo.reference import measured
from neotta.neo.reference_file import Reference


def report(worst, classes=10, shares=None, far=0.1, labelled=True, accuracy=90.0):
    """A report in which each rule costs this much everywhere, by rule and whether it has a reference."""
    head = nn.Linear(4, classes)
    known = measured(head, torch.randn(100, 4, generator=torch.Generator().manual_seed(0)), "head")
    rules = [
        RuleCost(rule, reference, {kind: {1: cost, 16: cost} for kind in ORDERS})
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
        far,
        Reference({"head": known}, {"head": ""}),
        rules,
    )


SAFE = {("neo-stream", False): 0.2, ("neo-stream", True): 0.1, ("neo", False): -40.0, ("neo", True): -0.5}


@pytest.mark.parametrize(
    ("changes", "classes", "line"),
    [
        ({}, 10, "neotta.adapt(model)"),
        ({("neo-stream", False): -3.0}, 10, 'neotta.adapt(model, reference="reference.safetensors")'),
        ({("neo-stream", False): -3.0, ("neo-stream", True): -2.0}, 10, None),
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


def test_what_a_rule_does_to_clean_images_is_said_in_words():
    text = "\n".join(sentences(report({**SAFE, ("neo-stream", False): 0.0, ("neo", False): -34.4})))
    assert "NEO-Stream keeps accuracy and loses nothing in any row." in text
    assert "NEO as in the paper changes accuracy by -34.4 points on average and by -34.4 in its worst row" in text


def test_unbalanced_classes_and_a_distant_mean_are_named():
    text = "\n".join(sentences(report(SAFE, 2, shares=[0.9, 0.1], far=3.0)))
    assert "90% of the answers are class 0" in text
    assert "3.00 times their spread away from the origin" in text
    assert "one number" in text
    assert "no labels" in "\n".join(sentences(report(SAFE, labelled=False)))


def test_a_model_that_only_guesses_is_not_judged():
    found = report(SAFE, accuracy=20.0)
    text = "\n".join(sentences(found))
    assert "no better than always giving the most frequent label (20.0 %)" in text
    assert text.endswith("Use none.")
    assert found.as_dict()["advice"] is None
    assert report(SAFE, accuracy=20.1).advice is not None
