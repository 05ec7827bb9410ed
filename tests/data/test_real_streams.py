"""Streams as real cameras see them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.data import orders
from neotta.data.real_streams import CHANGES, KINDS, STARTS, BadFrames, order
from neotta.errors import DataError, UnknownNameError

LABELS = np.repeat(np.arange(12), 50)
EVERY = pytest.mark.parametrize("kind", KINDS)


@EVERY
@given(seed=st.integers(0, 99), samples=st.sampled_from([-1, 1, 64, 300]))
def test_an_order_depends_on_seed_and_domain_alone_and_shows_samples_of_the_domain(kind, seed, samples):
    found = order(kind, LABELS, seed, "fog/5", samples)
    assert np.array_equal(found, order(kind, LABELS, seed, "fog/5", samples))
    assert 0 < len(found) <= (len(LABELS) if samples < 0 else samples)
    assert 0 <= found.min() <= found.max() < len(LABELS)
    if samples == 300:
        assert not np.array_equal(found, order(kind, LABELS, seed, "snow/5", samples))


def labels_of(kind, samples=-1):
    return LABELS[order(kind, LABELS, 3, "fog/5", samples)]


def test_each_kind_is_what_it_is_called():
    assert len(labels_of("iid")) == 600
    for number in (1, 2, 5, 10):
        assert len(np.unique(labels_of(f"{number}-class" + "es" * (number > 1)))) == number
    assert (np.diff(labels_of("sorted")) != 0).sum() == 11
    assert np.array_equal(labels_of("neighbours"), LABELS)
    assert len(np.unique(labels_of("mixed-then-1")[256:])) == 1
    assert len(np.unique(labels_of("mixed-then-1")[:256])) == 12
    assert all(len(set(part)) == 1 for part in labels_of("bursts-100").reshape(-1, 100))
    assert all(len(set(part)) == 1 for part in labels_of("bursts-5").reshape(-1, 5))
    assert len(set(labels_of("2-in-turn"))) == 2
    assert (np.diff(labels_of("2-in-turn")) != 0).all()
    assert all(len(set(part)) == 12 for part in labels_of("all-in-turn").reshape(-1, 12))
    for kind, share in (("half-one-class", 0.5), ("mostly-one-class", 0.9)):
        assert abs(np.bincount(labels_of(kind)).max() / 600 - share) < 0.1
    assert all(len(set(part)) == 1 for part in order("repeated-frames", LABELS, 3, "fog/5").reshape(-1, 8))
    assert len(set(order("frozen-start", LABELS, 3, "fog/5")[:100])) == 1
    counts = np.bincount(labels_of("long-tail"))
    assert counts.max() / counts.min() > 20


def shown(kind, seed, domain="fog/5"):
    return tuple(np.unique(LABELS[order(kind, LABELS, seed, domain, 64)]))


def test_seeds_show_every_class_and_every_pair_once():
    assert len({shown("1-class", seed) for seed in range(12)}) == 12
    assert len({shown("2-classes", seed) for seed in range(66)}) == 66
    assert shown("2-classes", 7) == shown("2-classes", 7, "snow/5")
    assert np.array_equal(order("2-classes", np.zeros(3, np.int64), 5, "fog/5") >= 0, [True] * 3)


def test_few_samples_of_a_class_are_shown_over_and_over():
    found = order("1-class", np.repeat(np.arange(300), 2), 3, "fog/5", 128)
    assert len(found) == 128
    assert len(np.unique(found)) == 2


def test_an_order_of_a_kind_can_be_saved_and_is_refused_if_unknown(tmp_path):
    made = orders.real({"fog/5": LABELS}, kind="bursts-5", samples=64, seed=1, batch_size=16)
    made.save(tmp_path / "o.json")
    assert orders.Order.load(tmp_path / "o.json").hash() == made.hash()
    with pytest.raises(UnknownNameError, match="did you mean 'bursts-5'"):
        orders.real({"fog/5": LABELS}, kind="burst-5")


def test_new_cameras_come_one_after_the_other_in_batches_of_one():
    for kind, number in STARTS.items():
        made = orders.real({"fog/5": LABELS}, kind=kind, samples=128, seed=1)
        assert made.batch_size == 1
        assert np.bincount(made.camera).tolist() == [number] * (128 // number)
        assert np.array_equal(made.index, orders.real({"fog/5": LABELS}, kind="iid", samples=128, seed=1).index)


def test_domains_change_every_so_many_samples_and_come_back():
    data = {"fog/5": LABELS, "snow/5": LABELS, "frost/5": LABELS}
    for kind, change in CHANGES.items():
        made = orders.real(data, kind=kind, samples=600, seed=1)
        assert len(made) == 1800 * change.rounds
        borders = np.flatnonzero(np.diff(made.domain)) + 1
        assert borders[0] == change.every
        assert max(np.diff(borders)) == change.every
        first = made.index[made.domain == 0]
        assert len(np.unique(first)) == 600
        repeats = (LABELS[first][1:] == LABELS[first][:-1]).mean()
        assert bool(repeats > 0.2) is (change.delta is not None)
    assert len(np.flatnonzero(np.diff(orders.real(data, kind="changes-64", samples=128).domain))) == 5


def test_bad_frames_are_strewn_in_and_have_no_labels():
    frames = BadFrames(8, 6)
    made = orders.real({"fog/5": LABELS}, kind="outliers", seed=1, batch_size=16, bad_frames=frames)
    bad = made.domain == made.domains.index(frames.domain)
    assert 3 < bad.sum() < 30
    assert np.array_equal(made.index[~bad], orders.real({"fog/5": LABELS}, kind="iid", seed=1).index)
    assert frames.labels is None
    pictures = [frames.read(index) for index in range(len(frames))]
    assert {picture.shape for picture in pictures} == {(8, 6, 3)}
    assert {0.0, 255.0} < {float(picture.mean()) for picture in pictures}
    with pytest.raises(DataError, match="bad frames"):
        orders.real({"fog/5": LABELS}, kind="outliers")
