"""The detector of sudden changes: its bound on false alarms, and how soon it notices a change."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import neotta
from neotta.errors import InputError, OptionError
from neotta.monitoring import ChangeDetector
from neotta.monitoring.change import DirectionTest, RankEvidence, Spread, ranks

D = 6


def cloud(n, centre=0.0, seed=0, spread=1.0):
    return centre + spread * np.random.default_rng(seed).normal(size=(n, D))


@pytest.fixture(scope="module")
def embeddings():
    """Embeddings of the bundled digits, clean and in fog."""
    from neotta.data import corrupt, digits

    data = digits("test")
    net, preprocess, *_ = neotta.load_model("digits")
    encoder, _ = neotta.split(net)
    clean = [data.read(index) for index in range(len(data))]
    fog = [corrupt(image, "fog", 5, "cifar", 0, image_id=str(i)) for i, image in enumerate(clean[:200])]
    with torch.inference_mode():
        return {
            name: encoder(preprocess.batch(np.stack(images))).numpy()
            for name, images in (("clean", clean), ("fog", fog))
        }


# ---- ranks and bets


def statistic(numbers, threshold=1e300, tails=2, pieces=1):
    """R_n, and when the alarm came, for numbers fed in pieces."""
    evidence, seen, start = RankEvidence(threshold, tails), np.empty(0), 0
    for part in np.array_split(np.asarray(numbers, dtype=float), pieces):
        alarm = evidence.observe(*ranks(part, np.sort(seen), np.zeros(len(part)))[:tails])
        if alarm is not None:
            return math.exp(evidence.log_r), start + alarm.position + 1
        seen, start = np.append(seen, part), start + len(part)
    return math.exp(evidence.log_r), None


@pytest.mark.parametrize("tails", [1, 2])
def test_the_statistic_grows_by_one_a_sample_in_the_mean_over_all_orders(tails):
    for n in range(1, 7):
        values = [statistic(order, tails=tails)[0] for order in itertools.permutations(range(n))]
        assert np.mean(values) == pytest.approx(n, rel=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_equal_numbers_only_lower_the_statistic(numbers):
    values = [statistic(order)[0] for order in itertools.permutations(numbers)]
    assert np.mean(values) <= len(numbers) * (1 + 1e-12)


@pytest.mark.parametrize("threshold", [8.0, 15.0])
def test_the_bound_on_false_alarms_holds_exactly_over_all_orders(threshold):
    n = 7
    stops = [statistic(order, threshold)[1] for order in itertools.permutations(range(n))]
    assert any(stops)
    for until in range(1, n + 1):
        early = np.mean([stop is not None and stop <= until for stop in stops])
        assert early <= until / threshold


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 7))
def test_the_statistic_does_not_depend_on_how_numbers_are_batched(numbers, pieces):
    assert statistic(numbers, pieces=min(pieces, len(numbers)))[0] == pytest.approx(statistic(numbers)[0], rel=1e-9)


def test_numbers_beyond_all_others_raise_an_alarm_that_knows_when_it_began():
    calm = np.random.default_rng(0).normal(size=300)
    evidence = RankEvidence(1e6, 2)
    assert evidence.observe(*ranks(calm, np.empty(0), np.zeros(300))) is None
    jump = 10 + np.arange(30.0)
    alarm = evidence.observe(*ranks(jump, np.sort(calm), np.zeros(30)))
    assert alarm.position < 10
    assert alarm.since == alarm.position + 1
    assert evidence.log_r >= math.log(1e6)


def test_numbers_after_an_alarm_do_not_move_when_it_began():
    winning, losing = np.ones(9, int), np.arange(10, 300)
    alarm = RankEvidence(8.0, 1).observe(np.concatenate([winning, losing]))
    assert alarm == RankEvidence(8.0, 1).observe(winning)


def test_numbers_that_differ_by_rounding_are_ties():
    seen, slack = np.array([1.0, 2.0]), np.full(2, 1e-3)
    for step in (-1e-4, 1e-4):
        above, below = ranks(np.array([2 + step, 2 - step]), seen, slack)
        assert (above.tolist(), below.tolist()) == ([2, 3], [3, 4])


# ---- the detector


def test_spread_is_the_distance_of_mahalanobis_where_all_directions_are_kept():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5))
    spread = Spread(reference)
    rows = rng.normal(size=(10, 5))
    offsets = rows - reference.mean(0)
    inverse = np.linalg.inv(np.cov(reference.T))
    np.testing.assert_allclose(spread.distance(rows), np.einsum("ni,ij,nj->n", offsets, inverse, offsets), rtol=1e-6)
    np.testing.assert_allclose(spread.precision(offsets), offsets @ inverse, rtol=1e-5, atol=1e-8)


def alarms(source, rate, n, seeds):
    found = 0
    for seed in range(seeds):
        rows = source(np.random.default_rng(seed), n)
        detector = ChangeDetector(rows.shape[1], false_alarm_rate=rate, warmup=64, memory=128)
        found += any(detector.observe(rows[start : start + 100]) for start in range(0, n, 100))
    return found


SOURCES = {
    "normal": lambda rng, n: rng.normal(size=(n, D)),
    "heavy tails": lambda rng, n: rng.standard_t(1.5, size=(n, D)),
    "two values": lambda rng, n: rng.integers(0, 2, size=(n, D)).astype(float),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SOURCES, "digits"])
def test_false_alarms_are_as_rare_as_stated(kind, embeddings):
    def shuffled(rng, n):
        return embeddings["clean"][rng.permutation(len(embeddings["clean"]))[:n]]

    rate, n, seeds = 2e-4, 600, 50
    expected = seeds * rate * n
    limit = expected + 3 * math.sqrt(expected)
    assert alarms(SOURCES.get(kind, shuffled), rate, n, seeds) <= limit


def test_without_a_rate_to_keep_there_would_be_alarms():
    assert alarms(SOURCES["normal"], 0.05, 1000, 5) == 5


def test_a_stream_of_one_and_the_same_embedding_raises_no_alarm():
    for value in (0.0, 0.1):
        detector = ChangeDetector(D, false_alarm_rate=1e-2)
        assert detector.observe(np.full((2000, D), value)) is None


def test_fog_is_noticed_within_a_few_samples(embeddings):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        clean, fog = (rng.permutation(embeddings[name])[:400] for name in ("clean", "fog"))
        detector = ChangeDetector(64)
        assert detector.observe(clean) is None
        alarm = detector.observe(fog)
        assert alarm.position < 25


def test_a_small_shift_of_all_samples_is_noticed():
    wide = ChangeDetector(64)
    rng = np.random.default_rng(0)
    assert wide.observe(rng.normal(size=(1500, 64))) is None
    alarm = wide.observe(0.25 + rng.normal(size=(400, 64)))  # a quarter of the spread, in every coordinate
    assert alarm is not None
    assert alarm.position < 150


def test_the_size_of_batches_does_not_matter_to_the_distance_test():
    rows = np.concatenate([cloud(300), cloud(60, 6.0, seed=1)])
    found = set()
    for size in (1, 7, 64, 360):
        detector = ChangeDetector(D)
        for start in range(0, len(rows), size):
            alarm = detector.observe(rows[start : start + size])
            if alarm is not None:
                found.add(start + alarm.position)
                break
    assert len(found) == 1
    assert 300 <= found.pop() < 320


def test_each_of_the_four_tests_has_a_quarter_of_the_rate():
    rate, detector = 1e-3, ChangeDetector(D, false_alarm_rate=1e-3, warmup=32)
    detector.observe(cloud(40))
    detector.observe(cloud(20, 0.3, seed=1))
    for distance, direction in detector._generations:
        for test, threshold in ((distance, 4 / rate), (direction, 2 / rate)):  # the latter ranks every second sample
            assert math.exp(test.evidence.limit) == pytest.approx(threshold)


def test_generations_follow_each_other_and_memory_stays_bounded():
    detector = ChangeDetector(D, warmup=32, memory=64)
    for seed in range(20):
        detector.observe(cloud(50, seed=seed))
    assert len(detector._generations) == 2
    assert max(len(test._tested) for _, test in detector._generations) <= 64
    assert len(detector.recent(10**6)) == 256


class Slowly:
    """Both tests of one generation, a sample and a number at a time, from the text at the top of the module."""

    def __init__(self, reference):
        self.spread, self.start, self.ranked = Spread(reference), reference.mean(0), False
        self.mean, self.count, self.latest = self.start, len(reference), self.start
        self.scores, self.offsets = [], []
        self.won = {"distance": [[0.0]] * 6, "direction": [[0.0]] * 3}
        self.log = {"distance": [0.0] * 6, "direction": [0.0] * 3}

    def observe(self, rows):
        """The direction is that of the samples before the rows, which come together."""
        direction = self.spread.precision((self.latest - self.mean)[None])[0]
        for row in rows:
            self.scores.append(self.spread.distance(row[None])[0])
            self.bet("distance", self.scores)
            self.ranked = not self.ranked
            if not self.ranked:
                self.offsets.append(row - self.start)
                self.bet("direction", [offset @ direction for offset in self.offsets])
                continue
            self.count += 1
            self.mean = self.mean + (row - self.mean) / self.count
            self.latest = self.latest + (row - self.latest) / 64

    def bet(self, name, numbers):
        n, last = len(numbers), numbers[-1]
        tails = [sum(each >= last for each in numbers), sum(each <= last for each in numbers)]
        bets = [
            rank ** (exponent - 1) / (sum(k ** (exponent - 1) for k in range(1, n + 1)) / n)
            for rank in tails[: len(self.log[name]) // 3]
            for exponent in (0.15, 0.35, 0.6)
        ]
        self.log[name] = [(1 + r) * bet for r, bet in zip(self.log[name], bets, strict=True)]
        self.won[name] = [[*won, won[-1] + math.log(bet)] for won, bet in zip(self.won[name], bets, strict=True)]

    def evidence(self, name):
        return math.log(sum(self.log[name]) / len(self.log[name]))

    def since(self, name):
        won = self.won[name][int(np.argmax(self.log[name]))]
        return len(won) - 1 - int(np.argmin(won[:-1]))


@pytest.mark.parametrize("sizes", [[1] * 110, [5] * 22, [3, 16, 2, 9] * 4])
def test_the_tests_are_those_of_the_text(sizes):
    rows = cloud(sum(sizes)) * np.linspace(0.2, 3, D) + np.linspace(0, 0.6, sum(sizes))[:, None]
    detector, slowly = ChangeDetector(D, warmup=16, memory=32, false_alarm_rate=1e-9), {}
    due, start = [16, 32, 64, 96, 128], 0
    for size in sizes:
        assert detector.observe(rows[start : start + size]) is None
        while size:
            part = min([size, *(at - start for at in due if at > start)])
            for slow in slowly.values():
                slow.observe(rows[start : start + part])
            start, size = start + part, size - part
            if start in due:
                slowly[start] = Slowly(rows[:start])
    assert len(slowly) >= 3
    for tests, at in zip(detector._generations, sorted(slowly)[-2:], strict=True):
        for test, name in zip(tests, ("distance", "direction"), strict=True):
            if slowly[at].won[name][0][1:]:
                assert test.evidence.log_r == pytest.approx(slowly[at].evidence(name), abs=1e-6), (at, name)


@pytest.mark.parametrize("size", [1, 7, 16])
def test_the_alarm_of_a_small_shift_counts_all_samples(size):
    reference, rows = cloud(64), np.concatenate([cloud(65, seed=1), cloud(400, 0.8, seed=2)])
    test, slow = DirectionTest(Spread(reference), 64, 2e4), Slowly(reference)
    for start in range(0, len(rows), size):
        alarm = test.observe(rows[start : start + size])
        if alarm is not None:
            break
        slow.observe(rows[start : start + size])
    before = slow.log["direction"]
    assert slow.evidence("direction") < math.log(1e4)
    slow.observe(rows[start : start + alarm.position + 1])
    assert slow.evidence("direction") >= math.log(1e4)
    assert slow.log["direction"] != before
    assert alarm.since == 2 * slow.since("direction")


def test_what_never_varied_before_is_noticed_and_divides_by_nothing():
    rows = cloud(400)
    rows[:, 0] = 1.0
    detector = ChangeDetector(D)
    assert detector.observe(rows[:300]) is None
    rows[300:, 0] = 1.1
    assert detector.observe(rows[300:]).position < 40


def test_after_many_samples_it_starts_again_with_the_last_of_them():
    detector = ChangeDetector(D, warmup=32)
    detector.restart(cloud(100))
    assert (detector.count, len(detector._generations)) == (32, 1)
    np.testing.assert_array_equal(detector.recent(100), cloud(100)[-32:])


def test_the_last_sample_that_is_kept_is_that_of_the_alarm():
    rows = np.concatenate([cloud(300), cloud(100, 6.0, seed=1)])
    detector = ChangeDetector(D)
    alarm = detector.observe(rows)
    np.testing.assert_array_equal(detector.recent(1), rows[alarm.position : alarm.position + 1])


@pytest.mark.parametrize(
    "options",
    [
        {"false_alarm_rate": 0.0},
        {"false_alarm_rate": 1.0},
        {"false_alarm_rate": "rare"},
        {"warmup": 1},
        {"warmup": 64.5},
        {"memory": 10},
    ],
)
def test_wrong_options_are_named(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        ChangeDetector(D, **options)


def test_rows_that_are_no_embeddings_are_rejected():
    for rows in (np.zeros(3), np.zeros((2, D + 1))):
        with pytest.raises(InputError, match=f"{D}"):
            ChangeDetector(D).observe(rows)


def test_bad_rows_are_left_out_and_the_alarm_keeps_its_position():
    rows = np.concatenate([cloud(300), cloud(60, 6.0, seed=1)])
    alarm = ChangeDetector(D).observe(rows)
    bad = np.insert(rows, [10, 200, 305], np.array([np.nan, np.inf, 1e7])[:, None], axis=0)
    found = ChangeDetector(D).observe(bad)
    assert (found.position, found.since) == (alarm.position + 2 + (alarm.position >= 305), alarm.since)


def test_after_an_alarm_it_starts_again_with_the_samples_since_the_change():
    detector, centre = ChangeDetector(D), 0.0
    for _ in range(2):
        assert detector.observe(cloud(300, centre)) is None
        centre += 6.0
        alarm = detector.observe(cloud(100, centre, seed=1))
        since = detector.recent(alarm.since)
        assert abs(since.mean() - centre) < 3.0  # most of them are of the new domain
        detector.restart(since)
        assert (detector.count, detector._generations) == (len(since), [])


GUIDE = Path(__file__).parents[2] / "docs" / "monitoring.md"


@pytest.mark.parametrize("action", ["neotta.reset(model)", 'neotta.load(model, "fog.safetensors")'])
def test_the_recipe_of_the_guide_acts_when_the_domain_changes(action, embeddings, tmp_path, monkeypatch):
    recipe = next(code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "watch" in code)
    recipe = recipe.replace("neotta.reset(model)  # or", f"{action}  #")
    clean, fog = (torch.from_numpy(np.random.default_rng(0).permutation(rows)) for rows in embeddings.values())
    model = torch.nn.Sequential(torch.nn.Identity(), neotta.split(neotta.load_model("digits").model)[1])
    monkeypatch.chdir(tmp_path)
    known = neotta.adapt(model, "neo", head="1")
    known(fog[:100])
    neotta.save(known, "fog.safetensors")
    neotta.reset(known)
    exec(recipe, {"neotta": neotta, "model": known, "images": clean[:16]})
    for batch in clean[16:416].split(16):
        known(batch)
    assert neotta.head(known).count == 416, "nothing has changed yet"
    for batch in fog[100:].split(4):
        known(batch)
    assert 80 < neotta.head(known).count - 100 * ("load" in action) <= 100, "it began again when the fog came"
