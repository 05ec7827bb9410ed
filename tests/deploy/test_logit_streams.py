"""Logits re-centered with neo-stream, the default: streams, weights, files, and input that is none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neotta
from neotta.deploy import LogitRecenter
from neotta.errors import InputError, OptionError, StateError, StateMismatchError
from neotta.neo.statefile import read_arrays, write_state

CLASSES = 5


def batches(sizes, seed=0, classes=CLASSES):
    """Logits of a shifted domain, some with long runs of a class."""
    rng = np.random.default_rng(seed)
    shift = rng.normal(size=classes)
    labels = rng.integers(0, classes, sum(sizes))
    if seed % 2:
        labels.sort()
    rows = 6 * np.eye(classes)[labels] + 0.5 * rng.normal(size=(len(labels), classes)) + shift
    return np.split(rows, np.cumsum(sizes)[:-1])


BIAS = np.linspace(-1, 1, CLASSES)


def test_it_replays_the_recorded_vectors(shared):
    for name, case in json.loads((shared / "safe" / "vectors-3.json").read_text()).items():
        ours, logits = LogitRecenter(case["bias"], **case["options"]), np.array(case["logits"])
        answers = [ours.recenter(logits[at : at + case["batch"]]) for at in range(0, len(logits), case["batch"])]
        np.testing.assert_allclose(np.concatenate(answers), case["outputs"], rtol=0, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(ours.offset(), case["shift"], rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"prior": False}, {"window": None, "gate": 0.3}], ids=str)
@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_it_equals_the_adapted_model(options, sizes, seed):
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(CLASSES, CLASSES, dtype=torch.float64))
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(CLASSES))
        model[1].bias.copy_(torch.tensor(BIAS))
    neotta.adapt(model, "neo-stream", head="1", **options)
    ours = LogitRecenter(BIAS, **options)
    with torch.no_grad():
        for batch in batches(sizes, seed):
            np.testing.assert_allclose(ours.recenter(batch + BIAS), model(torch.tensor(batch)), atol=1e-9)
        assert ours.count == neotta.head(model).count == sum(sizes)
        neotta.head(model).freeze()
        before = ours.offset()
        wanted = model(torch.tensor(batch)).numpy()
    np.testing.assert_allclose(ours.recenter(batch + BIAS, adapt=False), wanted, atol=1e-9)
    np.testing.assert_array_equal(ours.offset(), before)


@pytest.mark.parametrize("options", [{}, {"method": "neo"}], ids=str)
@settings(deadline=None, max_examples=20)
@given(
    ids=st.lists(st.lists(st.sampled_from(["gate", "yard", 7]), min_size=1, max_size=6), min_size=1, max_size=5),
    seed=st.integers(0, 100),
)
def test_each_stream_is_answered_as_if_it_were_alone(options, ids, seed):
    alone = {}
    many = LogitRecenter(BIAS, **options)
    for batch, streams in zip(batches([len(part) for part in ids], seed), ids, strict=True):
        answer = many.recenter(batch, stream=streams)
        for stream in set(streams):
            mine = [row for row, other in enumerate(streams) if other == stream]
            one = alone.setdefault(stream, LogitRecenter(BIAS, **options))
            np.testing.assert_allclose(answer[mine], one.recenter(batch[mine]), atol=1e-9)
    assert set(many.streams()) == set(alone)
    assert many.count == sum(one.count for one in alone.values())
    for stream, one in alone.items():
        np.testing.assert_allclose(many.offset(stream), one.offset(), atol=1e-9)
        asleep = many.recenter(batch, adapt=False, stream=stream)
        np.testing.assert_allclose(asleep, one.recenter(batch, adapt=False), atol=1e-9)


@pytest.mark.parametrize("method", ["neo-stream", "neo"])
def test_rows_without_weight_are_answered_but_not_learnt_from(method):
    first, second = batches([12, 4], seed=1)
    ours, wanted = LogitRecenter(BIAS, method), LogitRecenter(BIAS, method)
    weights = np.array([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1])
    answer = ours.recenter(first, weights=weights)
    np.testing.assert_allclose(answer[weights > 0], wanted.recenter(first[weights > 0]), atol=1e-9)
    assert ours.count == 9
    np.testing.assert_allclose(ours.recenter(second), wanted.recenter(second), atol=1e-9)
    before = ours.offset()
    ours.recenter(first, weights=np.zeros(12))
    np.testing.assert_array_equal(ours.offset(), before)
    many = LogitRecenter(BIAS, method)
    many.recenter(first, weights=weights, stream=np.where(weights, "good", "bad"))
    assert many.streams() == ["good"]
    half, double = LogitRecenter(BIAS, "neo"), LogitRecenter(BIAS, "neo")
    half.recenter(first[:3], weights=[1, 0.5, 0.5])
    double.recenter(first[[0, 0, 1, 2]])
    np.testing.assert_allclose(half.offset(), double.offset(), atol=1e-9)
    for bad in ([1.0] * 3, [-1.0] + [1.0] * 3, [np.nan] * 4, "abcd", [[1.0] * 4]):
        with pytest.raises(InputError, match="weight"):
            ours.recenter(second, weights=bad)
    np.testing.assert_array_equal(ours.offset(), before)


@pytest.mark.parametrize("many", [False, True])
def test_saving_and_going_on_to_the_bit(tmp_path, many):
    first, second = batches([9, 5], seed=3)
    ids = {"stream": ["a", "b", 3, "a", "b", "a", "a", "b", 3]} if many else {}
    then = {"stream": ["b", "a", 3, "c", "b"]} if many else {}
    ours, other = LogitRecenter(BIAS), LogitRecenter(BIAS)
    ours.recenter(first, **ids)
    ours.save(tmp_path / "state")
    other.load(tmp_path / "state")
    np.testing.assert_array_equal(other.recenter(second, **then), ours.recenter(second, **then))
    assert other.streams() == ours.streams()
    wrongs = {
        "gate=0.5": LogitRecenter(BIAS, gate=0.5),
        "weights": LogitRecenter(),
        "expected neo ": LogitRecenter(BIAS, "neo"),
    }
    for word, wrong in wrongs.items():
        with pytest.raises(StateMismatchError, match=word):
            wrong.load(tmp_path / "state")
    if many:
        ours.save(tmp_path / "one", stream="a")
        alone = LogitRecenter(BIAS)
        alone.load(tmp_path / "one")
        wanted = ours.recenter(second, adapt=False, stream="a")
        np.testing.assert_array_equal(alone.recenter(second, adapt=False), wanted)


def test_a_state_that_cannot_be_is_refused_and_changes_nothing(tmp_path):
    ours = LogitRecenter(BIAS)
    ours.recenter(batches([6])[0], stream=["a", "b"] * 3)
    ours.save(tmp_path / "state")
    arrays, about = read_arrays(tmp_path / "state")
    before = ours.offset("a")
    wrong = {
        "NaN": {**arrays, "head.ever": arrays["head.ever"] * np.nan},
        "out of range": {**arrays, "head.tallies": arrays["head.tallies"] - 100},
        "expected the entries": {name: array for name, array in arrays.items() if name != "head.shift"},
        "as many ids as rows": {**arrays, "head.tallies": np.concatenate([arrays["head.tallies"]] * 2)},
        "beyond": {**arrays, "head.shift": arrays["head.shift"] + 1e9},
    }
    for message, entries in wrong.items():
        write_state(tmp_path / "bad", entries, about)
        with pytest.raises(StateError, match=message):
            ours.load(tmp_path / "bad")
    np.testing.assert_array_equal(ours.offset("a"), before)


def test_merging_adds_what_was_seen_over_all_time():
    parts = batches([20, 30, 10], seed=4)
    one, two, both = (LogitRecenter(BIAS, prior=False, window=None) for _ in range(3))
    one.recenter(parts[0], stream="yard")
    two.recenter(parts[1], stream="yard")
    two.recenter(parts[2], stream="gate")
    both.merge(two)
    both.merge(one)
    assert (both.count, both.streams()) == (60, ["yard", "gate"])
    wanted = LogitRecenter(BIAS, prior=False, window=None)
    wanted.merge(one)
    wanted.merge(two)
    np.testing.assert_allclose(both.offset("yard"), wanted.offset("yard"), atol=1e-9)
    alone = LogitRecenter(BIAS, prior=False, window=None)
    alone.recenter(parts[2])
    np.testing.assert_allclose(both.offset("gate"), alone.offset(), atol=1e-9)
    with pytest.raises(StateMismatchError, match="one state, expected one for each stream"):
        both.merge(alone)


def test_probabilities_are_rejected():
    logits = batches([8])[0]
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    for method in ("neo-stream", "neo"):
        for given_ in (chances, chances[:1], chances.astype(np.float32).astype(float), np.eye(5)):
            with pytest.raises(InputError, match=r"got probabilities.*np\.log"):
                LogitRecenter(method=method).recenter(given_)
    ours = LogitRecenter()
    ours.recenter(logits)
    with pytest.raises(InputError, match="probabilities"):
        ours.recenter(chances, adapt=False)
    for fine in (np.log(chances), chances * 2, np.concatenate([chances, logits])):
        LogitRecenter().recenter(fine)


def test_a_binary_decision_function_is_one_number_per_sample():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    X[y == 1] += 2
    classifier = LogisticRegression().fit(X, y)
    decision = classifier.decision_function(X)
    ours = LogitRecenter(classifier.intercept_)
    np.testing.assert_array_equal(ours.recenter(decision), decision)  # shift and prior are one number
    np.testing.assert_array_equal(ours.recenter(decision, adapt=False), decision)
    assert ours.count == 200
    mean = LogitRecenter(float(classifier.intercept_[0]), "neo")
    np.testing.assert_allclose(mean.recenter(decision + 3), decision - decision.mean() + classifier.intercept_[0])
    assert mean.recenter(decision[:, None], adapt=False).shape == (200, 1)
    two = np.stack([-decision, decision], 1)
    np.testing.assert_array_equal(LogitRecenter().recenter(two), two)
    three = LogitRecenter()
    three.recenter(np.ones((2, 3)) * 2)
    with pytest.raises(InputError, match=r"got shape \(3,\)"):
        three.recenter(np.ones(3))


def test_what_is_wrong_is_said():
    rows = np.full((2, 3), 2.0)
    wrong = {
        "no option 'alpha'": {"alpha": 0.1},
        "no option 'gate'": {"method": "neo", "gate": 0.5},
        "'gate' of method 'neo-stream' is -1": {"gate": -1.0},
        "'stay' of method 'neo-stream' is 1": {"stay": 1.0},
        "'window' of method 'neo-stream' is 0": {"window": 0.0},
        "'prior' of method 'neo-stream' is 3": {"prior": 3},
    }
    for message, options in wrong.items():
        with pytest.raises(OptionError, match=message):
            LogitRecenter(**options)
    ours = LogitRecenter()
    ours.recenter(rows)
    with pytest.raises(InputError, match="3 stream ids for a batch of 2"):
        ours.recenter(rows, stream=["a", "b", "c"])
    with pytest.raises(InputError, match="string or an integer"):
        ours.recenter(rows, stream=[1.5, 2])
    with pytest.raises(InputError, match="without a stream so far"):
        ours.recenter(rows, stream="yard")
    ours.reset()
    ours.recenter(rows, stream="yard")
    with pytest.raises(InputError, match="no stream 'gate'"):
        ours.offset("gate")
    ours.reset("yard")
    assert ours.streams() == []
