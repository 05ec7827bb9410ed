from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.answered import packed, records_of
from support.benches import open_bench

from neotta.errors import DataError, OptionError
from neotta.evaluate.comparison import compare
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Record
from neotta.evaluate.results import Results
from neotta.evaluate.statistics import difference
from neotta.report.grids import differences, values

SEEDS = (1, 2, 3)
DOMAINS = ("clean", "fog/3", "fog/5", "snow/3", "snow/5")


def record(method="none", domain="fog/5", seed=1, top1=50.0, **more):
    measured = {"top1": top1, "ece": (100 - top1) / 200, "entropy": top1 / 100}
    samples = f"{domain} {seed} {more.get('samples', 64)} {more.get('batch_size', 8)}"
    about = {"key": f"{method} {samples}", "model": "m", "weights": "w", "data": "d", "manifests": [samples]}
    about |= {"method": method, "domain": domain, "domains": [domain], "seed": seed, "samples": 64, "batch_size": 8}
    return Record.make({**about, "count": 64, "status": "ok", "metrics": measured, **more})


def failed(**more):
    made = record(status="failed", error="OSError: it broke", **more)
    left = {"metrics", "weights", "manifests", "count"}
    return Record.make({name: value for name, value in made.entries().items() if name not in left})


def made_up(methods=("none", "neo", "tent"), domains=DOMAINS, seeds=SEEDS):
    """Records with random accuracies, and the accuracies as an array (method, domain, seed)."""
    numbers = np.random.default_rng(0).uniform(40, 90, (len(methods), len(domains), len(seeds)))
    places = itertools.product(enumerate(methods), enumerate(domains), enumerate(seeds))
    records = [record(method, domain, seed, numbers[m, d, s]) for (m, method), (d, domain), (s, seed) in places]
    return records, numbers


def answered(method="none", domain="fog/5", seed=1, right=None, **more):
    """A record of a run on 128 images that all seeds draw from one pool of 600; `right` is of the pool."""
    images = drawn(seed)
    kept = packed(right[images], images, domain=domain, seed=seed, pool=600)
    return record(method, domain, seed, 100 * right[images].mean(), answers=kept, **more)


def drawn(seed):
    """The images of a seed."""
    return np.random.default_rng(seed).permutation(600)[:128]


def test_means_over_seeds():
    records, numbers = made_up()
    (block,) = compare(records).blocks
    assert block.methods == ("none", "neo", "tent")
    assert block.domains == ("clean", "snow/3", "snow/5", "fog/3", "fog/5")
    for (m, method), (d, domain) in itertools.product(enumerate(block.methods), enumerate(DOMAINS)):
        found = block.cells[domain, method].interval
        assert found.mean == pytest.approx(numbers[m, d].mean())
        assert found.runs == 3


def test_the_average_is_taken_over_domains_first_and_leaves_clean_out():
    records, numbers = made_up()
    (block,) = compare(records).blocks
    for m, method in enumerate(block.methods):
        assert block.average[method].mean == pytest.approx(numbers[m, 1:].mean())
    assert block.average_differences["neo"].interval.mean == pytest.approx((numbers[1, 1:] - numbers[0, 1:]).mean())


def test_differences_are_paired():
    records, numbers = made_up()
    (block,) = compare(np.random.default_rng(1).permutation(records)).blocks
    for d, domain in enumerate(DOMAINS):
        found = block.differences[domain, "tent"].interval
        assert found.mean == pytest.approx((numbers[2, d] - numbers[0, d]).mean())
    assert not any(label == "none" for _, label in block.differences)


def test_records_of_older_versions_have_no_interval_and_no_verdict():
    gains = {"neo": (9.0, 10.0, 11.0), "tent": (-9.0, -10.0, -11.0)}
    records = [record(seed=seed) for seed in SEEDS]
    records += [
        record(method, seed=s, top1=50 + g) for method, v in gains.items() for s, g in zip(SEEDS, v, strict=True)
    ]
    for metric in ("top1", "ece", "entropy"):
        comparison = compare(records, metric)
        (block,) = comparison.blocks
        for method in gains:
            difference = block.differences["fog/5", method]
            assert difference.verdict == "can't tell"
            assert math.isnan(difference.interval.half_width)
        assert any("9 values come from records that do not say" in note for note in comparison.notes())
        assert not any("95 %" in note or "One seed" in note for note in comparison.notes())
        assert "can't tell" not in str(differences(block, comparison.metric))


@pytest.mark.parametrize("other", [{"seed": 7}, {"manifests": ["other"]}, {"count": 63}])
def test_runs_on_other_samples_are_not_paired(other):
    records = [*(record(seed=seed) for seed in SEEDS), *(record("neo", seed=seed, top1=60.0) for seed in (1, 2))]
    records.append(record("neo", seed=3, top1=90.0).model_copy(update=other))
    comparison = compare(records)
    difference = comparison.blocks[0].differences["fog/5", "neo"]
    assert difference.interval.runs == 2
    assert difference.interval.mean == 10
    assert any("1 runs are left out of the differences" in note for note in comparison.notes())


def test_relative_error_is_a_mean_without_an_interval():
    records, numbers = made_up()
    (block,) = compare(records).blocks
    errors = 100 - numbers[:, 1:].reshape(3, 2, 2, len(SEEDS))  # method, corruption, severity, seed
    per_seed = 100 * (errors.sum(axis=2) / errors[0].sum(axis=1)).mean(axis=1)
    for m, method in enumerate(block.methods):
        assert block.relative_error[method].mean == pytest.approx(per_seed[m].mean())
        assert np.isnan(block.relative_error[method].half_width), "an interval over seeds would not be about images"
        assert block.relative_error[method].runs == len(SEEDS)
    assert block.relative_error["none"].mean == 100
    assert compare(records, "ece").blocks[0].relative_error == {}


def test_no_mean_corruption_error_without_corruptions_or_errors_or_baseline():
    assert compare([record(domain="camera"), record("neo", "camera")]).blocks[0].relative_error == {}
    assert compare([record(top1=100.0), record("neo")]).blocks[0].relative_error == {}
    (block,) = compare([record("neo")]).blocks
    assert (block.relative_error, block.baseline, block.differences) == ({}, None, {})


@pytest.mark.parametrize("seeds", [(1,), SEEDS])
def test_verdicts_are_those_of_the_images(seeds):
    kind = np.random.default_rng(0).random(600)
    methods = {"none": kind < 0.5, "neo": kind < 0.7, "tent": kind < 0.3, "lame": (kind < 0.48) | (kind > 0.98)}
    comparison = compare(
        [answered(method, seed=seed, right=right) for method, right in methods.items() for seed in seeds]
    )
    (block,) = comparison.blocks
    found = {method: block.differences["fog/5", method] for method in methods if method != "none"}
    assert [difference.verdict for difference in found.values()] == ["helps", "hurts", "can't tell"]
    images = [drawn(seed) for seed in seeds]
    expected = difference(*([methods[name][each] for each in images] for name in ("neo", "none")), images)
    assert found["neo"].pvalue == pytest.approx(expected.pvalue)
    assert found["neo"].interval.ends == pytest.approx((100 * expected.low, 100 * expected.high))
    assert any(note.startswith("One seed: the interval is about other images") for note in comparison.notes()) == (
        len(seeds) == 1
    )
    assert any("95 % interval over images" in note for note in comparison.notes())


def test_one_image_of_128_does_not_hurt():
    right = np.ones(600, dtype=bool)
    worse = np.arange(600) != drawn(1)[0]
    records = [
        answered(method, seed=s, right=bits) for s in SEEDS for method, bits in (("none", right), ("neo", worse))
    ]
    found = compare(records).blocks[0].differences["fog/5", "neo"]
    assert found.interval.mean < 0
    assert found.verdict == "can't tell"
    assert found.interval.low < -0.5 < 0 < found.interval.high


def test_near_duplicates_in_a_group_are_one_unit():
    """Eight clips of 16 frames, on which the method is better by chance in three and worse in none."""
    clip = np.arange(128) // 16
    base, better = clip % 2 == 0, (clip % 2 == 0) | (clip == 1) | (clip == 3) | (clip == 5)

    def found(**groups):
        kept = {m: {**packed(right, np.arange(128)), **groups} for m, right in (("none", base), ("neo", better))}
        records = [record(method, top1=100 * each.mean(), answers=kept[method])
                   for method, each in (("none", base), ("neo", better))]  # fmt: skip
        return compare(records).blocks[0]

    assert found().differences["fog/5", "neo"].verdict == "helps"
    grouped = found(groups=clip.tolist())
    assert grouped.differences["fog/5", "neo"].verdict == "can't tell"
    assert grouped.cells["fog/5", "neo"].interval.half_width > 2 * found().cells["fog/5", "neo"].interval.half_width
    for broken in ([0], [-1] * 128, "abc"):
        with pytest.raises(DataError, match="cannot be read"):
            found(groups=broken)


@pytest.mark.parametrize("order", ["hold-out", "cross-domain"])
def test_one_state_scored_on_other_images_has_no_verdict(order):
    kind = np.random.default_rng(0).random(600)
    methods = {"none": kind < 0.3, "neo": kind < 0.7}

    def comparison(*seeds):
        how = {"order": order, "held_out_samples": -1, "source_domain": "snow/5"}
        return compare([answered(m, seed=s, right=right, **how) for m, right in methods.items() for s in seeds])

    one, several = comparison(1), comparison(1, 2, 3)
    (block,) = one.blocks
    gap = block.differences["fog/5", "neo"]
    assert math.isnan(gap.interval.half_width)
    assert gap.verdict == "can't tell"
    assert math.isnan(block.cells["fog/5", "neo"].interval.half_width)
    assert "can't tell" not in str(differences(block, one.metric))
    assert any("one state, of one seed" in note for note in one.notes())
    assert several.blocks[0].differences["fog/5", "neo"].verdict == "helps"
    assert not any("one state" in note for note in several.notes())


@settings(max_examples=30)
@given(seed=st.integers(0, 200), seeds=st.integers(1, 3), gain=st.sampled_from([0.02, 0.05, 0.1]))
def test_verdicts_and_the_intervals_beside_them_agree_as_printed(seed, seeds, gain):
    random = np.random.default_rng(seed)
    records = []
    for domain in ("a", "b", "c", "d"):
        kind = random.random(600)
        better = (kind < 0.5 + gain * random.random()) & (random.random(600) > 0.01)
        for method, right in (("none", kind < 0.5), ("neo", better)):
            records += [answered(method, domain=domain, seed=s, right=right) for s in range(seeds)]
    comparison = compare(records)
    (block,) = comparison.blocks
    for gap in (*block.differences.values(), *block.average_differences.values()):
        low, high = (float(end) for end in gap.interval.text(1, "+").split("[")[1].strip("]").split(","))
        assert gap.verdict == ("helps" if low > 0 else "hurts" if high < 0 else "can't tell")


def test_intervals_stay_in_the_range_of_their_metric():
    right = np.arange(600) >= 0
    records = [answered("none", seed=seed, right=right) for seed in (1, 2)]
    for metric, numbers, shown in (("top1", (100.0, 100.0), "100.0 [98"), ("ece", (0.11, 0.17), "0.140 [0.000, ")):
        scores = [{metric: number} for number in numbers]
        changed = [each.model_copy(update={"metrics": its}) for each, its in zip(records, scores, strict=True)]
        comparison = compare(changed, metric)
        ((_, (entry,)),) = values(comparison.blocks[0], comparison.metric).rows[:1]
        assert entry.text.startswith(shown)
        low, high = comparison.blocks[0].cells["fog/5", "none"].interval.ends
        assert 0 <= low < high <= comparison.metric.highest


def test_verdicts_on_many_domains_are_corrected():
    """Five images gained and none lost are a verdict on one domain, but not on one of 15."""
    right = np.zeros(600, dtype=bool)
    gained = np.isin(np.arange(600), drawn(1)[:5])
    domains = [f"camera{number}" for number in range(15)]
    records = [
        answered(method, domain=domain, seed=1, right=gained if (method, domain) == ("neo", "camera0") else right)
        for method in ("none", "neo")
        for domain in domains
    ]
    alone = compare([each for each in records if each.domain == "camera0"]).blocks[0]
    assert alone.differences["camera0", "neo"].verdict == "helps"
    comparison = compare(records)
    (block,) = comparison.blocks
    assert block.differences["camera0", "neo"].pvalue == alone.differences["camera0", "neo"].pvalue
    assert block.differences["camera0", "neo"].verdict == "can't tell"
    assert block.differences["camera0", "neo"].interval.low < 0 < alone.differences["camera0", "neo"].interval.low
    assert any("corrected for the number of domains" in note for note in comparison.notes())


def test_other_metrics_are_corrected_for_the_images_that_seeds_share():
    def recorded(method, seed, ece, pool):
        images = np.random.default_rng(seed).permutation(pool)[:64]
        made = record(method, seed=seed, answers=packed(np.ones(64), images, seed=seed, pool=pool))
        return made.model_copy(update={"metrics": {"top1": 100.0, "ece": ece}})

    def found(pool):
        gaps = {1: 0.10, 2: 0.11, 3: 0.12}
        records = [recorded("none", seed, 0.3, pool) for seed in gaps]
        records += [recorded("neo", seed, 0.3 - gap, pool) for seed, gap in gaps.items()]
        return compare(records, "ece").blocks[0].differences["fog/5", "neo"]

    plain = stats.t.ppf(0.975, 2) * stats.sem([0.10, 0.11, 0.12])
    assert found(100_000).interval.half_width == pytest.approx(plain, rel=0.02)
    assert found(100_000).verdict == "helps"
    assert found(70).interval.half_width > 4 * plain
    assert math.isnan(found(64).interval.half_width)
    assert found(64).verdict == "can't tell"


def test_the_best_of_what_is_printed_is_marked_also_if_methods_have_fewer_seeds():
    kind = np.random.default_rng(0).random(600)
    methods = {"none": kind < 0.5, "neo": kind < 0.6, "tent": kind < 0.9}
    records = [
        answered(method, seed=seed, right=right)
        for method, right in methods.items()
        for seed in ((1,) if method == "tent" else (1, 2))
    ]
    comparison = compare(records)
    (_, entries) = values(comparison.blocks[0], comparison.metric).rows[0]
    assert [entry.mark for entry in entries] == ["", "second", "best"]
    assert any("Best and second best are those of the printed means" in note for note in comparison.notes())


def test_a_missing_cell_gives_no_average():
    records, _ = made_up()
    records = [entry for entry in records if (entry.method, entry.domain) != ("neo", "snow/3")]
    comparison = compare(records)
    (block,) = comparison.blocks
    assert ("snow/3", "neo") not in block.cells
    assert set(block.average) == {"none", "tent"}
    assert set(block.relative_error) == {"none", "tent"}
    assert any("only for methods that have a value for every domain" in note for note in comparison.notes())


def test_failed_runs_are_shown():
    records, _ = made_up()
    records = [entry for entry in records if (entry.method, entry.seed) != ("neo", 3)]
    records += [failed(method="neo", domain=domain, seed=3) for domain in DOMAINS]
    records += [failed(method="lame", domain=domain, seed=seed) for domain in DOMAINS for seed in SEEDS]
    records.append(failed(method="tent", seed=1))  # it succeeded at another time
    comparison = compare(records)
    (block,) = comparison.blocks
    assert block.cells["fog/5", "neo"].failed == {3}
    assert block.cells["fog/5", "neo"].interval.runs == 2
    assert block.cells["fog/5", "lame"].values == {}
    assert block.cells["fog/5", "tent"].failed == set()
    assert len(block.failures) == 20
    assert block.failures[0].error == "OSError: it broke"
    assert "20 runs failed: their values are missing." in comparison.notes()


def test_only_failed_runs():
    (block,) = compare([failed(), failed(method="neo")]).blocks
    assert len(block.failures) == 2


def test_continual_runs_are_taken_apart_by_domain():
    per_domain = {"snow/5": {"top1": 30.0}, "fog/5": {"top1": 50.0}}
    shared = {"order": "continual", "domain": "2 domains", "domains": ["snow/5", "fog/5"], "manifests": ["x"]}
    better = {name: {"top1": 40.0} for name in per_domain}
    records = [record(per_domain=per_domain, **shared), record("neo", per_domain=better, **shared)]
    (block,) = compare(records).blocks
    assert block.domains == ("snow/5", "fog/5")
    assert block.average["none"].mean == 40
    assert block.differences["fog/5", "neo"].interval.mean == -10
    assert block.relative_error["neo"].mean == pytest.approx(100 * (60 / 70 + 60 / 50) / 2)
    gone = failed(method="tent", **{**shared, "per_domain": None})
    (block,) = compare([*records, gone]).blocks
    assert len(block.failures) == 1
    assert block.cells["snow/5", "tent"].failed == {1}


def test_what_else_is_varied_makes_blocks():
    sizes = [(samples, batch) for samples in (-1, 16, 128) for batch in (8, 1)]
    records = [
        record(method, samples=samples, batch_size=batch, top1=float(batch))
        for method in ("none", "neo")
        for samples, batch in sizes
    ]
    comparison = compare(records)
    assert [block.title for block in comparison.blocks] == [
        "16 samples, batch size 1", "16 samples, batch size 8", "128 samples, batch size 1",
        "128 samples, batch size 8", "all samples, batch size 1", "all samples, batch size 8",
    ]  # fmt: skip
    assert comparison.shared == "model m, data d, order iid"
    assert [block.cells["fog/5", "neo"].interval.mean for block in comparison.blocks] == [1, 8, 1, 8, 1, 8]
    early = compare([*records[:1], failed(method="neo-bn", samples=-1)])
    assert [block.methods for block in early.blocks] == [("none", "neo-bn")]


@pytest.mark.parametrize("order", ["iid", "continual"])
def test_how_many_others_are_scored_does_not_set_runs_apart_that_score_none(order):
    records = [record("none", held_out_samples=-1, order=order), record("neo", held_out_samples=500, order=order)]
    (block,) = compare(records).blocks
    assert block.methods == ("none", "neo")
    others = [record("neo", held_out_samples=count, order="hold-out") for count in (-1, 500)]
    titles = [block.title for block in compare([*records, *others]).blocks]
    assert sorted(titles) == sorted(
        [f"order {order}", "order hold-out, 500 others scored", "order hold-out, all others scored"]
    )


def test_other_weights_are_another_block():
    blocks = compare([record(weights="a" * 32), record(weights="b" * 32)]).blocks
    assert [block.title for block in blocks] == ["weights aaaaaaaa", "weights bbbbbbbb"]
    blocks = compare([record(), record(model="n", weights="b" * 32)]).blocks
    assert [block.title for block in blocks] == ["model m", "model n"]


def test_methods_are_named_by_what_sets_them_apart():
    def named(*variants):
        return compare([record(method, **more) for method, more in variants]).blocks[0].methods

    alpha = {"alpha": "0.05", "debias": "False"}
    assert named(("neo-continual", {"options": alpha})) == ("neo-continual alpha=0.05",)
    tent = {"lr": "0.00025"}
    assert named(("tent", {"options": tent})) == ("tent",)
    rates = [("tent", {"options": {"lr": lr}}) for lr in ("0.1", "0.00025", "0.05")]
    assert named(*rates) == ("tent lr=0.00025", "tent lr=0.05", "tent lr=0.1")
    original = {"preset": "original", "options": {"optimizer": "sgd", "steps": "2"}}
    assert named(("tent", original), ("tent", {})) == ("tent", "tent@original steps=2")
    theirs = [("theirs", {"options": {"a": "1", "b": value}}) for value in "23"]
    assert named(*theirs, ("neo", {}), ("neo+lame", {})) == ("neo", "neo+lame", "theirs b=2", "theirs b=3")
    assert named(theirs[0]) == ("theirs",)


def test_the_baseline_can_be_another():
    options = [{"options": {"lr": lr}} for lr in ("0.1", "0.2")]
    records = [record(), record("neo", top1=60.0), *(record("tent", top1=70.0, **more) for more in options)]
    (block,) = compare(records, baseline="neo").blocks
    assert block.differences["fog/5", "none"].interval.mean == -10
    (block,) = compare(records, baseline="tent lr=0.2").blocks
    assert block.differences["fog/5", "tent lr=0.1"].interval.mean == 0
    with pytest.raises(OptionError, match=r"several runs of 'tent': .*'tent lr=0.1', 'tent lr=0.2'"):
        compare(records, baseline="tent")
    with pytest.raises(OptionError, match="'lame' was not run"):
        compare(records, baseline="lame")


def test_the_same_record_twice_counts_once():
    records, _ = made_up()
    assert compare([*records, *records]) == compare(records)


def test_a_seed_measured_again_on_other_samples():
    comparison = compare([record(top1=10.0), record(top1=20.0, manifests=["changed"])])
    assert comparison.blocks[0].cells["fog/5", "none"].interval.mean == 20
    assert any("the last ones are shown" in note for note in comparison.notes())


def test_what_cannot_be_compared():
    with pytest.raises(OptionError, match="metric is 'accuracy': choose one of top1"):
        compare([record()], "accuracy")
    with pytest.raises(DataError, match="no record of a run"):
        compare([Record(key="cost", seconds=1.0)])
    with pytest.raises(DataError, match="no run has 'top1', which may need labels"):
        compare([record(metrics={"entropy": 1.0, "top1": None})])


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=6))
def test_a_method_against_the_baseline_is_the_baseline_against_the_method_reversed(pairs):
    records = [
        record(method, seed=seed, top1=value)
        for seed, pair in enumerate(pairs)
        for method, value in zip(("none", "neo"), pair, strict=True)
    ]
    one = compare(records).blocks[0].differences["fog/5", "neo"]
    other = compare(records, baseline="neo").blocks[0].differences["fog/5", "none"]
    assert other.interval.mean == -one.interval.mean
    assert one.verdict == other.verdict == "can't tell"


def test_real_records():
    plan = {"corruptions": ["clean", "contrast", "fog"], "methods": "none,neo,neo-bn", "seeds": 2, "samples": [64]}
    session = open_bench(Plan.make(plan))
    records = [session.record(run) for run in session.runs()]
    (block,) = compare(records).blocks
    assert block.methods == ("none", "neo", "neo-bn")
    assert block.average["neo"].mean > block.average["none"].mean
    assert block.relative_error["neo"].mean < 100
    assert len(block.failures) == 6


def test_intervals_in_a_notebook_stay_below_100():
    found = Results(records_of({"none": [20], "neo": [19]}, ["fog/5"], images=20))
    assert "100.0 [" in repr(found)
    assert "100.0 ±" not in found._repr_html_()
