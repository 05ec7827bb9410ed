"""The laws of moments, over everything that keeps them: both kinds of arrays, tables, heads, streams, logits, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta import Centroid
from neotta.deploy import LogitRecenter
from neotta.neo import moments
from neotta.neo.groups import EachItsOwn
from neotta.neo.moments import Moments
from neotta.neo.rules import MeanRule
from neotta.neo.stream_memory import StreamMemory
from neotta.neo.sync.replica import gained, moments_of

FEATURES = 5
RULES = [
    {},
    {"weighting": "batch"},
    {"shrinkage": "james-stein"},
    {"alpha": 0.3},
    {"alpha": 0.2, "debias": True},
    {"alpha": 1.0, "debias": True},
]
MERGEABLE = [rule for rule in RULES if "alpha" not in rule]
SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=6)


class OfArrays:
    """The functions themselves, on NumPy arrays."""

    tolerance = 1e-12

    def __init__(self, rule):
        self.rule = MeanRule(**rule)
        numbers = [np.array(0) for _ in range(3)]
        self.state = Moments(*numbers, np.zeros(FEATURES), np.array(0.0), np.array(0.0))

    def rows(self, batch):
        return batch.numpy()

    def update(self, batch):
        if len(batch):
            new = moments.summarise(self.rows(batch), variance=self.rule.variance)
            moments.combine(self.state, new, self.rule.share(self.state, new))

    def merge(self, other):
        self.rule.merge(self.state, other.state)

    def centre(self):
        return np.asarray(self.rule.centre(self.state))

    def count(self):
        return int(self.state.count)


class OfTensors(OfArrays):
    """The same functions on tensors."""

    def __init__(self, rule):
        super().__init__(rule)
        self.state = Moments(*(torch.from_numpy(np.array(column)) for column in self.state))

    def rows(self, batch):
        return batch


class OfModule:
    """A `Centroid`."""

    tolerance = 1e-12

    def __init__(self, rule):
        self.memory = Centroid(FEATURES, **rule)

    def update(self, batch):
        self.memory.step(batch)

    def merge(self, other):
        self.memory.merge(other.memory)

    def centre(self):
        return self.memory.value().numpy()

    def count(self):
        return self.memory.total()


class OfStream:
    """One stream of a table, updated together with another that gets other samples; merged as files are."""

    tolerance = 3e-5  # a table is kept in float32

    def __init__(self, rule):
        method = "neo-continual" if "alpha" in rule else "neo"
        torch.manual_seed(0)
        self.model = neotta.adapt(nn.Sequential(nn.Linear(FEATURES, 3)), method, streams=True, **rule)
        self.memory: StreamMemory = neotta.head(self.model).streams

    def update(self, batch):
        both = torch.cat([batch, batch + 7]).float()
        with neotta.streams(["a"] * len(batch) + ["b"] * len(batch)):
            self.memory.step(both, len(both))

    def merge(self, other):
        neotta.load(self.model, neotta.merge([self.model, other.model]))

    def centre(self):
        seen = "a" in self.memory.counts()
        return self.memory.centroid("a").value().numpy() if seen else np.zeros(FEATURES)

    def count(self):
        return self.memory.counts().get("a", 0)


class OfLogits:
    """A `LogitRecenter`, which sees bias-free logits."""

    tolerance = 1e-12

    def __init__(self, rule):
        shrinkage = {"shrinkage": "james-stein-logits"} if "shrinkage" in rule else {}
        self.logits = LogitRecenter(rule="neo", **{**rule, **shrinkage})

    def update(self, batch):
        self.logits.partial_fit(batch.numpy())

    def merge(self, other):
        self.logits.merge(other.logits)

    def centre(self):
        return self.logits.centre() if hasattr(self.logits, "mean_") else np.zeros(FEATURES)

    def count(self):
        return self.logits.count_ if hasattr(self.logits, "mean_") else 0


class OfReplica(OfModule):
    """A `Centroid` that is merged as replicas do: by what was gained since they started."""

    def merge(self, other):
        more = gained(moments_of(other.memory), moments_of(self.memory.blank()), self.memory.rule)
        self.memory.rule.merge(self.memory.moments(), more)


USERS = pytest.mark.parametrize("kind", [OfArrays, OfTensors, OfModule, OfStream, OfLogits, OfReplica])


def samples(count, seed):
    return torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 1


def filled(kind, rule, batches):
    user = kind(rule)
    for batch in batches:
        user.update(batch)
    return user


def same(one, other):
    assert one.count() == other.count()
    np.testing.assert_allclose(one.centre(), other.centre(), rtol=one.tolerance, atol=one.tolerance)


def by_definition(rule, batches):
    """The vector to subtract, from the definitions in the paper."""
    batches = [batch.numpy() for batch in batches if len(batch)]
    rows = np.concatenate([np.empty((0, FEATURES)), *batches])
    if "alpha" in rule:
        mean, weight = np.zeros(FEATURES), 0.0
        for batch in batches:
            mean = (1 - rule["alpha"]) * mean + rule["alpha"] * batch.mean(0)
            weight = (1 - rule["alpha"]) * weight + rule["alpha"]
        return mean / weight if rule.get("debias") and weight else mean
    if len(rows) == 0:
        return np.zeros(FEATURES)
    if rule.get("weighting") == "batch":
        return np.mean([batch.mean(0) for batch in batches], axis=0)
    mean = rows.mean(0)
    if "shrinkage" in rule:
        noise = rows.var(0, ddof=1).sum() / len(rows) if len(rows) > 1 else np.inf
        return mean * max(0.0, 1 - noise / (mean @ mean))
    return mean


@USERS
@pytest.mark.parametrize("rule", RULES, ids=str)
@settings(max_examples=20)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_what_is_subtracted_is_what_the_paper_defines(kind, rule, sizes, seed):
    batches = list(samples(sum(sizes), seed).split(sizes))
    user = filled(kind, rule, batches)
    assert user.count() == sum(sizes)
    np.testing.assert_allclose(user.centre(), by_definition(rule, batches), rtol=1e-9, atol=max(user.tolerance, 1e-9))


@USERS
@settings(max_examples=20)
@given(sizes=SIZES, seed=st.integers(0, 1000))
def test_batching_and_order_do_not_matter(kind, sizes, seed):
    data = samples(sum(sizes), seed)
    shuffled = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))]
    rule = {"shrinkage": "james-stein"}
    cut = filled(kind, rule, data.split(sizes))
    same(cut, filled(kind, rule, [data]))
    same(cut, filled(kind, rule, [shuffled]))


@USERS
@pytest.mark.parametrize("rule", MERGEABLE, ids=str)
@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 5), min_size=3, max_size=3), seed=st.integers(0, 1000))
def test_merging_is_associative_commutative_and_exact(kind, rule, sizes, seed):
    parts = samples(sum(sizes), seed).split(sizes)

    def merged(*indices):
        user = kind(rule)
        for index in indices:
            user.merge(filled(kind, rule, [parts[index]]))
        return user

    left, nested = merged(0, 1, 2), merged(0)
    same(left, merged(2, 0, 1))
    nested.merge(merged(1, 2))
    same(left, nested)
    same(left, filled(kind, rule, parts))


@USERS
@pytest.mark.parametrize("rule", MERGEABLE, ids=str)
def test_merging_with_nothing_changes_nothing(kind, rule):
    user = filled(kind, rule, [samples(4, 1)])
    before = user.centre()
    user.merge(kind(rule))
    assert user.count() == 4
    np.testing.assert_allclose(user.centre(), before, rtol=user.tolerance, atol=0)


@pytest.mark.parametrize("rule", MERGEABLE, ids=str)
@given(before=st.integers(0, 9), after=st.integers(0, 9), seed=st.integers(0, 1000))
def test_a_difference_merged_again_gives_the_whole(rule, before, after, seed):
    first, second = samples(before, seed), samples(after, seed + 1)
    part, whole = filled(OfArrays, rule, [first]), filled(OfArrays, rule, [first, second])
    part.rule.merge(part.state, moments.difference(whole.state, part.state, part.rule.by))
    same(part, whole)


@given(count=st.integers(0, 12), bad=st.integers(0, 4), seed=st.integers(0, 1000))
def test_rows_that_do_not_count_change_nothing_but_their_number(count, bad, seed):
    data = samples(count + bad, seed).numpy()
    finite = np.arange(len(data)) < count
    data[count:, 1] = np.nan
    if len(data):
        found = moments.summarise(data, finite=finite, variance=True)
        assert (int(found.count), int(found.rejected)) == (count, bad)
        if count:
            expected = moments.summarise(data[:count], variance=True)
            np.testing.assert_allclose(found.mean, expected.mean)
            np.testing.assert_allclose(found.scatter, expected.scatter)


@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_weights_are_those_of_a_weighted_mean(kind, features):
    rows = np.random.default_rng(0).normal(size=(5, features))
    weights = np.array([0.5, 0.0, 1.0, 2.0, 0.25])
    found = moments.summarise(kind(rows), weights=kind(weights), variance=True)
    mean = np.average(rows, axis=0, weights=weights)
    assert (int(found.count), int(found.batches), int(found.rejected)) == (4, 1, 0)
    assert np.asarray(found.mean) == pytest.approx(mean)
    assert float(found.scatter) == pytest.approx(float((weights[:, None] * (rows - mean) ** 2).sum()))
    assert float(found.discount) == pytest.approx(4 - weights.sum())


@pytest.mark.parametrize("weights", [None, np.array([0.5, 1.0, 0.0])])
def test_rejected_rows_are_counted_unless_they_weigh_nothing(weights):
    rows, finite = np.array([[1.0], [np.nan], [np.inf]]), np.array([True, False, False])
    found = moments.summarise(rows, finite=finite, weights=weights)
    assert (found.count, found.rejected, found.mean.tolist()) == (1, 2 if weights is None else 1, [1.0])
    assert found.scatter is None


@pytest.mark.parametrize("features", [1, 3])
def test_a_row_of_a_stream_of_its_own_is_its_mean(features):
    rows = np.random.default_rng(0).normal(size=(4, features))
    found = moments.summarise(rows, EachItsOwn(), variance=True)
    assert found.mean is rows
    assert (found.count.tolist(), found.batches.tolist(), found.scatter.tolist()) == ([1] * 4, [1] * 4, [0.0] * 4)


def test_a_difference_of_nothing_is_nothing():
    state = Moments(np.array(3), np.array(1), np.array(0), np.array([1.0, 2.0]), np.array(4.0))
    found = moments.difference(state, state)
    assert (found.count, found.mean.tolist(), float(found.scatter)) == (0, [0.0, 0.0], 0.0)
