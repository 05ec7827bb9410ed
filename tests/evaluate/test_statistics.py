from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from neotta.errors import InputError
from neotta.evaluate.statistics import FEW, LEVEL, RunSpread, accuracy, difference, holm, run_spread


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
    assert (again.runs, again.units) == (5, 250)
    alone = difference(np.repeat(first, 5, 0), np.repeat(second, 5, 0))
    assert alone.pvalue < again.pvalue


def test_runs_that_differ_by_themselves_count_as_runs():
    rng = np.random.default_rng(0)
    second = rng.random((3, 1000)) < 0.5
    first = second.copy()
    first[2] = rng.random(1000) < 0.1  # one of three seeds collapses
    found = difference(first, second)
    assert found.pvalue > 0.2
    assert found.low < -0.5
    assert found.high > 0.1
    assert difference(first[2:], second[2:]).pvalue < 1e-6


def by_hand(gap, expected, within, freedom):
    """The p-value from the textbook: gap is (runs, n), the others what images explain of a run and of the mean."""
    runs, seen = len(gap), gap.mean(axis=1).var(ddof=1)
    between = max(0.0, seen - expected) / runs
    centred, score = (float(((part) ** 2).sum()) / gap.size**2 for part in within)
    if runs > 2:
        freedom *= max(1.0, (centred + between) / (seen / runs)) ** 2
    return 2 * stats.t.sf(abs(gap.mean()) / np.sqrt(score + between), freedom)


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_runs_on_images_of_their_own_are_tested_by_the_textbook(runs):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        second = rng.random((runs, 150)) < 0.5
        first = np.where(rng.random((runs, 150)) < 0.2, rng.random((runs, 150)) < rng.random((runs, 1)), second)
        gap = first.astype(float) - second
        residual = gap - gap.mean()
        expected = (residual**2).sum() / 150**2 / runs
        assert difference(first, second).pvalue == pytest.approx(by_hand(gap, expected, (residual, gap), runs - 1))


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_runs_on_the_same_images_are_tested_by_the_textbook(runs):
    """What changes from run to run on each image explains how much runs differ."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        kind = rng.random(200)
        second = np.broadcast_to(kind < 0.5, (runs, 200))
        first = np.broadcast_to((kind < 0.35) | (kind > 0.8), (runs, 200)).copy()
        first |= rng.random((runs, 200)) < 0.3 * rng.random((runs, 1))
        gap = first.astype(float) - second
        residual = gap - gap.mean()
        expected = residual.var(axis=0, ddof=1).sum() / 200**2
        found = difference(first, second, np.broadcast_to(np.arange(200), (runs, 200)))
        within = (residual.sum(axis=0), gap.sum(axis=0))
        assert found.pvalue == pytest.approx(by_hand(gap, expected, within, runs - 1))


def varying(rng, seeds, domains, samples=200, gain=0.1, spread=0.1):
    """Two methods whose runs vary: answers by run, (seeds * domains, samples), and the domain of each run."""
    runs = (seeds * domains, 1)
    second = rng.random((runs[0], samples)) < 0.5
    lost = rng.random((runs[0], samples)) < np.clip(-gain + spread * rng.standard_normal(runs), 0, 1)
    won = rng.random((runs[0], samples)) < np.clip(gain + spread * rng.standard_normal(runs), 0, 1)
    return (second | won) & ~lost, second, np.tile(np.arange(domains), seeds)


def test_two_seeds_on_15_domains_show_how_much_runs_vary():
    """Over two seeds alone, a gain in 14 of 15 domains was +10.2 [-15.2, +35.8]."""
    first, second, domains = varying(np.random.default_rng(3), 2, 15)
    gains = (first.astype(float) - second).mean(axis=1).reshape(2, 15).mean(axis=0)
    assert (gains > 0).sum() >= 14
    found = difference(first, second, domains=domains)
    error = (first.astype(float) - second).mean(axis=1).std() / np.sqrt(30)
    assert found.low == pytest.approx(found.difference - 2.13 * error, abs=0.01)
    assert found.high == pytest.approx(found.difference + 2.13 * error, abs=0.01)


def test_the_spread_of_runs_is_pooled_over_domains_of_any_level():
    rng = np.random.default_rng(0)
    first, second, domains = varying(rng, 3, 40, samples=400, gain=0.2, spread=0.05)
    easier = first | (domains == 0)[:, None]  # that domains differ is no difference between runs
    gaps = first.astype(float) - second
    spread = run_spread(gaps, domains=domains)
    assert 40 < spread.freedom <= 80
    by_run = gaps.mean(axis=1).reshape(3, 40)
    assert spread.seen == pytest.approx(by_run.var(axis=0, ddof=1).mean())
    assert spread.excess == pytest.approx(spread.seen - gaps.var() / 400, rel=0.1)
    levels = run_spread(easier.astype(float) - second, domains=domains)
    assert levels.seen < 1.1 * spread.seen


def test_one_domain_that_varies_gives_the_degrees_of_freedom_of_one():
    rng = np.random.default_rng(0)
    first, second, domains = varying(rng, 3, 15, samples=300, gain=0.0, spread=0.0)
    first[domains == 4] = second[domains == 4] & (np.array([0, 0, 1])[:, None] == 1)  # two of three runs collapse
    assert run_spread(first.astype(float) - second, domains=domains).freedom == pytest.approx(2, abs=0.1)


def test_degrees_of_freedom_are_welchs_without_his_bias():
    right = np.zeros((6, 100), dtype=bool)
    for run, count in enumerate((40, 50, 60, 30, 50, 70)):  # variances between runs of 0.01 and 0.04
        right[run, :count] = True
    found = run_spread(right, domains=[0, 0, 0, 1, 1, 1])
    assert found.freedom == pytest.approx(0.05**2 / (0.01**2 / 4 + 0.04**2 / 4) - 2)  # not 0.05**2 / (.. / 2 + .. / 2)


@given(seed=st.integers(0, 300), runs=st.integers(2, 4), spread=st.sampled_from([0.0, 0.03, 0.2]))
def test_the_part_between_runs_only_widens(seed, runs, spread):
    first, second, _ = varying(np.random.default_rng(seed), runs, 1, 100, 0.05, spread)
    together, apart = difference(first.reshape(1, -1), second.reshape(1, -1)), difference(first, second)
    assert apart.difference == pytest.approx(together.difference)
    assert apart.pvalue >= together.pvalue - 1e-9
    assert apart.high - apart.low >= 0.98 * (together.high - together.low)


@given(seed=st.integers(0, 300), copies=st.integers(2, 16))
def test_copies_of_an_image_in_a_group_are_no_further_evidence(seed, copies):
    first, second, images = answers(seed, 1, 60, 60)
    once = difference(first, second, images)
    again = difference(*(np.repeat(each, copies, 1) for each in (first, second, images)))
    assert again.pvalue == pytest.approx(once.pvalue)
    assert (again.low, again.high) == pytest.approx((once.low, once.high), abs=0.02)
    assert again.units == once.units


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


@pytest.mark.parametrize("varying", [0.02, 0.05])
def test_two_seeds_that_agree_by_luck_are_no_verdict(varying):
    """Runs that vary by themselves, on images of their own; the variance that two of them show may be far too small."""
    false, rng = 0, np.random.default_rng(0)
    for _ in range(400):
        second = rng.random((2, 512)) < 0.6
        changed = rng.random((2, 512)) < np.abs(varying * rng.standard_normal((2, 1))) / 0.6
        first = np.where(rng.random((2, 1)) < 0.5, second | changed, second & ~changed)
        false += difference(first, second).pvalue < LEVEL
    assert false / 400 <= 0.05


def test_two_seeds_are_a_verdict_where_several_domains_show_how_much_runs_vary():
    first, second, domains = varying(np.random.default_rng(1), 2, 15, gain=0.2, spread=0.02)
    alone = difference(first[domains == 0], second[domains == 0])
    together = difference(first, second, domains=domains)
    assert alone.low < 0 < together.low


@given(
    seed=st.integers(0, 500),
    runs=st.integers(1, 4),
    gain=st.sampled_from([-0.06, 0.0, 0.02, 0.05, 0.3]),
    level=st.sampled_from([0.05, 0.05 / 4, 0.05 / 15]),
)
def test_intervals_and_p_values_agree(seed, runs, gain, level):
    first, second, groups = answers(seed, runs, 60, 80, gain)
    found = difference(first, second, groups, level=level)
    assert -1 <= found.low < found.high <= 1
    assert found.low <= found.difference <= found.high
    assert found.high - found.low > 0.005
    assert (found.low > 0 or found.high < 0) == (found.pvalue < level)
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


def by_adjusted_p_values(pvalues):
    """Holm's verdicts as usually computed."""
    order = np.argsort(pvalues, kind="stable")
    adjusted = np.maximum.accumulate(np.asarray(pvalues)[order] * np.arange(len(order), 0, -1))
    return dict(zip(order.tolist(), (adjusted < LEVEL).tolist(), strict=True))


def test_levels_of_holm():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.05 / 3, 0.025, 0.025, 0.0125])
    assert holm([]) == []
    assert holm([0.9, 0.7, 0.001]) == pytest.approx([0.025, 0.025, 0.05 / 3])
    assert holm([0.001, 0.002]) == pytest.approx([0.025, 0.05])


@given(st.lists(st.floats(0, 1), max_size=20))
def test_levels_of_holm_give_its_verdicts(pvalues):
    found = {place: pvalue < level for place, (pvalue, level) in enumerate(zip(pvalues, holm(pvalues), strict=True))}
    assert found == by_adjusted_p_values(pvalues)


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


def test_accuracies_of_many_domains_are_hardly_widened_by_chance():
    random = np.random.default_rng(0)
    images = [random.permutation(4000)[:256] for _ in range(45)]
    domains = np.repeat(np.arange(15), 3)
    for _ in range(20):  # a model without randomness: seeds only draw other images
        right = [(random.random(4000) < 0.6)[each] for each in images]
        spread = run_spread(right, images, domains)
        found = accuracy(right[:3], images[:3], spread=spread)
        assert found.high - found.low < 0.1  # plain Wilson with 768 samples: 0.07

    failed = np.ones((3, 256), dtype=bool)
    failed[:2] = random.random((2, 256)) < 0.8
    failed[2] = random.random(256) < 0.2  # a method that collapses with one seed
    found = accuracy(failed, images[:3])
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


def test_runs_that_vary_elsewhere_do_not_blow_up_the_interval_of_equal_answers():
    right = [np.ones(512, bool)] * 3
    spread = RunSpread(excess=1e-4, seen=2e-4, freedom=20.0)  # runs vary by a point
    found = difference(right, right, spread=spread)
    assert found.difference == 0.0
    assert found.low == pytest.approx(-found.high)
    assert 0.01 < found.high < 0.02  # two standard errors of three runs, and a little for what was not seen
