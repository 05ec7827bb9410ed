"""Streams as real cameras see them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.data import orders
from neotta.data.base import ImageDataset
from neotta.data.orders import BadFrames
from neotta.errors import OptionError

LABELS = np.repeat(np.arange(12), 50)
SCENES = {
    **{f"{number} classes": partial(orders.some_classes, classes=number) for number in (1, 2, 5, 10)},
    "by class": orders.by_class,
    "neighbours": partial(orders.by_class, numbered=True),
    "mixed then one": orders.mixed_then_one,
    "bursts of 5": orders.bursts,
    "bursts of 100": partial(orders.bursts, length=100),
    "two in turn": partial(orders.in_turn, classes=2),
    "all in turn": orders.in_turn,
    "half one class": orders.dominant,
    "mostly one class": partial(orders.dominant, share=0.9),
    "repeated": orders.repeated,
    "frozen start": orders.frozen_start,
    "long tail": partial(orders.imbalanced, ratio=100.0, whole=True),
    "bursts": partial(orders.correlated, delta=0.01, whole=True),
}
PUBLISHED = {
    "1 classes": "ad58cea3",
    "2 classes": "57376191",
    "5 classes": "336ab8ea",
    "10 classes": "75e5f661",
    "by class": "ad782b39",
    "neighbours": "761f323a",
    "mixed then one": "fc8d1c6a",
    "bursts of 5": "8ee3369a",
    "bursts of 100": "d610f796",
    "two in turn": "f6add81d",
    "all in turn": "da938058",
    "half one class": "b9825c90",
    "mostly one class": "00c7e7a9",
    "repeated": "174bba9a",
    "frozen start": "cc7ed4e3",
    "long tail": "c8bcde1b",
    "bursts": "3216e3dd",
}


def order(kind, labels, seed, domain, samples=-1):
    return SCENES[kind]({domain: labels}, seed=seed, samples=samples).index


@pytest.mark.parametrize("kind", SCENES)
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
    for number in (1, 2, 5, 10):
        assert len(np.unique(labels_of(f"{number} classes"))) == number
    assert (np.diff(labels_of("by class")) != 0).sum() == 11
    assert np.array_equal(labels_of("neighbours"), LABELS)
    assert len(np.unique(labels_of("mixed then one")[256:])) == 1
    assert len(np.unique(labels_of("mixed then one")[:256])) == 12
    assert all(len(set(part)) == 1 for part in labels_of("bursts of 100").reshape(-1, 100))
    assert all(len(set(part)) == 1 for part in labels_of("bursts of 5").reshape(-1, 5))
    assert len(set(labels_of("two in turn"))) == 2
    assert (np.diff(labels_of("two in turn")) != 0).all()
    assert all(len(set(part)) == 12 for part in labels_of("all in turn").reshape(-1, 12))
    for kind, share in (("half one class", 0.5), ("mostly one class", 0.9)):
        assert abs(np.bincount(labels_of(kind)).max() / 600 - share) < 0.1
    assert all(len(set(part)) == 1 for part in order("repeated", LABELS, 3, "fog/5").reshape(-1, 8))
    assert len(set(order("frozen start", LABELS, 3, "fog/5")[:100])) == 1
    counts = np.bincount(labels_of("long tail"))
    assert counts.max() / counts.min() > 20


def shown(kind, seed, domain="fog/5"):
    return tuple(np.unique(LABELS[order(kind, LABELS, seed, domain, 64)]))


def test_seeds_show_every_class_and_every_pair_once():
    assert len({shown("1 classes", seed) for seed in range(12)}) == 12
    assert len({shown("2 classes", seed) for seed in range(66)}) == 66
    assert shown("2 classes", 7) == shown("2 classes", 7, "snow/5")
    assert np.array_equal(order("2 classes", np.zeros(3, np.int64), 5, "fog/5") >= 0, [True] * 3)


def test_few_samples_of_a_class_are_shown_over_and_over():
    found = order("1 classes", np.repeat(np.arange(300), 2), 3, "fog/5", 128)
    assert len(found) == 128
    assert len(np.unique(found)) == 2


def test_the_orders_of_the_published_streams_never_change():
    """These values are part of the format: results of different versions are compared by them."""
    found = {kind: SCENES[kind]({"fog/5": LABELS}, seed=7, samples=64, batch_size=16).hash()[:8] for kind in SCENES}
    assert found == PUBLISHED


def test_new_cameras_come_one_after_the_other_in_batches_of_one():
    for number in (1, 4, 16, 64):
        made = orders.new_cameras({"fog/5": LABELS}, each=number, samples=128, seed=1, batch_size=16)
        assert made.batch_size == 1
        assert np.bincount(made.camera).tolist() == [number] * (128 // number)
        assert np.array_equal(made.index, orders.iid({"fog/5": LABELS}, samples=128, seed=1).index)


@pytest.mark.parametrize("options", [{"every": 64}, {"every": 512}, {"every": 64, "delta": 0.1}, {"rounds": 2}])
def test_domains_change_every_so_many_samples_and_come_back(options):
    data = {"fog/5": LABELS, "snow/5": LABELS, "frost/5": LABELS}
    made = orders.changes(data, samples=600, seed=1, **options)
    assert len(made) == 1800 * options.get("rounds", 1)
    borders = np.flatnonzero(np.diff(made.domain)) + 1
    assert borders[0] == max(np.diff(borders)) == options.get("every", 64)
    first = made.index[made.domain == 0]
    assert len(np.unique(first)) == 600
    repeats = (LABELS[first][1:] == LABELS[first][:-1]).mean()
    assert bool(repeats > 0.2) is ("delta" in options)


class Blank(ImageDataset):
    def __init__(self):
        self.domain, self.labels, self.ids = "fog/5", LABELS, [str(index) for index in range(len(LABELS))]

    def read(self, index):
        return np.zeros((8, 6, 3), np.uint8)


def test_bad_frames_are_strewn_in_and_have_no_labels():
    frames = BadFrames(8, 6)
    made = orders.outliers(Blank(), seed=1, batch_size=16)
    bad = made.domain == made.domains.index(frames.domain)
    assert 3 < bad.sum() < 30
    assert np.array_equal(made.index[~bad], orders.iid({"fog/5": LABELS}, seed=1).index)
    assert BadFrames.of(frames.domain).read(2).shape == (8, 6, 3)
    assert frames.labels is None
    pictures = [frames.read(index) for index in range(len(frames))]
    assert {picture.shape for picture in pictures} == {(8, 6, 3)}
    assert {0.0, 255.0} < {float(picture.mean()) for picture in pictures}


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda data: orders.dominant(data, share=1.5), "share"),
        (lambda data: orders.bursts(data, length=0), "length"),
        (lambda data: orders.bursts(data, lenght=5), "length"),
        (lambda data: orders.some_classes(data, classes=0), "classes"),
    ],
)
def test_wrong_options_are_named(make, option):
    with pytest.raises(OptionError, match=option):
        make({"fog/5": LABELS})
