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
from neotta.evaluate.answers import SURE
from neotta.evaluate.compare import AVERAGE, compare, difference_in, mean_in, notes
from neotta.evaluate.estimates import METRICS
from neotta.evaluate.frame import frame
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


class Compared:
    """A comparison of records with one table, and its rows by domain and method."""

    def __init__(self, records, metric="top1", **how):
        self.table = compare(frame(records), metric, **how)
        rows = {(row.domain, row.method): row for row in self.table.itertuples()}
        self.cells = {place: row for place, row in rows.items() if place[0] != AVERAGE}
        self.average = {label: row for (domain, label), row in rows.items() if domain == AVERAGE}
        self.differences = {place: row for place, row in self.cells.items() if row.pairs}
        self.domains = tuple(dict.fromkeys(domain for domain, _ in self.cells))
        ran = {label for _, label in self.cells}
        self.methods = tuple(label for label in self.table["method"].cat.categories if label in ran)
        self.notes = notes(self.table)

    @property
    def errors(self):
        return [error for row in self.cells.values() for error in row.errors]


def drawn(seed):
    """The images of a seed."""
    return np.random.default_rng(seed).permutation(600)[:128]


def test_means_over_seeds():
    records, numbers = made_up()
    block = Compared(records)
    assert block.methods == ("none", "neo", "tent")
    assert block.domains == ("clean", "snow/3", "snow/5", "fog/3", "fog/5")
    for (m, method), (d, domain) in itertools.product(enumerate(block.methods), enumerate(DOMAINS)):
        found = mean_in(block.cells[domain, method])
        assert found.mean == pytest.approx(numbers[m, d].mean())
        assert found.runs == 3


def test_the_average_is_taken_over_domains_first_and_leaves_clean_out():
    records, numbers = made_up()
    block = Compared(records)
    for m, method in enumerate(block.methods):
        assert block.average[method].mean == pytest.approx(numbers[m, 1:].mean())
    assert block.average["neo"].difference == pytest.approx((numbers[1, 1:] - numbers[0, 1:]).mean())


def test_differences_are_paired():
    records, numbers = made_up()
    block = Compared(np.random.default_rng(1).permutation(records))
    for d, domain in enumerate(DOMAINS):
        found = difference_in(block.differences[domain, "tent"])
        assert found.mean == pytest.approx((numbers[2, d] - numbers[0, d]).mean())
    assert not any(label == "none" for _, label in block.differences)


def test_records_of_older_versions_have_no_interval_and_no_verdict():
    gains = {"neo": (9.0, 10.0, 11.0), "tent": (-9.0, -10.0, -11.0)}
    records = [record(seed=seed) for seed in SEEDS]
    records += [
        record(method, seed=s, top1=50 + g) for method, v in gains.items() for s, g in zip(SEEDS, v, strict=True)
    ]
    for metric in ("top1", "ece", "entropy"):
        block = Compared(records, metric)
        for method in gains:
            difference = block.differences["fog/5", method]
            assert difference.verdict == "can't tell"
            assert math.isnan(difference.difference_low)
        assert any("9 values come from records that do not say" in note for note in block.notes)
        assert not any("95 %" in note or "One seed" in note for note in block.notes)
        assert "can't tell" not in str(differences(block.table))


@pytest.mark.parametrize("other", [{"seed": 7}, {"manifests": ["other"]}, {"count": 63}])
def test_runs_on_other_samples_are_not_paired(other):
    records = [*(record(seed=seed) for seed in SEEDS), *(record("neo", seed=seed, top1=60.0) for seed in (1, 2))]
    records.append(record("neo", seed=3, top1=90.0).model_copy(update=other))
    block = Compared(records)
    difference = block.differences["fog/5", "neo"]
    assert difference.pairs == 2
    assert difference.difference == 10
    assert any("1 runs are left out of the differences" in note for note in block.notes)


@pytest.mark.parametrize("seeds", [(1,), SEEDS])
def test_verdicts_are_those_of_the_images(seeds):
    kind = np.random.default_rng(0).random(600)
    methods = {"none": kind < 0.5, "neo": kind < 0.7, "tent": kind < 0.3, "lame": (kind < 0.48) | (kind > 0.98)}
    block = Compared([answered(method, seed=seed, right=right) for method, right in methods.items() for seed in seeds])
    found = {method: block.differences["fog/5", method] for method in methods if method != "none"}
    assert [difference.verdict for difference in found.values()] == ["helps", "hurts", "can't tell"]
    images = [drawn(seed) for seed in seeds]
    expected = difference(*([methods[name][each] for each in images] for name in ("neo", "none")), images)
    assert found["neo"].pvalue == pytest.approx(expected.pvalue)
    assert difference_in(found["neo"]).ends == pytest.approx((100 * expected.low, 100 * expected.high))
    assert any(note.startswith("One seed: the interval is about other images") for note in block.notes) == (
        len(seeds) == 1
    )
    assert any("95 % interval over images" in note for note in block.notes)


def test_one_image_of_128_does_not_hurt():
    right = np.ones(600, dtype=bool)
    worse = np.arange(600) != drawn(1)[0]
    records = [
        answered(method, seed=s, right=bits) for s in SEEDS for method, bits in (("none", right), ("neo", worse))
    ]
    found = Compared(records).differences["fog/5", "neo"]
    assert found.difference < 0
    assert found.verdict == "can't tell"
    assert found.difference_low < -0.5 < 0 < found.difference_high


def test_near_duplicates_in_a_group_are_one_unit():
    """Eight clips of 16 frames, on which the method is better by chance in three and worse in none."""
    clip = np.arange(128) // 16
    base, better = clip % 2 == 0, (clip % 2 == 0) | (clip == 1) | (clip == 3) | (clip == 5)

    def found(**groups):
        kept = {m: {**packed(right, np.arange(128)), **groups} for m, right in (("none", base), ("neo", better))}
        records = [record(method, top1=100 * each.mean(), answers=kept[method])
                   for method, each in (("none", base), ("neo", better))]  # fmt: skip
        return Compared(records)

    assert found().differences["fog/5", "neo"].verdict == "helps"
    grouped = found(groups=clip.tolist())
    assert grouped.differences["fog/5", "neo"].verdict == "can't tell"
    assert grouped.cells["fog/5", "neo"].half_width > 2 * found().cells["fog/5", "neo"].half_width
    for broken in ([0], [-1] * 128, "abc"):
        with pytest.raises(DataError, match="cannot be read"):
            found(groups=broken)


@pytest.mark.parametrize("order", ["hold-out", "cross-domain"])
def test_one_state_scored_on_other_images_has_no_verdict(order):
    kind = np.random.default_rng(0).random(600)
    methods = {"none": kind < 0.3, "neo": kind < 0.7}

    def comparison(*seeds):
        how = {"order": order, "held_out_samples": -1, "source_domain": "snow/5"}
        return Compared([answered(m, seed=s, right=right, **how) for m, right in methods.items() for s in seeds])

    block, several = comparison(1), comparison(1, 2, 3)
    gap = block.differences["fog/5", "neo"]
    assert math.isnan(gap.difference_low)
    assert gap.verdict == "can't tell"
    assert math.isnan(block.cells["fog/5", "neo"].half_width)
    assert "can't tell" not in str(differences(block.table))
    assert any("one state, of one seed" in note for note in block.notes)
    assert several.differences["fog/5", "neo"].verdict == "helps"
    assert not any("one state" in note for note in several.notes)


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
    block = Compared(records)
    for gap in (*block.differences.values(), block.average["neo"]):
        low, high = (float(end) for end in difference_in(gap).text(1, "+").split("[")[1].strip("]").split(","))
        assert gap.verdict == ("helps" if low > 0 else "hurts" if high < 0 else "can't tell")


def test_intervals_stay_in_the_range_of_their_metric():
    right = np.arange(600) >= 0
    records = [answered("none", seed=seed, right=right) for seed in (1, 2)]
    for metric, numbers, shown in (("top1", (100.0, 100.0), "100.0 [98"), ("ece", (0.11, 0.17), "0.140 [0.000, ")):
        scores = [{metric: number} for number in numbers]
        changed = [each.model_copy(update={"metrics": its}) for each, its in zip(records, scores, strict=True)]
        block = Compared(changed, metric)
        ((_, (entry,)),) = values(block.table).rows[:1]
        assert entry.text.startswith(shown)
        low, high = mean_in(block.cells["fog/5", "none"]).ends
        assert 0 <= low < high <= METRICS[metric].highest


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
    alone = Compared([each for each in records if each.domain == "camera0"])
    assert alone.differences["camera0", "neo"].verdict == "helps"
    block = Compared(records)
    assert block.differences["camera0", "neo"].pvalue == alone.differences["camera0", "neo"].pvalue
    assert block.differences["camera0", "neo"].verdict == "can't tell"
    assert block.differences["camera0", "neo"].difference_low < 0 < alone.differences["camera0", "neo"].difference_low
    assert any("corrected for the number of domains" in note for note in block.notes)


def test_other_metrics_are_corrected_for_the_images_that_seeds_share():
    def recorded(method, seed, ece, pool):
        images = np.random.default_rng(seed).permutation(pool)[:64]
        answers = packed(np.ones(64), images, seed=seed, pool=pool)
        unsure = {name: entry for name, entry in answers.items() if name not in SURE}  # as earlier versions wrote it
        made = record(method, seed=seed, answers=unsure)
        return made.model_copy(update={"metrics": {"top1": 100.0, "ece": ece}})

    def found(pool):
        gaps = {1: 0.10, 2: 0.11, 3: 0.12}
        records = [recorded("none", seed, 0.3, pool) for seed in gaps]
        records += [recorded("neo", seed, 0.3 - gap, pool) for seed, gap in gaps.items()]
        return Compared(records, "ece").differences["fog/5", "neo"]

    plain = stats.t.ppf(0.975, 2) * stats.sem([0.10, 0.11, 0.12])
    assert difference_in(found(100_000)).half_width == pytest.approx(plain, rel=0.02)
    assert found(100_000).verdict == "helps"
    assert difference_in(found(70)).half_width > 4 * plain
    assert math.isnan(difference_in(found(64)).half_width)
    assert found(64).verdict == "can't tell"


def test_what_is_said_of_few_answers():
    records = [record(method, answers=packed(np.ones(16))) for method in ("none", "neo")]
    block = Compared(records, "ece")
    assert all("too few" in entry.text for _, row in values(block.table).rows for entry in row)
    assert not any("image by image" in note for note in block.notes), "it is not the records that lack something"


def test_methods_are_ranked_on_the_samples_that_all_of_them_have():
    """SAR saw one easy seed: its mean is the highest printed, and on the same samples it is below."""
    easy, hard = np.arange(600) < 590, np.arange(600) < 300
    methods = {"none": easy, "neo": easy | (np.arange(600) > 595), "sar": easy & (np.arange(600) > 20)}
    records = [answered(method, seed=1, right=right) for method, right in methods.items()]
    records += [answered(method, seed=2, right=hard) for method in ("none", "neo")]
    block = Compared(records)
    means = {label: block.cells["fog/5", label].mean for label in methods}
    assert max(means, key=means.__getitem__) == "sar"
    (_, entries) = values(block.table).rows[0]
    assert [entry.mark for entry in entries] == ["second", "best", ""]
    assert any("best and second best are by what all were run on" in note for note in block.notes)
    apart = Compared([*records[:2], answered("sar", seed=3, right=methods["sar"])])
    assert [entry.mark for entry in values(apart.table).rows[0][1]] == ["", "", ""]


def test_a_baseline_of_which_nobody_knows_what_it_saw_is_not_paired():
    unknown = [record(method, manifests=[]) for method in ("none", "neo")]
    assert Compared(unknown).differences == {}
    assert len(Compared([record(), record("neo")]).differences) == 1


def test_without_the_baseline_there_are_no_differences():
    block = Compared([record("neo")])
    assert (set(block.table["baseline"]), block.differences) == ({None}, {})


def test_a_missing_cell_gives_no_average():
    records, _ = made_up()
    records = [entry for entry in records if (entry.method, entry.domain) != ("neo", "snow/3")]
    block = Compared(records)
    assert ("snow/3", "neo") not in block.cells
    assert set(block.average) == {"none", "tent"}
    assert any("only for methods that have a value for every domain" in note for note in block.notes)


def test_failed_runs_are_shown():
    records, _ = made_up()
    records = [entry for entry in records if (entry.method, entry.seed) != ("neo", 3)]
    records += [failed(method="neo", domain=domain, seed=3) for domain in DOMAINS]
    records += [failed(method="lame", domain=domain, seed=seed) for domain in DOMAINS for seed in SEEDS]
    records.append(failed(method="tent", seed=1))  # it succeeded at another time
    block = Compared(records)
    assert block.cells["fog/5", "neo"].failed == 1
    assert block.cells["fog/5", "neo"].seeds == 2
    assert block.cells["fog/5", "lame"].seeds == 0
    assert block.cells["fog/5", "tent"].failed == 0
    assert len(block.errors) == 20
    assert block.errors[0][2] == "OSError: it broke"
    assert "20 runs failed: their values are missing." in block.notes


def test_only_failed_runs():
    block = Compared([failed(), failed(method="neo")])
    assert len(block.errors) == 2


def test_continual_runs_are_taken_apart_by_domain():
    per_domain = {"snow/5": {"top1": 30.0}, "fog/5": {"top1": 50.0}}
    shared = {"order": "continual", "domain": "2 domains", "domains": ["snow/5", "fog/5"], "manifests": ["x"]}
    better = {name: {"top1": 40.0} for name in per_domain}
    records = [record(per_domain=per_domain, **shared), record("neo", per_domain=better, **shared)]
    block = Compared(records)
    assert block.domains == ("snow/5", "fog/5")
    assert block.average["none"].mean == 40
    assert block.differences["fog/5", "neo"].difference == -10
    gone = failed(method="tent", **{**shared, "per_domain": None})
    block = Compared([*records, gone])
    assert len({key for _, key, _ in block.errors}) == 1
    assert block.cells["snow/5", "tent"].failed == 1


def test_what_else_is_varied_makes_blocks():
    sizes = [(samples, batch) for samples in (-1, 16, 128) for batch in (8, 1)]
    records = [
        record(method, samples=samples, batch_size=batch, top1=float(batch))
        for method in ("none", "neo")
        for samples, batch in sizes
    ]
    table = compare(frame(records))
    assert list(table["title"].unique()) == [
        "16 samples, batch size 1", "16 samples, batch size 8", "128 samples, batch size 1",
        "128 samples, batch size 8", "all samples, batch size 1", "all samples, batch size 8",
    ]  # fmt: skip
    assert set(table["shared"]) == {"model m, data d, order iid"}
    assert table["mean"][(table["method"] == "neo") & (table["domain"] == "fog/5")].tolist() == [1, 8, 1, 8, 1, 8]
    early = compare(frame([*records[:1], failed(method="neo-bn", samples=-1)]))
    assert early["method"][early["domain"] == "fog/5"].tolist() == ["none", "neo-bn"]


@pytest.mark.parametrize("order", ["iid", "continual"])
def test_how_many_others_are_scored_does_not_set_runs_apart_that_score_none(order):
    records = [record("none", held_out_samples=-1, order=order), record("neo", held_out_samples=500, order=order)]
    assert Compared(records).methods == ("none", "neo")
    others = [record("neo", held_out_samples=count, order="hold-out") for count in (-1, 500)]
    titles = compare(frame([*records, *others]))["title"].unique()
    assert sorted(titles) == sorted(
        [f"order {order}", "order hold-out, 500 others scored", "order hold-out, all others scored"]
    )


def test_other_weights_are_another_block():
    table = compare(frame([record(weights="a" * 32), record(weights="b" * 32)]))
    assert list(table["title"].unique()) == ["weights aaaaaaaa", "weights bbbbbbbb"]
    table = compare(frame([record(), record(model="n", weights="b" * 32)]))
    assert list(table["title"].unique()) == ["model m", "model n"]


def test_methods_are_named_by_what_sets_them_apart():
    def named(*variants):
        return Compared([record(method, **more) for method, more in variants]).methods

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
    block = Compared(records, baseline="neo")
    assert block.differences["fog/5", "none"].difference == -10
    block = Compared(records, baseline="tent lr=0.2")
    assert block.differences["fog/5", "tent lr=0.1"].difference == 0
    with pytest.raises(OptionError, match=r"several runs of 'tent': .*'tent lr=0.1', 'tent lr=0.2'"):
        compare(frame(records), baseline="tent")
    with pytest.raises(OptionError, match="'lame' was not run"):
        compare(frame(records), baseline="lame")


def test_the_same_record_twice_counts_once():
    records, _ = made_up()
    assert Compared([*records, *records]).table.equals(Compared(records).table)


def test_a_seed_measured_again_on_other_samples():
    block = Compared([record(top1=10.0), record(top1=20.0, manifests=["changed"])])
    assert block.cells["fog/5", "none"].mean == 20
    assert any("the last ones are shown" in note for note in block.notes)


def test_two_versions_of_a_method_are_told():
    records, _ = made_up()
    one = records[-1]
    block = Compared([*records, one.model_copy(update={"key": "again", "revision": "other"})])
    assert "1 values were measured again" in " ".join(block.notes)
    assert "the last ones are shown" not in " ".join(Compared(records).notes)


def test_what_cannot_be_compared():
    with pytest.raises(OptionError, match="metric is 'accuracy': choose one of top1"):
        compare(frame([record()]), "accuracy")
    with pytest.raises(DataError, match="no record of a run"):
        compare(frame([Record(key="cost", seconds=1.0)]))
    with pytest.raises(DataError, match="no run has 'top1', which may need labels"):
        compare(frame([record(metrics={"entropy": 1.0, "top1": None})]))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=6))
def test_a_method_against_the_baseline_is_the_baseline_against_the_method_reversed(pairs):
    records = [
        record(method, seed=seed, top1=value)
        for seed, pair in enumerate(pairs)
        for method, value in zip(("none", "neo"), pair, strict=True)
    ]
    one = Compared(records).differences["fog/5", "neo"]
    other = Compared(records, baseline="neo").differences["fog/5", "none"]
    assert other.difference == -one.difference
    assert one.verdict == other.verdict == "can't tell"


def test_real_records():
    plan = {"corruptions": ["clean", "contrast", "fog"], "methods": "none,neo,neo-bn", "seeds": 2, "samples": [64]}
    session = open_bench(Plan.make(plan))
    records = [session.record(run) for run in session.runs()]
    block = Compared(records)
    assert block.methods == ("none", "neo", "neo-bn")
    assert block.average["neo"].mean > block.average["none"].mean
    assert len(block.errors) == 6


def test_intervals_in_a_notebook_stay_below_100():
    found = Results(records_of({"none": [20], "neo": [19]}, ["fog/5"], images=20))
    assert "100.0 [" in repr(found)
    assert "100.0 ±" not in found._repr_html_()
