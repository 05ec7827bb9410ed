"""What items say of methods side by side."""

import pytest

from neotta.evaluate.metrics import Interval
from neotta.paper.claims import all_hold, gained, nearly
from neotta.paper.measured import rank

SAME, WORSE, CLOSE, BETTER = (Interval(mean, 0.5, 3) for mean in (0.01, -2.0, -0.2, 1.0))


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ({"none": WORSE, "t3a": WORSE}, "the best of 3 methods"),
        ({"none": WORSE, "t3a": CLOSE}, "first of 3 methods (its difference to T3A may be chance)"),
        ({"none": CLOSE, "t3a": CLOSE}, "first of 3 methods (all its differences may be chance)"),
        ({"none": WORSE, "sar": BETTER}, "number 2, after SAR, of 3 methods"),
        ({"none": WORSE, "sar": SAME}, "first, level with SAR, of 3 methods"),
        (
            {"none": SAME, "sar": BETTER, "t3a": CLOSE},
            "number 2, after SAR, level with no adaptation, of 4 methods (its difference to T3A may be chance)",
        ),
    ],
)
def test_the_best_is_ahead_beyond_chance(gaps, words):
    assert rank(gaps) == words


def test_what_holds_nowhere_does_not_hold_in_part():
    assert all_hold(["no", "unclear"]) == "no"
    assert all_hold(["yes", "unclear"]) == "partly"
    assert all_hold(["no", "partly"]) == "partly"
    assert all_hold(["no", "no"]) == "no"
    assert all_hold([]) == "unclear"


def test_a_gain_may_have_to_be_of_a_size():
    assert gained(Interval(2.0, 0.5, 3)) == "yes"
    assert gained(Interval(2.0, 0.5, 3), least=3.0) == "no"
    assert gained(Interval(2.8, 0.5, 3), least=3.0) == "unclear"


def test_a_part_of_a_gain_that_may_be_chance_says_nothing():
    assert nearly(Interval(2.0, 0.1, 3), Interval(2.0, 5.0, 3)) == "unclear"
    assert nearly(Interval(2.0, 0.1, 3), Interval(2.1, 0.1, 3)) == "yes"
    assert nearly(Interval(1.0, 0.1, 3), Interval(2.1, 0.1, 3)) == "no"
