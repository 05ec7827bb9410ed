"""NEO-Stream: against recorded vectors, against its formulas one number at a time, and its properties."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow_neo_stream import SlowStream
from torch import nn

import neotta
from neotta.errors import OptionError
from neotta.neo.reference_file import HeadReference
from neotta.neo.stream import Moments, StreamRule

VECTORS = Path(__file__).with_name("vectors-3.json")
CASES = json.loads(VECTORS.read_text())


class Stream:
    """The rule on one stream of NumPy arrays."""

    def __init__(self, bias, dtype=torch.float64, **options):
        self.bias = torch.tensor(np.asarray(bias, float)).to(dtype)
        self.rule = StreamRule(**options)
        self.states = self.rule.layout(len(self.bias)).blank().to(dtype)

    def step(self, logits, weights=None):
        rows = torch.tensor(np.asarray(logits, float)).to(self.states)
        weights = None if weights is None else torch.tensor(np.asarray(weights, float)).to(rows)[None]
        self.states, offsets = self.rule.update(self.states, rows[None], weights, self.bias)
        return (rows - offsets[0]).double().numpy()

    def answer(self, logits):
        return np.asarray(logits) - self.rule.standing(self.states).double().numpy()

    @property
    def fields(self):
        return self.rule.state(self.states)

    @property
    def shift(self):
        return self.fields.shift[0].double().numpy()


def same(one, other, atol=1e-9):
    """Two streams remember the same, but for the tallies."""
    for name, mine, theirs in zip(one.fields._fields, one.fields, other.fields, strict=True):
        if name != "tallies":
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=atol, err_msg=name)


def classes_in_turn(rows, classes=5, height=6.0, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    return height * np.eye(classes)[labels] + noise * rng.standard_normal((rows, classes)), labels


def real_stream(seed, classes=4, rows=40):
    """Runs of labels under a shift, with near-duplicates, an outlier, and rows that count less or not at all."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    labels = np.where(rng.random(rows) < 0.5, np.roll(labels, 1), labels)
    shift = 1.5 * rng.standard_normal(classes)
    logits = 5 * np.eye(classes)[labels] + 0.7 * rng.standard_normal((rows, classes)) + shift
    for row in rng.choice(np.arange(8, rows), 6, replace=False):
        logits[row] = logits[row - 1] + 0.1 * rng.standard_normal(classes)
    logits[rng.integers(8, rows)] *= 30
    kinds = [1.0], [0.0, 0.3, 1.0, 1.0, 2.0], [2.0, 5.0, 9.0], [0.05, 0.15]
    return logits, rng.choice(kinds[seed % len(kinds)], rows), rng.standard_normal(classes)


# ---- the same numbers


@pytest.mark.parametrize("name", CASES)
def test_it_replays_the_recorded_vectors(name):
    case = CASES[name]
    stream, logits = Stream(case["bias"], **case["options"]), np.array(case["logits"])
    answers = [stream.step(logits[at : at + case["batch"]]) for at in range(0, len(logits), case["batch"])]
    np.testing.assert_allclose(np.concatenate(answers), case["outputs"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(stream.shift, case["shift"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(float(Moments.of(stream.fields.scales[:, 0]).weight), case["weight"], rtol=0, atol=1e-9)
    if case["sticky"] is not None:
        np.testing.assert_allclose(float(stream.fields.sticky), case["sticky"], rtol=0, atol=1e-9)


def test_the_recorded_vectors_are_the_shared_ones(shared):
    assert VECTORS.read_bytes() == (shared / "safe" / VECTORS.name).read_bytes()


OPTIONS = [{}, {"prior": False}, {"window": None}, {"gate": 0.2, "window": 6.0, "stay": 0.7}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("batch", [1, 3, 16, 17, 40])
def test_it_does_what_its_formulas_say(options, batch):
    for seed in range(4):
        logits, weights, bias = real_stream(seed)
        fast, slow = Stream(bias, **options), SlowStream(bias.tolist(), **options)
        for at in range(0, len(logits), batch):
            rows, count = logits[at : at + batch], weights[at : at + batch]
            wanted = slow.step(rows.tolist(), count.tolist())
            np.testing.assert_allclose(fast.step(rows, count), wanted, rtol=1e-9, atol=1e-8, err_msg=f"{seed}, {at}")
        np.testing.assert_allclose(fast.shift, slow.shift, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(fast.answer(logits[:3]), slow.answer(logits[:3].tolist()), rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("count", [1, 16, 17, 64, 65, 130])
def test_samples_are_judged_in_parts_and_blocks_as_one_by_one(count):
    for seed in range(3):
        logits, weights, bias = real_stream(seed, classes=6, rows=2 * count + 20)
        fast, slow = Stream(bias), SlowStream(bias.tolist())
        for some in (slice(20), slice(20, 20 + count), slice(20 + count, None)):
            wanted = slow.step(logits[some].tolist(), weights[some].tolist())
            np.testing.assert_allclose(fast.step(logits[some], weights[some]), wanted, rtol=1e-9, atol=1e-8)
        np.testing.assert_allclose(float(fast.fields.sticky), slow.sticky, rtol=1e-9)
        np.testing.assert_allclose(fast.fields.last[0] / 6, slow.last, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(fast.fields.labels[0, :, 0], slow.seen, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(fast.fields.labels[0, :, 1:] / 6, slow.counts, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("classes", "visible"), [(499, False), (500, True)])
def test_with_many_classes_the_gate_is_lower(classes, visible):
    rng = np.random.default_rng(0)
    logits = 20.0 * np.eye(classes)[rng.integers(classes, size=120)] + rng.standard_normal((120, classes))
    y = logits - logits.mean(1, keepdims=True)
    skewness = math.sqrt(classes) * ((y - y.mean(0)) ** 3).mean(0).sum() / y.var(0).sum() ** 1.5
    scales = {}
    for gate in (None, 0.99 * skewness, 1.01 * skewness):
        stream = Stream(np.zeros(classes), prior=False, gate=gate)
        stream.step(logits)
        scales[gate] = stream.fields.scales
        expected = skewness >= (gate if gate is not None else 0.5 if visible else 0.6)
        assert bool(stream.rule.estimates(scales[gate]).visible[0, 0]) == expected
    moments = Moments.of(scales[None])
    third, n = moments.sum3, moments.weight[..., None]
    third *= 0  # and exactly between both gates
    mean, second = moments.sum1 / n, moments.sum2 / n
    variance = (second - mean**2).sum(-1, keepdim=True)
    third += n * (3 * mean * second - 2 * mean**3 + 0.55 * variance**1.5 / classes**1.5)
    assert bool(StreamRule().estimates(scales[None]).visible[0, 0]) == visible


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_float32_stays_near(options):
    for seed in range(3):
        logits, _, bias = real_stream(seed, classes=7, rows=400)
        exact, rough = Stream(bias, **options), Stream(bias, torch.float32, **options)
        for at in range(0, len(logits), 16):
            rows = logits[at : at + 16]
            np.testing.assert_allclose(rough.step(rows), exact.step(rows), rtol=0, atol=1e-3)


# ---- properties

BATCHES = st.lists(st.integers(1, 6), min_size=1, max_size=6)
KINDS = pytest.mark.parametrize("options", [{}, {"prior": False}, {"window": None}], ids=str)


def random_batches(sizes, seed, classes=4):
    rng = np.random.default_rng(seed)
    data = 3 * rng.standard_normal((sum(sizes), classes))
    return np.split(data, np.cumsum(sizes)[:-1]), rng.standard_normal(classes)


@KINDS
def test_the_first_sample_gets_the_plain_answer(options):
    logits = np.array([[3.0, -1.0, 0.5, 2.0]])
    np.testing.assert_allclose(Stream(np.zeros(4), **options).step(logits), logits, atol=1e-12)
    np.testing.assert_array_equal(Stream(np.zeros(4), **options).answer(logits), logits)


def test_two_classes_are_left_alone():
    logits = np.random.default_rng(0).standard_normal((50, 2))
    stream = Stream([0.3, -0.2])
    np.testing.assert_array_equal(stream.step(logits), logits)
    np.testing.assert_array_equal(stream.answer(logits), logits)
    assert stream.fields.tallies.tolist() == [[50, 0, 0]]


@KINDS
@settings(max_examples=20)
@given(sizes=BATCHES, seed=st.integers(0, 1000))
def test_a_constant_on_all_logits_of_a_row_is_only_passed_on(options, sizes, seed):
    batches, bias = random_batches(sizes, seed)
    plain, moved = Stream(bias, **options), Stream(bias, **options)
    for turn, batch in enumerate(batches):
        constant = 10.0 * np.arange(len(batch))[:, None] - turn
        np.testing.assert_allclose(moved.step(batch + constant), plain.step(batch) + constant, atol=1e-9)
    same(moved, plain)


@KINDS
@settings(max_examples=20)
@given(sizes=BATCHES, seed=st.integers(0, 1000))
def test_permuted_classes_permute_the_answer(options, sizes, seed):
    batches, bias = random_batches(sizes, seed)
    order = np.random.default_rng(seed).permutation(4)
    plain, permuted = Stream(bias, **options), Stream(bias[order], **options)
    for batch in batches:
        np.testing.assert_allclose(permuted.step(batch[:, order]), plain.step(batch)[:, order], atol=1e-9)


@settings(max_examples=30)
@given(sizes=BATCHES, seed=st.integers(0, 1000), repeat=st.booleans())
def test_the_prior_stays_within_its_bounds(sizes, seed, repeat):
    batches, bias = random_batches(sizes, seed)
    stream = Stream(bias)
    for batch in batches:
        rows = np.repeat(batch[:1], len(batch), 0) if repeat else batch
        before = float(stream.fields.sticky)
        log_prior = stream.step(rows) - rows + stream.shift
        assert log_prior.max() <= 1 + 1e-9
        assert log_prior[0].min() >= math.log(1 - 0.98 * before) - 1e-9
        assert log_prior.min() >= math.log(1 - 0.98) - 1e-9
        assert 0 < float(stream.fields.sticky) < 1


def test_two_clean_classes_are_not_shifted():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    stream = Stream(np.zeros(6))
    for part in np.split(6.0 * np.eye(6)[labels] + 0.3 * rng.standard_normal((200, 6)), 10):
        stream.step(part)
    np.testing.assert_array_equal(stream.shift, 0.0)


def test_a_class_with_nine_tenths_of_the_samples_stops_the_subtraction():
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(400) < 0.9, 0, rng.integers(1, 6, 400))
    logits = 6.0 * np.eye(6)[labels] + 0.3 * rng.standard_normal((400, 6))
    stream = Stream(np.zeros(6), window=None)
    for part in np.split(logits, 20):
        stream.step(part)
    own = stream.rule.estimates(stream.fields.scales)
    assert not own.mixed[0, 0]
    np.testing.assert_array_equal(stream.shift, 0.0)


def test_all_classes_in_turn_without_shift_leave_everything_as_it_is():
    logits, _ = classes_in_turn(1000)
    stream = Stream(np.zeros(5))
    for part in np.split(logits, 50):
        answer = stream.step(part)
    assert np.abs(stream.shift).max() < 0.1
    np.testing.assert_allclose(answer, part, atol=0.15)


def test_a_shift_of_balanced_classes_is_taken_out():
    logits, labels = classes_in_turn(600, seed=1)
    shift = np.array([5.0, 0.0, -2.0, -1.0, -2.0])
    stream = Stream(np.zeros(5))
    answers = np.concatenate([stream.step(part) for part in np.split(logits + shift, 40)])
    assert (answers.argmax(1) == labels)[100:].mean() > 0.98
    assert ((logits + shift).argmax(1) == labels).mean() < 0.7
    np.testing.assert_allclose(stream.shift, shift, atol=0.5)
    plain = (logits + shift).argmax(1)
    assert int(stream.fields.tallies[0, 2]) == (answers.argmax(1) != plain).sum()


@pytest.mark.parametrize("size", [9.9e5, 1e6, 1e30])
@pytest.mark.parametrize("place", [1, 20, 300])
def test_one_outlier_never_costs_later_samples_more_than_noise(size, place):
    logits, labels = classes_in_turn(600)
    spoilt = np.insert(logits, place, size * np.array([0.5, -1.0, 0.25, 0.0, 0.25]), axis=0)
    stream = Stream(np.zeros(5))
    answers = np.concatenate([stream.step(part) for part in np.array_split(spoilt, 40)])
    right = np.delete(answers, place, axis=0).argmax(1) == labels
    assert right[place + 100 :].mean() > 0.98


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("known", [False, True], ids=["", "reference"])
def test_one_sample_is_learnt_as_one_of_many_is(options, known):
    """A weight of 1 keeps a call from the shorter way."""
    for seed in range(3):
        logits, _, bias = real_stream(seed, classes=5, rows=90)
        logits[[0, 3, 40, 60]] = np.array([math.nan, math.inf, -1.1e6, 3e6])[:, None]
        rows, bias = torch.tensor(logits).view(3, 30, 5), torch.tensor(bias)
        prior, free = np.array([0.3, 0.1, 0.2, 0.2, 0.2]), np.array([0.5, -0.25, 0.25, 0.0, -0.5])
        rule = StreamRule(**options).knowing(HeadReference(80, free, free, prior, 4.0, free) if known else None)
        short = long = rule.layout(5).blank(3)
        for at in range(30):
            row = rows[:, at : at + 1]
            short, found = rule.update(short, row, None, bias)
            long, wanted = rule.update(long, row, torch.ones(3, 1, dtype=row.dtype), bias)
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(short, long, rtol=1e-12, atol=1e-12)
        assert short[:, :2].sum() == 90
        assert short[0, 1] > 0


@KINDS
@settings(max_examples=20)
@given(plan=st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3), min_size=1, max_size=5))
def test_streams_in_one_call_answer_as_each_would_alone(options, plan):
    """Of each call, stream k has `counts[k]` rows; the others of its row of the table are masked."""
    rng, bias, rule = np.random.default_rng(len(plan)), np.array([0.5, -0.5, 0.2, 0.0]), StreamRule(**options)
    alone = [Stream(bias, **options) for _ in range(3)]
    states = rule.layout(4).blank(3)
    for counts in plan:
        length = max(1, *counts)
        rows = 3 * rng.standard_normal((3, length, 4))
        mask = np.arange(length) < np.array(counts)[:, None]
        states, offsets = rule.update(states, torch.tensor(rows), torch.tensor(mask).double(), torch.tensor(bias))
        for stream, count in enumerate(counts):
            if count:
                expected = alone[stream].step(rows[stream, :count])
                np.testing.assert_allclose(rows[stream, :count] - offsets[stream, :count].numpy(), expected, atol=1e-9)
    for stream, single in enumerate(alone):
        np.testing.assert_allclose(states[stream], single.states[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.1e6])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("places", [[0], [7, 20], [30]])
def test_rows_that_are_bad_or_weigh_nothing_leave_no_trace(bad, weighted, places):
    logits, _ = classes_in_turn(30)
    weights = np.linspace(0.5, 1.5, 30) if weighted else None
    for first in (0, 10):  # in the first call, and in a later one
        clean, spoilt, unweighted = (Stream(np.zeros(5)) for _ in range(3))
        for stream in (clean, spoilt, unweighted):
            stream.step(classes_in_turn(10, seed=4)[0][:first]) if first else None
        dirty = np.insert(logits, places, bad, axis=0)
        heavier = None if weights is None else np.insert(weights, places, 1.0)
        wanted, mine = clean.step(logits, weights), spoilt.step(dirty, heavier)
        usual = np.isfinite(dirty).all(1) & (np.abs(dirty) <= 1e6).all(1)
        np.testing.assert_allclose(mine[usual], wanted, rtol=0, atol=1e-12)
        assert spoilt.fields.tallies[0, :2].tolist() == [30 + first, len(places)]
        same(spoilt, clean, 1e-12)
        light = np.insert(np.ones(30) if weights is None else weights, places, 0.0)
        np.testing.assert_allclose(unweighted.step(dirty, light)[usual], wanted, rtol=0, atol=1e-12)
        assert torch.equal(unweighted.fields.tallies, clean.fields.tallies)
        same(unweighted, clean, 1e-12)


def test_a_call_of_bad_rows_alone_changes_nothing_but_the_tallies():
    for first in (0, 12):
        stream = Stream(np.zeros(5))
        if first:
            stream.step(classes_in_turn(first)[0])
        before = stream.states.clone()
        for count in (1, 3):
            stream.step(np.full((count, 5), np.nan))
        assert torch.equal(stream.states[:, 3:], before[:, 3:])
        assert stream.fields.tallies[0, :2].tolist() == [first, 4]


@KINDS
@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 12), min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_merging_commutes_and_is_associative_and_exact_in_its_moments(options, sizes, seed):
    batches, bias = random_batches(sizes, seed)
    parts = [Stream(bias, **options) for _ in sizes]
    for part, batch in zip(parts, batches, strict=True):
        for row in batch:
            part.step(row[None])
    rule, (a, b, c) = parts[0].rule, (part.states for part in parts)
    layout = rule.layout(4)

    def merged(*states):
        total = layout.blank()
        for each in states:
            total = rule.merged(total, each, layout)
        return total

    left, right = rule.merged(merged(a, b), c, layout), rule.merged(merged(c), merged(b, a), layout)
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
    state = rule.state(left)
    torch.testing.assert_close(state.scales[:, 0], sum(rule.state(each).scales[:, 0] for each in (a, b, c)))
    assert state.tallies[0, 0] == sum(sizes)
    empty = rule.merged(a, layout.blank(), layout)
    torch.testing.assert_close(rule.state(empty).scales[:, 0], rule.state(a).scales[:, 0])
    torch.testing.assert_close(empty, a)
    assert float(state.sticky) == pytest.approx(0.1)
    for field in (state.last, state.labels, state.points[:, 0], state.scales[:, 1], state.mix - 1):
        assert not field.any()


@pytest.mark.parametrize("window", [32.0, None])
def test_a_merge_derives_its_shift_from_the_moments_of_both(window):
    """Of the first ten rows neither stream knows much, so what both know is more than what either subtracts."""
    logits, _ = classes_in_turn(600, seed=1)
    logits, slow = logits + np.array([5.0, 0.0, -2.0, -1.0, -2.0]), SlowStream([0.0] * 5)
    parts = [Stream(np.zeros(5), window=window) for _ in range(2)]
    for stream, rows in zip(parts, (logits[:10], logits[10:]), strict=True):
        stream.step(rows)
    (one, other), rule = (part.states for part in parts), parts[0].rule
    scale, layout = slow.scales[0], rule.layout(5)
    sums = Moments.of((parts[0].fields.scales + parts[1].fields.scales)[0, 0])
    for name in ("weight", "trust", "peak"):
        setattr(scale, name, float(getattr(sums, name)))
    scale.sums = {power: getattr(sums, f"sum{power}").tolist() for power in (1, 2, 3)}
    scale.predicted = (sums.uneven + sums.trust / 5).tolist()
    merged = rule.merged(rule.merged(layout.blank(), one, layout), other, layout)
    found = rule.state(merged).shift[0]
    mean, square = sums.sum1 / sums.weight, sums.sum2 / sums.weight
    torch.testing.assert_close(rule.state(merged).points[0, 1], mean)
    torch.testing.assert_close(rule.state(merged).spreads[0], torch.stack([square.sum() - mean @ mean, square.sum()]))
    np.testing.assert_allclose(found, scale.towards([0.0] * 5, 0.6), rtol=0, atol=1e-9)
    assert min(float((found - part.fields.shift[0]).norm()) for part in parts) > 0.1


@pytest.mark.parametrize(("rows", "known"), [(24, False), (27, True)])
def test_one_and_a_half_samples_are_too_few(rows, known):
    """Three classes under a strong shift, and each row counts a sixteenth."""
    logits = 6 * np.eye(3)[np.resize([0, 1, 2], rows)] + np.array([30.0, 0.0, -30.0])
    stream = Stream(np.zeros(3), prior=False, window=None)
    stream.step(logits, np.full(rows, 1 / 16))
    assert float(Moments.of(stream.fields.scales[:, 0]).weight) == rows / 16
    assert bool(stream.shift.any()) == known
    slow = SlowStream([0.0] * 3, prior=False, window=None)
    slow.step(logits.tolist(), [1 / 16] * rows)
    np.testing.assert_allclose(stream.shift, slow.shift, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1.0, 9e5])
@pytest.mark.parametrize("classes", [3, 1000])
def test_flat_and_large_logits_stay_finite(size, classes):
    rng = np.random.default_rng(0)
    stream = Stream(np.zeros(classes))
    for rows in (1, 64, 70, 1):
        for logits in (np.full((rows, classes), size), np.clip(size * rng.standard_normal((rows, classes)), -1e6, 1e6)):
            assert np.isfinite(stream.step(logits)).all()
    assert torch.isfinite(stream.states).all()
    assert stream.fields.tallies[0, :2].tolist() == [272, 0]


def test_options_out_of_range_are_rejected():
    for wrong in (
        {"gate": -1}, {"gate": float("nan")}, {"gate": "0.6"}, {"stay": 1.0}, {"stay": -0.1}, {"window": 0},
        {"window": "long"}, {"prior": 1},
    ):  # fmt: skip
        with pytest.raises(OptionError, match=next(iter(wrong))):
            neotta.adapt(nn.Sequential(nn.Linear(3, 4)), **wrong)


def test_the_defaults_are_the_documented_ones():
    rule = StreamRule()
    assert (rule.gate, rule.stay, rule.window, rule.prior, rule.clean) == (None, 0.98, 32.0, True, None)
    assert (rule.space, rule.mergeable) == ("logits", True)
    starts = {name: field.start for name, field in rule.layout(5).fields.items()}
    assert (starts.pop("sticky"), starts.pop("mix")) == (0.1, 1.0)
    assert set(starts.values()) == {0.0}


def scales_of(rows):
    """Both time scales after these samples, of which all classes are predicted equally often."""
    rest = torch.tensor([len(rows), len(rows), 0.0] + [0.0] * rows.shape[1], dtype=rows.dtype)
    return torch.cat([*((rows**power).sum(0) for power in (1, 2, 3)), rest]).expand(1, 2, -1)


@pytest.mark.parametrize(("share", "mixed"), [(0.5, True), (0.55, True), (0.58, False), (0.9, False)])
def test_a_majority_counts_beyond_its_standard_error(share, mixed):
    rows = torch.zeros(100, 4, dtype=torch.float64)
    rows[: round(100 * share), 0] = 1.0  # skewness (1 - 2 p) / sqrt(p (1 - p)): -0.20 at 0.55, -0.32 at 0.58
    found = StreamRule().estimates(scales_of(rows))
    assert found.mixed.tolist() == [[mixed, mixed]]  # the standard error is sqrt(6 / 100) = 0.24


@pytest.mark.parametrize(("others", "mixed"), [(0.4, False), (0.44, False), (0.47, True), (0.6, True)])
def test_a_majority_spreads_its_logit_at_least_as_far_as_most_others(others, mixed):
    """The first logit has a variance of 0.16, and four fifths of 0.2 are as much."""
    rows = torch.zeros(100, 4, dtype=torch.float64)
    rows[:80, 0] = 1.0
    rows[::2, 1:], rows[1::2, 1:] = others, -others
    assert StreamRule().estimates(scales_of(rows)).mixed.tolist() == [[mixed, mixed]]


def test_digits_of_other_people_are_read_better_than_plain():
    """A shift that makes the model answer one class nearly always is none of its majorities: plain 34.4 %."""
    data = pytest.importorskip("neotta.data", reason="needs the lab").open_data("digits-all").dataset()
    loaded = neotta.load_model("mnist")
    model = neotta.adapt(loaded.model)
    head, given = neotta.head(model), []
    head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    labels = torch.tensor(data.labels)
    with torch.inference_mode(), neotta.paused(model):
        plain = model(loaded.preprocess.batch(map(data.read, range(len(data))))).argmax(1)
    embeddings, found = given.pop(), {}
    assert (plain == labels).double().mean() == pytest.approx(0.344, abs=0.001)
    for batch in (1, 16, 64):
        right = []
        for seed in range(3):
            neotta.reset(model)
            order = torch.from_numpy(np.random.RandomState(seed).permutation(len(labels)))
            with torch.inference_mode():
                answers = torch.cat([head(part).argmax(1) for part in embeddings[order].split(batch)])
            right.append((answers == labels[order]).double().mean())
        found[batch] = float(torch.stack(right).mean())
    assert found == pytest.approx({1: 0.600, 16: 0.585, 64: 0.528}, abs=0.005)
