"""What variants of a method are called."""

from __future__ import annotations

from neotta.evaluate.frame import labels
from neotta.evaluate.plan import Run


def cotta(preset, **options):
    return Run(method="cotta", preset=preset, options=options, domains=())


CHOSEN = cotta("paper-cifar10", optimizer="adam", lr="0.001")


def test_a_preset_that_the_data_chose_is_the_papers():
    assert labels([Run(method="none", domains=()), CHOSEN]) == ["none", "cotta"]


def test_presets_of_the_paper_are_told_apart_where_there_are_several():
    other = cotta("paper", optimizer="sgd", lr="0.005")
    assert sorted(labels([CHOSEN, other])) == ["cotta", "cotta@paper-cifar10"]
    original = cotta("original-cifar10", optimizer="adam", lr="0.001", anchor_threshold="0.92")
    assert sum(label.startswith("cotta@original-cifar10") for label in labels([CHOSEN, original])) == 1


def test_a_seed_that_a_run_passed_on_makes_no_other_variant():
    assert len(set(labels([cotta("paper"), cotta("paper", seed="0")]))) == 1
