"""NEO-Stream: the recorded vectors, and the properties it must have."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow_neo_stream import SlowStream

from neotta.errors import OptionError
from neotta.neo import stream_moments
from neotta.neo.groups import EachItsOwn, ManyStreams, SoleStream
from neotta.neo.label_prior import START
from neotta.neo.shift_estimate import shift_of
from neotta.neo.stream_moments import StreamMoments
from neotta.neo.stream_rule import StreamRule


def table(rule, streams, classes, kind=np.asarray):
    """Streams that were never seen."""
    fields = rule.fields(classes)
    dtypes = {"count": np.int64, "real": np.float64}
    return StreamMoments(*(kind(np.full((streams, *f.shape), f.start, dtypes[f.kind])) for f in fields.values()))


class Stream:
    """One stream, as a user would run it."""

    def __init__(self, bias, kind=np.asarray, **options):
        self.rule = StreamRule(**options)
        self.kind = kind
        self.bias = kind(np.asarray(bias, float))
        self.state = table(self.rule, 1, len(bias), kind)

    def step(self, logits, weights=None, adapt=True):
        logits = np.asarray(logits, float)
        weights = np.ones(len(logits)) if weights is None else np.asarray(weights, float)
        rows = self.kind(logits)
        groups = EachItsOwn() if len(logits) == 1 else SoleStream(len(logits))
        if adapt and len(self.bias) > 2:
            constants, bias = self.rule.constants, self.bias - self.bias.mean()
            self.state, subtract = stream_moments.step(self.state, rows, self.kind(weights), bias, groups, constants)
        else:
            every = self.kind(weights) > -1
            after, subtract = self.rule.take(self.state, rows, groups, finite=every, bias=self.bias, adapt=False)
            assert after is self.state
        return np.asarray(rows - subtract)

    @property
    def shift(self):
        return np.asarray(self.state.shift)[0]


def classes_in_turn(rows, classes=5, height=6.0, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % classes
    return height * np.eye(classes)[labels] + noise * rng.standard_normal((rows, classes)), labels


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_it_replays_the_recorded_vectors(shared, kind):
    vectors = json.loads((shared / "safe" / "vectors.json").read_text())
    for name, case in vectors.items():
        stream = Stream(case["bias"], kind, **case["options"])
        logits = np.array(case["logits"])
        answers = [stream.step(logits[at : at + case["batch"]]) for at in range(0, len(logits), case["batch"])]
        np.testing.assert_allclose(np.concatenate(answers), case["outputs"], rtol=0, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(stream.shift, case["shift"], rtol=0, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(float(stream.state.weight[0, 0]), case["weight"], rtol=0, atol=1e-9, err_msg=name)
        if case["sticky"] is not None:
            np.testing.assert_allclose(float(stream.state.sticky[0]), case["sticky"], rtol=0, atol=1e-9, err_msg=name)


BATCHES = st.lists(st.integers(1, 6), min_size=1, max_size=6)
OPTIONS = pytest.mark.parametrize("options", [{}, {"prior": False}, {"window": None}], ids=str)


def random_batches(sizes, seed, classes=4):
    rng = np.random.default_rng(seed)
    data = 3 * rng.standard_normal((sum(sizes), classes))
    return np.split(data, np.cumsum(sizes)[:-1]), rng.standard_normal(classes)


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


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("options", [{}, {"prior": False}, {"window": None}, {"gate": 0.2, "window": 6.0, "stay": 0.7}])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_it_does_what_its_formulas_say(kind, options, batch):
    """Row by row, number by number, with raw sums: needs no recorded vectors."""
    for seed in range(4):
        logits, weights, bias = real_stream(seed)
        fast, slow = Stream(bias, kind, **options), SlowStream(bias.tolist(), **options)
        for at in range(0, len(logits), batch):
            rows, count = logits[at : at + batch], weights[at : at + batch]
            wanted = slow.step(rows.tolist(), count.tolist())
            np.testing.assert_allclose(fast.step(rows, count), wanted, rtol=1e-9, atol=1e-8, err_msg=f"{seed}, {at}")
        np.testing.assert_allclose(fast.shift, slow.shift, rtol=1e-9, atol=1e-8)
        found = fast.step(logits[:3], adapt=False)
        np.testing.assert_allclose(found, slow.answer(logits[:3].tolist()), rtol=1e-9, atol=1e-8)


@OPTIONS
def test_the_first_sample_gets_the_plain_answer(options):
    logits = np.array([[3.0, -1.0, 0.5, 2.0]])
    np.testing.assert_allclose(Stream(np.zeros(4), **options).step(logits), logits)


def test_two_classes_are_left_alone():
    logits = np.random.default_rng(0).standard_normal((50, 2))
    stream = Stream([0.3, -0.2])
    np.testing.assert_array_equal(stream.step(logits), logits)
    np.testing.assert_array_equal(stream.step(logits, adapt=False), logits)


@OPTIONS
@settings(max_examples=20)
@given(sizes=BATCHES, seed=st.integers(0, 1000))
def test_a_constant_on_all_logits_of_a_row_is_only_passed_on(options, sizes, seed):
    batches, bias = random_batches(sizes, seed)
    plain, moved = Stream(bias, **options), Stream(bias, **options)
    for turn, batch in enumerate(batches):
        constant = 10.0 * np.arange(len(batch))[:, None] - turn
        np.testing.assert_allclose(moved.step(batch + constant), plain.step(batch) + constant, atol=1e-9)
    np.testing.assert_allclose(moved.shift, plain.shift, atol=1e-9)


@OPTIONS
@settings(max_examples=20)
@given(sizes=BATCHES, seed=st.integers(0, 1000))
def test_permuted_classes_permute_the_answer(options, sizes, seed):
    batches, bias = random_batches(sizes, seed)
    order = np.random.default_rng(seed).permutation(4)
    plain, permuted = Stream(bias, **options), Stream(bias[order], **options)
    for batch in batches:
        np.testing.assert_allclose(permuted.step(batch[:, order]), plain.step(batch)[:, order], atol=1e-9)


@settings(max_examples=20)
@given(sizes=BATCHES, seed=st.integers(0, 1000), repeat=st.booleans())
def test_the_prior_stays_within_its_bounds(sizes, seed, repeat):
    batches, bias = random_batches(sizes, seed)
    stream = Stream(bias)
    for batch in batches:
        rows = np.repeat(batch[:1], len(batch), 0) if repeat else batch
        answer = stream.step(rows)
        log_prior = answer - rows + stream.shift
        assert log_prior.max() <= 1 + 1e-9
        assert log_prior.min() >= np.log(1 - 0.98) - 1e-9
        assert 0 < float(stream.state.sticky[0]) < 1


def test_two_clean_classes_are_not_shifted():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    stream = Stream(np.zeros(6))
    for part in np.split(6.0 * np.eye(6)[labels] + 0.3 * rng.standard_normal((200, 6)), 10):
        stream.step(part)
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
    assert (answers.argmax(1) == labels)[100:].mean() > 0.99
    assert ((logits + shift).argmax(1) == labels).mean() < 0.7
    np.testing.assert_allclose(stream.shift, shift, atol=0.5)


@pytest.mark.parametrize("size", [1e6, 1e30])
@pytest.mark.parametrize("place", [1, 20, 300])
def test_one_outlier_never_costs_later_samples_more_than_noise(size, place):
    logits, labels = classes_in_turn(600)
    spoilt = np.insert(logits, place, size * np.array([1.0, -2.0, 0.5, 0.0, 0.5]), axis=0)
    stream = Stream(np.zeros(5))
    answers = np.concatenate([stream.step(part) for part in np.array_split(spoilt, 40)])
    right = np.delete(answers, place, axis=0).argmax(1) == labels
    assert right[place + 100 :].mean() > 0.98


@OPTIONS
@settings(max_examples=20)
@given(plan=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=5))
@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_one_stream_in_a_table_answers_as_it_would_alone(kind, options, plan):
    bias = np.array([0.5, -0.5, 0.2, 0.0])
    rng = np.random.default_rng(len(plan))
    alone = [Stream(bias, **options) for _ in range(4)]
    rule = StreamRule(**options)
    whole = table(rule, 4, 4, kind)
    for streams in plan:
        rows = 3 * rng.standard_normal((len(streams), 4))
        ids = np.array(streams)
        distinct = sorted(set(streams))
        groups = ManyStreams([distinct.index(each) for each in streams], len(distinct))
        mine = StreamMoments(*(column[distinct] for column in whole))
        every = kind(np.ones(len(rows), bool))
        after, subtract = rule.take(mine, kind(rows), groups, finite=every, bias=kind(bias), adapt=True)
        for column, values in zip(whole, after, strict=True):
            column[distinct] = values
        for each in distinct:
            expected = alone[each].step(rows[ids == each])
            np.testing.assert_allclose((rows - np.asarray(subtract))[ids == each], expected, atol=1e-9)


@OPTIONS
def test_predicting_changes_nothing_and_rows_of_no_weight_are_not_learnt_from(options):
    logits, _ = classes_in_turn(40, seed=3)
    stream, other = Stream(np.zeros(5), **options), Stream(np.zeros(5), **options)
    stream.step(logits[:20])
    before = [np.array(column) for column in stream.state]
    predicted = stream.step(logits[20:25], adapt=False)
    assert all(np.array_equal(one, two) for one, two in zip(before, stream.state, strict=True))
    np.testing.assert_allclose(stream.step(logits[20:25], adapt=False), predicted)
    other.step(np.concatenate([logits[:20], 100 * logits[:3]]), [1.0] * 20 + [0.0] * 3)
    for name, one, two in zip(stream.state._fields, stream.state, other.state, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-12, err_msg=name)


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 12), min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_merging_is_associative_commutative_and_exact_in_its_moments(sizes, seed):
    batches, bias = random_batches(sizes, seed)
    parts = [Stream(bias, prior=False) for _ in sizes]
    for part, batch in zip(parts, batches, strict=True):
        for row in batch:
            part.step(row[None])
    rule, (a, b, c) = parts[0].rule, (part.state for part in parts)

    def merged(one, other):
        total = StreamMoments(*(column.copy() for column in one))
        rule.merge(total, other)
        return total

    left, right = merged(merged(a, b), c), merged(a, merged(c, b))
    for name, one, two in zip(left._fields, left, right, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9, err_msg=name)
    again = merged(left, table(rule, 1, 4))
    np.testing.assert_allclose(again.mean, left.mean)
    np.testing.assert_allclose(again.shift, left.shift)


@pytest.mark.parametrize("weights", [(0.2, 0.3), (2.0, 6.0), (0.0, 1.0), (0.0, 0.0)])
def test_merged_streams_begin_between_where_both_began(weights):
    rule = StreamRule()
    one, other = (
        table(rule, 1, 4)._replace(weight=np.array([[weight, 0.0]]), start=np.full((1, 4), start))
        for weight, start in zip(weights, (1.0, 3.0), strict=True)
    )
    rule.merge(one, other)
    wanted = 1.0 if not any(weights) else np.average([1.0, 3.0], weights=weights)
    np.testing.assert_allclose(one.start, wanted, rtol=1e-12)
    assert np.all(one.sticky == 0.1)
    for name in ("last", "mix", "seen", "previous"):
        assert not getattr(one, name).any(), name


@pytest.mark.parametrize(("rows", "known"), [(24, False), (27, True)])
def test_one_and_a_half_samples_are_too_few(rows, known):
    """Three classes under a strong shift, and each row counts a sixteenth."""
    logits = 6 * np.eye(3)[np.resize([0, 1, 2], rows)] + np.array([30.0, 0.0, -30.0])
    stream = Stream(np.zeros(3), prior=False, window=None)
    stream.step(logits, np.full(rows, 1 / 16))
    assert float(stream.state.weight[0, 0]) == rows / 16
    assert bool(stream.shift.any()) == known
    slow = SlowStream([0.0] * 3, prior=False, window=None)
    slow.step(logits.tolist(), [1 / 16] * rows)
    np.testing.assert_allclose(stream.shift, slow.shift, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.01, 30.0])
def test_only_the_shares_of_predictions_count(scale):
    """Their sum is small after old predictions have aged."""
    stream = Stream(np.zeros(4))
    stream.step(classes_in_turn(20, 4)[0] + np.array([3.0, 0.0, 0.0, -3.0]))
    scaled = {name: scale * getattr(stream.state, name) for name in ("predicted", "peak", "trust")}
    shift = shift_of(stream.state._replace(**scaled), stream.rule.constants)
    assert shift.any()
    np.testing.assert_allclose(shift, shift_of(stream.state, stream.rule.constants), rtol=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_softmax_is_over_the_last_dimension(kind):
    logits = np.random.default_rng(0).normal(size=(2, 3, 4))
    powers = np.exp(logits)
    found = stream_moments.softmax(kind(logits))
    np.testing.assert_allclose(found, powers / powers.sum(2, keepdims=True), rtol=1e-12)


def test_options_out_of_range_are_refused():
    for wrong in (
        {"gate": -1}, {"gate": float("nan")}, {"gate": "0.6"}, {"stay": 1.0}, {"stay": -0.1}, {"window": 0},
        {"window": "long"}, {"prior": 1},
    ):  # fmt: skip
        with pytest.raises(OptionError, match=next(iter(wrong))):
            StreamRule(**wrong)


def test_the_defaults_are_the_documented_ones():
    rule = StreamRule()
    assert (rule.gate, rule.stay, rule.window, rule.prior, rule.classes) == (0.6, 0.98, 32.0, True, None)


def test_streams_begin_with_nothing_but_a_guess_how_sticky_they_are():
    starts = {name: field.start for name, field in StreamRule().fields(5).items()}
    assert starts.pop("sticky") == START
    assert set(starts.values()) == {0.0}


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("given", [False, True])
def test_rows_that_are_not_finite_or_weigh_nothing_leave_no_trace(kind, given):
    logits, _ = classes_in_turn(30)
    weights = np.linspace(0.5, 1.5, 30) if given else np.ones(30)
    spoilt, heavier = np.insert(logits, [7, 20], np.nan, axis=0), np.insert(weights, [7, 20], 1.0)
    rule, bias = StreamRule(), kind(np.zeros(5))

    def taken(rows, mine):
        finite = np.isfinite(rows).all(1)
        how = {"weights": kind(mine)} if given else {}
        state, subtract = rule.take(
            table(rule, 1, 5, kind),
            kind(rows),
            SoleStream(len(rows)),
            finite=kind(finite),
            bias=bias,
            adapt=True,
            **how,
        )
        return state, np.asarray(subtract)[finite]

    (clean, answers), (dirty, others) = taken(logits, weights), taken(spoilt, heavier)
    np.testing.assert_allclose(others, answers, rtol=0, atol=1e-12)
    assert (int(dirty.count[0]), int(dirty.rejected[0]), int(clean.rejected[0])) == (30, 2, 0)
    for name in set(clean._fields) - {"rejected"}:
        np.testing.assert_allclose(getattr(dirty, name), getattr(clean, name), rtol=0, atol=1e-12, err_msg=name)


def test_a_difference_of_one_stream_is_of_one_stream():
    stream = Stream(np.zeros(4))
    rng = np.random.default_rng(0)
    stream.step(3 * rng.standard_normal((8, 4)))
    before = StreamMoments(*(np.array(column[0]) for column in stream.state))
    stream.step(3 * rng.standard_normal((8, 4)))
    now = StreamMoments(*(np.array(column[0]) for column in stream.state))
    gained, adopted = stream.rule.difference(now, before), stream.rule.adopt(now, before)
    for part in (gained, adopted):
        assert [np.shape(column) for column in part] == [np.shape(column) for column in now]
    assert float(gained.weight[0]) > 0
