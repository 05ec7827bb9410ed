"""Rules of means, on arrays: which options are valid, what a rule remembers, and its numbers by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from neotta.errors import OptionError
from neotta.neo import moments
from neotta.neo.moments import ONE_STREAM, Moments
from neotta.neo.rules import Field, MeanRule

ROWS = np.array([[1.0, 2.0], [3.0, 6.0], [8.0, 1.0]])
VALID = [
    {},
    {"weighting": "batch"},
    {"alpha": 0.25},
    {"alpha": 0.25, "debias": True},
    {"variance": True},
    {"shrinkage": "james-stein"},
]


def state(count=4, batches=2, rejected=1, mean=(1.0, 3.0), scatter=6.0, discount=0.5):
    counts = (np.array(number) for number in (count, batches, rejected))
    return Moments(*counts, np.array(mean), np.array(scatter), np.array(discount))


def take(rule, start, rows=ROWS, **how):
    how = {"finite": None, "bias": None, "adapt": True, **how}
    return rule.take(start, rows, ONE_STREAM, **how)


@pytest.mark.parametrize("alpha", [0, 0.0, 1, 1.0, 0.5, np.float32(0.5)])
def test_a_weight_from_0_to_1_is_valid(alpha):
    assert MeanRule(alpha=alpha).alpha == alpha


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1e-9}, "alpha"),
        ({"alpha": 1 + 1e-9}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"alpha": True}, "alpha"),
        ({"alpha": "0.5"}, "alpha"),
        ({"weighting": "rows"}, "weighting"),
        ({"debias": True}, "debias needs a moving average"),
        ({"shrinkage": "stein"}, "shrinkage"),
        ({"shrinkage": "james-stein", "alpha": 0.5}, "shrinkage and variance"),
        ({"shrinkage": "james-stein", "weighting": "batch"}, "shrinkage and variance"),
        ({"variance": True, "alpha": 0.5}, "shrinkage and variance"),
        ({"variance": True, "weighting": "batch"}, "shrinkage and variance"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MeanRule(**options)
    with pytest.raises(OptionError, match=message):
        MeanRule.of(options)


def test_options_by_name():
    assert MeanRule.of({"alpha": 0.5, "debias": True}) == MeanRule("sample", 0.5, True)
    with pytest.raises(OptionError, match=r"no option 'beta': it takes weighting, alpha, debias, shrinkage, variance"):
        MeanRule.of({"alpha": 0.5, "beta": 1})


def test_shrinkage_needs_the_variance_and_turns_it_on():
    assert MeanRule(shrinkage="james-stein").variance
    assert not MeanRule().variance
    assert not MeanRule(alpha=0.5, debias=True).variance
    assert not MeanRule().debias


@pytest.mark.parametrize("options", VALID, ids=str)
def test_a_rule_remembers_exactly_what_the_next_centre_depends_on(options):
    """Change each moment in turn: the next centre differs if, and only if, the rule says that it remembers it."""
    rule = MeanRule(**options)
    expected = take(rule, state())[1].copy()
    changed = {"count": 9, "batches": 5, "rejected": 7, "mean": (2.0, -1.0), "scatter": 30.0}
    depends = {
        name for name, value in changed.items() if not np.allclose(take(rule, state(**{name: value}))[1], expected)
    }
    remembered = set(rule.remembers)
    assert depends <= remembered
    needless = {"count"} | (
        {"scatter"} if options == {"variance": True} else set()
    )  # kept to be told, not for the centre
    assert remembered - needless <= depends


def test_what_is_remembered_by_name():
    assert MeanRule().remembers == ("mean", "count")
    assert MeanRule(weighting="batch").remembers == ("mean", "count", "batches")
    assert MeanRule(alpha=0.5).remembers == ("mean", "count")
    assert MeanRule(alpha=0.5, weighting="batch").remembers == ("mean", "count")
    assert MeanRule(alpha=0.5, debias=True).remembers == ("mean", "count", "batches")
    assert MeanRule(variance=True).remembers == ("mean", "count", "scatter")


def test_which_states_can_be_merged_and_by_what():
    assert [(MeanRule(**options).mergeable, MeanRule(**options).by) for options in VALID[:3]] == [
        (True, "count"),
        (True, "batches"),
        (False, "count"),
    ]


def test_the_fields_of_a_stream():
    fields = MeanRule().fields(7)
    assert tuple(fields) == Moments._fields
    for name in ("count", "batches", "rejected"):
        assert fields[name] == Field((), "count")
    assert fields["mean"] == Field((7,), "narrow", 0.0, -math.inf, False, math.inf)
    assert fields["scatter"] == Field((), "real", 0.0, 0.0, False, math.inf)
    assert fields["discount"] == Field((), "real", 0.0, -math.inf, True, math.inf)
    plain = Field(())
    assert (plain.kind, plain.start, plain.least, plain.most, plain.optional) == ("real", 0, -math.inf, math.inf, False)


def test_a_batch_by_hand():
    start, (mean, total) = state(discount=0.0), (ROWS.mean(0), ROWS.sum(0))
    new, centre = take(MeanRule(variance=True), start)
    assert new is start
    assert centre == pytest.approx((4 * np.array([1.0, 3.0]) + total) / 7)
    assert (int(new.count), int(new.batches), int(new.rejected)) == (7, 3, 1)
    between = 4 * 3 / 7 * ((mean - [1.0, 3.0]) ** 2).sum()
    assert float(new.scatter) == pytest.approx(6.0 + ((ROWS - mean) ** 2).sum() + between)
    assert take(MeanRule(weighting="batch"), state())[1] == pytest.approx((2 * np.array([1.0, 3.0]) + mean) / 3)
    assert take(MeanRule(alpha=0.25), state())[1] == pytest.approx(0.75 * np.array([1.0, 3.0]) + 0.25 * mean)
    debiased = take(MeanRule(alpha=0.25, debias=True), state())[1]
    assert debiased == pytest.approx((0.75 * np.array([1.0, 3.0]) + 0.25 * mean) / (1 - 0.75**3))


def test_a_batch_without_a_finite_row_moves_no_average():
    nothing = np.zeros(3, dtype=bool)
    for options in VALID:
        rule = MeanRule(**options)
        before = np.asarray(rule.centre(state())).copy()
        after, centre = take(rule, state(), finite=nothing)
        assert centre == pytest.approx(before)
        assert (int(after.count), int(after.batches), int(after.rejected)) == (4, 2, 4)


def test_without_adapting_nothing_changes():
    for options in VALID:
        rule, start = MeanRule(**options), state()
        after, centre = take(rule, start, adapt=False)
        assert all(np.array_equal(one, other) for one, other in zip(after, state(), strict=True))
        assert centre == pytest.approx(rule.centre(state()))


def test_the_james_stein_factor_by_hand():
    rule = MeanRule(shrinkage="james-stein")
    centre = rule.centre(state(discount=0.0))  # variance 6 / 3, of the mean 2 / 4, |mean|² = 10
    assert centre == pytest.approx((1 - 0.5 / 10) * np.array([1.0, 3.0]))
    assert rule.centre(state(count=1, discount=0.0)) == pytest.approx([0.0, 0.0])
    assert rule.centre(state(mean=(0.0, 0.0))) == pytest.approx([0.0, 0.0])
    assert rule.centre(state(scatter=1e6)) == pytest.approx([0.0, 0.0]), "never turned round"


def test_merging_without_variance_leaves_the_scatter_alone():
    one, other = state(discount=0.0), state(count=2, batches=1, mean=(4.0, 0.0), scatter=1.0, discount=0.0)
    MeanRule().merge(one, other)
    assert float(one.scatter) == 6.0
    assert one.mean == pytest.approx([2.0, 2.0])
    assert (int(one.count), int(one.batches), int(one.rejected)) == (6, 3, 2)
    one = state(discount=0.0)
    MeanRule(variance=True).merge(one, other)
    assert float(one.scatter) == pytest.approx(6 + 1 + 4 * 2 / 6 * (9 + 9))


@pytest.mark.parametrize("options", VALID[:2] + VALID[4:], ids=str)
def test_a_difference_merged_again_is_the_whole(options):
    rule, before, now = MeanRule(**options), state(discount=0.0), state(discount=0.0)
    take(rule, now)
    more = rule.difference(now, before)
    assert (int(more.count), int(more.batches), int(more.rejected)) == (3, 1, 0)
    assert more.mean == pytest.approx(ROWS.mean(0))
    rule.merge(before, more)
    assert before.mean == pytest.approx(now.mean)
    assert float(before.scatter) == pytest.approx(float(now.scatter))


def test_weights_of_merged_means_are_sums_of_weights():
    one, other = state(count=4, discount=3.0), state(count=2, mean=(4.0, 0.0), discount=1.0)
    assert moments.weight(one) == 1.0
    assert moments.weight_share(one, other) == 0.5
    MeanRule().merge(one, other)
    assert one.mean == pytest.approx([2.5, 1.5])
    assert float(one.discount) == 4.0
    assert moments.weight_share(state(count=0, discount=0.0), state(count=0, discount=0.0)) == 0.0
    plain = state()._replace(discount=None)
    assert moments.weight(plain) == 4.0
    assert moments.weight_share(plain, plain) == 0.5


def test_a_rule_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MeanRule().alpha = 0.5


def test_shares_by_hand():
    like = np.zeros(2)
    assert moments.proportion(np.array([3, 0, 0]), np.array([1, 2, 0]), like).tolist() == [0.25, 1.0, 0.0]
    assert moments.proportion(3, 1, like) == 0.25
    assert moments.proportion(0, 0, like) == 0.0


@pytest.mark.parametrize("alpha", [0.0, 1e-12, 0.3, 1.0])
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_the_weight_of_the_data_in_a_moving_average(alpha, batches):
    found = float(moments.moving_weight(np.array(batches), alpha, np.zeros(1)))
    expected = math.fsum(alpha * (1 - alpha) ** step for step in range(max(batches, 1)))
    assert found == pytest.approx(expected if alpha else 1.0, rel=1e-12)


def test_limits_and_usable_rows():
    assert moments.limit(np.dtype(np.float64)) == 1e90
    assert moments.limit(np.dtype(np.float64), np.dtype(np.float32)) == 1e16
    assert moments.limit(np.dtype(np.float32)) == moments.limit(np.dtype(np.float16)) == 1e16
    rows = np.array([[1e90, -1e90], [1.1e90, 0.0], [0.0, -1.1e90], [np.nan, 0.0], [np.inf, 0.0]])
    assert moments.usable(rows, 1e90).tolist() == [True, False, False, False, False]


def test_numbers_of_python_stay_numbers_of_python():
    assert type(moments.as_real(3, np.zeros(1, np.float32))) is float
    assert moments.as_real(np.array(3), np.zeros(1, np.float32)).dtype == np.float32


def test_a_batch_with_weights_by_hand():
    weights = np.array([0.5, 0.0, 2.0])
    after, centre = take(MeanRule(variance=True), state(discount=0.0), weights=weights)
    mean = np.average(ROWS, axis=0, weights=weights)
    assert centre == pytest.approx((4 * np.array([1.0, 3.0]) + 2.5 * mean) / 6.5)
    assert (int(after.count), float(after.discount)) == (6, -0.5)
    within = (weights[:, None] * (ROWS - mean) ** 2).sum()
    assert float(after.scatter) == pytest.approx(6 + within + 4 * 2.5 / 6.5 * ((mean - [1.0, 3.0]) ** 2).sum())


def test_a_mean_near_the_origin_is_shrunk_by_the_same_formula():
    near = Moments(np.array(5), np.array(1), np.array(0), np.array([0.3, 0.4]), np.array(1.0))
    assert float(moments.shrink_factor(near)) == pytest.approx(1 - (1.0 / 4 / 5) / 0.25)


def test_weights_that_sum_to_less_than_one_are_weights():
    weights = np.array([0.25, 0.125])
    found = moments.summarise(np.array([[1.0], [4.0]]), weights=weights)
    assert found.mean.tolist() == [2.0]
    none = Moments(np.array(0), np.array(0), np.array(0), np.zeros(1), np.array(0.0), np.array(0.0))
    assert float(moments.weight_share(none, found)) == 1.0


def test_the_discount_of_a_difference_is_what_was_added():
    before, now = state(count=2, discount=0.25), state(count=4, discount=1.0)
    assert float(moments.difference(now, before).discount) == 0.75
