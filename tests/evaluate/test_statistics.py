from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from neotta.errors import InputError
from neotta.evaluate.statistics import FEW, SUSPICIOUS, accuracy, difference, holm


def answers(seed=0, runs=3, samples=200, pool=300, gain=0.1):
    """Two methods that often agree, and the images behind their answers."""
    rng = np.random.default_rng(seed)
    groups = np.stack([rng.permutation(pool)[:samples] for _ in range(runs)])
    kind = rng.random(pool)
    return (kind < 0.6 + gain)[groups], ((kind < 0.55) | (kind > 0.95))[groups], groups


def test_one_image_of_128_is_no_verdict():
    base = np.ones((1, 128), dtype=bool)
    worse = base.copy()
    worse[0, 5] = False
    found = difference(worse, base)
    assert found.difference == -1 / 128
    assert found.low < -0.02 < 0.02 < found.high
    assert found.pvalue == 0.5


@pytest.mark.parametrize("runs", [1, 2, 5])
def test_methods_that_never_differ_have_an_interval(runs):
    right = np.zeros((runs, 100), dtype=bool)
    found = difference(right, right)
    assert (found.difference, found.pvalue) == (0, 1)
    assert found.low == pytest.approx(-found.high)
    assert 0.005 < found.high < 0.05


def test_with_one_entry_per_image_it_is_mcnemars_test():
    first, second, _ = answers(runs=1, samples=300)
    won, lost = (first & ~second).sum(), (second & ~first).sum()
    assert won + lost > FEW
    assert difference(first, second).pvalue == pytest.approx(stats.chi2.sf((won - lost) ** 2 / (won + lost), 1))


@pytest.mark.parametrize(("won", "lost"), [(5, 0), (7, 1), (9, 3), (2, 2), (16, 0)])
def test_few_images_are_tested_exactly(won, lost):
    first, second = np.zeros((1, 200), dtype=bool), np.zeros((1, 200), dtype=bool)
    first[0, :won], second[0, won : won + lost] = True, True
    upper = stats.binom.sf(won, won + lost, 0.5) + stats.binom.pmf(won, won + lost, 0.5) / 2
    assert difference(first, second).pvalue == pytest.approx(min(1, 2 * upper))


def test_with_many_samples_the_interval_is_the_usual_one():
    first = np.tile([True] * 9 + [False] * 35, 50)
    second = np.tile([False] * 9 + [True] * 3 + [False] * 32, 50)
    found = difference(first, second)
    gap, total = (450 - 150) / 2200, 2200
    error = ((450 + 150) / total - gap**2) ** 0.5 / total**0.5
    assert found.low == pytest.approx(gap - 1.96 * error, abs=1e-3)
    assert found.high == pytest.approx(gap + 1.96 * error, abs=1e-3)


def test_the_same_answers_again_are_no_further_evidence():
    first, second, groups = answers(runs=1, samples=250)
    once = difference(first, second, groups)
    again = difference(np.repeat(first, 5, 0), np.repeat(second, 5, 0), np.repeat(groups, 5, 0))
    assert again.difference == pytest.approx(once.difference)
    assert again.pvalue == pytest.approx(once.pvalue)
    assert (again.low, again.high) == pytest.approx((once.low, once.high), abs=0.003)
    assert (again.runs, again.images, again.uneven) == (5, 250, False)
    alone = difference(np.repeat(first, 5, 0), np.repeat(second, 5, 0))
    assert alone.pvalue < again.pvalue


def test_runs_that_differ_by_themselves_count_as_runs():
    rng = np.random.default_rng(0)
    second = rng.random((3, 1000)) < 0.5
    first = second.copy()
    first[2] = rng.random(1000) < 0.1  # one of three seeds collapses
    found = difference(first, second)
    assert found.uneven
    assert found.pvalue > 0.2
    assert found.low < -0.5
    assert found.high > 0.1
    assert difference(first[2:], second[2:]).pvalue < 1e-6


def by_hand(gap):
    """Whether runs on images of their own are uneven, and the p-value then, from the textbook: gap is (runs, n)."""
    (runs, n), residual = gap.shape, gap - gap.mean()
    seen, expected = gap.mean(axis=1).var(ddof=1), (residual**2).sum() / n**2 / runs
    uneven = seen > expected and stats.chi2.sf((runs - 1) * seen / expected, runs - 1) <= SUSPICIOUS
    between = (seen - expected) / runs
    variance = (residual**2).sum() / gap.size**2 + between
    freedom = max(runs - 1, (runs - 1) * (variance / (seen / runs)) ** 2)
    return uneven, 2 * stats.t.sf(abs(gap.mean()) / np.sqrt((gap**2).sum() / gap.size**2 + between), freedom)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_uneven_runs_are_told_and_tested_by_the_textbook(runs):
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        second = rng.random((runs, 150)) < 0.5
        first = np.where(rng.random((runs, 150)) < 0.2, rng.random((runs, 150)) < rng.random((runs, 1)), second)
        uneven, pvalue = by_hand(first.astype(float) - second)
        mine = difference(first, second)
        assert mine.uneven == uneven
        if uneven:
            assert mine.pvalue == pytest.approx(pvalue)
        found.append(uneven)
    assert 5 < sum(found) < 55


def by_hand_on_shared_images(gap):
    """The same for runs that all see the same images: what changes from run to run on each image explains it."""
    (runs, n), residual = gap.shape, gap - gap.mean()
    seen, expected = gap.mean(axis=1).var(ddof=1), residual.var(axis=0, ddof=1).sum() / n**2
    uneven = seen > expected and stats.chi2.sf((runs - 1) * seen / expected, runs - 1) <= SUSPICIOUS
    if not uneven:
        return False, np.inf, np.nan
    between = (seen - expected) / runs
    variance = (residual.sum(axis=0) ** 2).sum() / gap.size**2 + between
    freedom = max(runs - 1, (runs - 1) * (variance / (seen / runs)) ** 2)
    error = np.sqrt((gap.sum(axis=0) ** 2).sum() / gap.size**2 + between)
    return uneven, freedom, 2 * stats.t.sf(abs(gap.mean()) / error, freedom)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_uneven_runs_on_the_same_images_are_tested_by_the_textbook(runs):
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        kind = rng.random(200)
        second = np.broadcast_to(kind < 0.5, (runs, 200))
        first = np.broadcast_to((kind < 0.35) | (kind > 0.8), (runs, 200)).copy()
        first |= rng.random((runs, 200)) < 0.3 * rng.random((runs, 1))
        uneven, freedom, pvalue = by_hand_on_shared_images(first.astype(float) - second)
        mine = difference(first, second, np.broadcast_to(np.arange(200), (runs, 200)))
        assert mine.uneven == uneven
        if uneven:
            assert mine.pvalue == pytest.approx(pvalue)
            found.append(freedom)
    assert max(found) > 2 * (runs - 1)


def test_an_interval_reaches_1_only_if_all_samples_differ():
    base = np.zeros((1, 5), dtype=bool)
    four, five = base.copy(), ~base
    four[0, :4] = True
    assert difference(four, base).high < 1 == difference(five, base).high
    assert difference(base, four).low > -1 == difference(base, five).low


def test_a_plain_list_is_one_run():
    right, wrong = [True, True, False], [False, True, False]
    assert difference(right, wrong) == difference(np.array([right]), np.array([wrong]))
    assert difference(right, wrong).runs == 1
    assert difference([right], [wrong]) == difference(right, wrong), "a list of one run"
    with pytest.raises(InputError, match="no samples"):
        difference([], [])


def test_two_seeds_far_from_zero_are_a_verdict():
    """A t-interval over two seeds said +38.3 ± 39.7."""
    rng = np.random.default_rng(1)
    kind = rng.random(600)
    groups = np.stack([rng.permutation(600)[:128] for _ in range(2)])
    found = difference((kind < 0.8)[groups], (kind < 0.42)[groups], groups)
    assert found.low > 0.25


@given(seed=st.integers(0, 500), runs=st.integers(1, 4), gain=st.sampled_from([-0.06, 0.0, 0.02, 0.05, 0.3]))
def test_intervals_and_p_values_agree(seed, runs, gain):
    first, second, groups = answers(seed, runs, 60, 80, gain)
    found = difference(first, second, groups)
    assert -1 <= found.low < found.high <= 1
    assert found.low <= found.difference <= found.high
    assert found.high - found.low > 0.005
    assert (found.low > 0 or found.high < 0) == (found.pvalue < 0.05)
    assert found.difference == pytest.approx(first.mean() - second.mean())


@given(seed=st.integers(0, 500), runs=st.integers(1, 4))
def test_swapping_methods_runs_or_images_changes_nothing_else(seed, runs):
    first, second, groups = answers(seed, runs, 60, 80)
    found, swapped = difference(first, second, groups), difference(second, first, groups)
    assert (swapped.difference, swapped.low, swapped.high) == pytest.approx(
        (-found.difference, -found.high, -found.low), abs=1e-9
    )
    assert swapped.pvalue == pytest.approx(found.pvalue)
    place = np.random.default_rng(seed).permutation(60)
    renamed = difference(first[::-1, place], second[::-1, place], 7 * groups[::-1, place] + 3)
    assert renamed == pytest.approx(found)


def test_runs_may_have_different_lengths_and_entries_different_weights():
    first, second, groups = answers()
    ragged = difference([first[0], first[1][:50]], [second[0], second[1][:50]], [groups[0], groups[1][:50]])
    won = np.concatenate([first[0], first[1][:50]]).mean() - np.concatenate([second[0], second[1][:50]]).mean()
    assert ragged.difference == pytest.approx(won)
    weights = np.where(np.arange(200) < 100, 3.0, 1.0) * np.ones((3, 1))
    weighted = difference(first, second, groups, weights=weights)
    gap = first.astype(float) - second
    assert weighted.difference == pytest.approx((gap[:, :100].mean() * 3 + gap[:, 100:].mean()) / 4)
    assert difference(first, second, groups, weights=9 * np.ones((3, 200))) == pytest.approx(
        difference(first, second, groups)
    )


def test_what_does_not_fit_is_refused():
    right = np.ones((2, 5), dtype=bool)
    with pytest.raises(InputError, match="same shape"):
        difference(right, right[:1])
    with pytest.raises(InputError, match="groups must have the shape"):
        difference(right, right, np.arange(5))
    with pytest.raises(InputError, match="no samples"):
        difference(right[:, :0], right[:, :0])


def test_accuracy_is_wilsons_interval_with_images_as_units():
    right = np.arange(100)[None] < 80
    wilson = stats.binomtest(80, 100).proportion_ci(method="wilson")
    assert accuracy(right)[1:] == pytest.approx(tuple(wilson), abs=0.002)
    again = accuracy(np.repeat(right, 3, 0), np.repeat(np.arange(100)[None], 3, 0))
    assert again == pytest.approx(accuracy(right), abs=0.005)
    assert accuracy(np.ones((1, 50), dtype=bool)).low < 0.95


def test_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.7, 0.001]) == pytest.approx([1.0, 1.0, 0.003])


@pytest.mark.parametrize("right", [1, 40, 80, 99])
def test_one_answer_for_each_image_is_exactly_wilsons_interval(right):
    found = accuracy(np.arange(100)[None] < right)
    wilson = stats.binomtest(right, 100).proportion_ci(method="wilson")
    assert tuple(found) == pytest.approx((right / 100, *wilson), rel=1e-6)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_equal_answers_of_several_runs_have_exactly_the_interval_of_one(runs):
    once = np.arange(60)[None] < 45
    images = np.arange(60)[None]
    found = accuracy(np.repeat(once, runs, 0), np.repeat(images, runs, 0))
    assert tuple(found) == pytest.approx(tuple(accuracy(once, images)), rel=1e-9)


def test_runs_are_uneven_if_that_is_less_probable_than_1_percent():
    assert SUSPICIOUS == 0.01


def test_few_verdicts_on_equally_good_methods_are_false():
    """In small; `benchmarks/verdicts.py` does it in full."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        groups = np.stack([rng.permutation(150)[:128] for _ in range(3)])
        kind = rng.random(150)
        first, second = (kind < 0.6)[groups], ((kind < 0.5) | (kind > 0.9))[groups]
        false += difference(first, second, groups).pvalue < 0.05
    assert false / 200 <= 0.06


def test_accuracies_of_many_domains_are_not_widened_by_chance():
    random = np.random.default_rng(0)
    images = np.stack([random.permutation(4000)[:256] for _ in range(3)])
    widths = []
    for _ in range(400):  # a model without randomness: seeds only draw other images
        found = accuracy((random.random(4000) < 0.6)[images], images)
        widths.append(found.high - found.low)
    assert sum(width > 0.09 for width in widths) <= 1  # plain Wilson with 768 samples: 0.07

    failed = np.ones((3, 256), dtype=bool)
    failed[:2] = random.random((2, 256)) < 0.8
    failed[2] = random.random(256) < 0.2  # a method that collapses with one seed
    found = accuracy(failed, images)
    assert found.high - found.low > 0.5


def score_interval(won, lost, total):
    """Tango's interval from its definition: differences whose score test, at the likeliest shares, is within 1.96."""

    def beyond(gap):
        def surprise(share):  # of lost, while won - lost is given
            shares = (share + gap, share, 1 - 2 * share - gap)
            return -sum(count * np.log(p) for count, p in zip((won, lost, total - won - lost), shares, strict=True))

        low, high = max(0.0, -gap) + 1e-12, (1 - gap) / 2 - 1e-12
        share = optimize.minimize_scalar(surprise, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
        error = np.sqrt((2 * share + gap - gap**2) / total)
        return abs((won - lost) / total - gap) / error - stats.norm.ppf(0.975)

    middle = (won - lost) / total
    return optimize.brentq(beyond, -0.9, middle), optimize.brentq(beyond, middle, 0.9)


@pytest.mark.parametrize(("won", "lost"), [(3, 2), (30, 26), (40, 20), (60, 59), (90, 10)])
def test_with_one_entry_per_image_the_interval_is_tangos(won, lost):
    first, second = np.zeros((1, 300), dtype=bool), np.zeros((1, 300), dtype=bool)
    first[0, :won], second[0, won : won + lost] = True, True
    found = difference(first, second)
    assert (found.low, found.high) == pytest.approx(score_interval(won, lost, 300), abs=1e-5)


def test_weights_that_nearly_cancel_are_told_from_those_that_do():
    first, second = np.array([[True, False]]), np.array([[False, True]])
    assert difference(first, second).pvalue == 1.0
    # Signs give ±2 and ±0.005: half of them are larger, and the other half counts half.
    assert difference(first, second, weights=np.array([[1.0025, 0.9975]])).pvalue == 0.75


def test_the_exact_test_ends_with_few_images():
    for won in (FEW, FEW + 1):
        first, second = np.zeros((1, 100), dtype=bool), np.zeros((1, 100), dtype=bool)
        first[0, :won] = True
        exact, smooth = 0.5**won, 2 * stats.norm.sf(np.sqrt(won))  # all signs alike, which counts half
        assert difference(first, second).pvalue == pytest.approx(exact if won <= 16 else smooth, rel=1e-5)


def test_the_exact_test_tells_sums_apart_that_are_close():
    first, second = np.array([[True, False, True]]), np.array([[False, True, False]])
    # Signs give ±3, ±1.006, ±1 and ±0.994, the last of which was seen.
    found = difference(first, second, weights=np.array([[1.0, 1.003, 0.997]]))
    assert found.pvalue == 0.875
