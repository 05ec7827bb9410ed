"""A corruption that never stops changing: paths of constant difficulty, and images at severities in between."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.data import corrupt, digits, orders
from neotta.data.blended import Blend, BlendedDataset, scored_as
from neotta.data.changing import MEASURED, STEP, Point, contour, held_out
from neotta.data.orders import Skew
from neotta.errors import DataError, OptionError, UnknownNameError


@given(st.floats(0.5, 3), st.floats(0.5, 3), st.floats(20, 80))
def test_a_contour_keeps_the_accuracy_and_moves_slowly(one, other, target):
    asked = []

    def measure(blend):
        asked.append(blend)
        return 100 * np.exp(-(one * blend.first_severity**1.5 + other * blend.second_severity**1.5) / 4)

    path = contour("fog", "snow", measure, target)
    assert len(set(asked)) <= MEASURED
    start, stop = path[0].blend, path[-1].blend
    assert start.second_severity == stop.first_severity == 0
    for point in path:
        assert 0 <= min(point.blend[1], point.blend[3]) <= max(point.blend[1], point.blend[3]) <= 5
        assert abs(measure(point.blend) - target) < 20
    for before, after in itertools.pairwise(path):
        assert max(abs(before.blend[place] - after.blend[place]) for place in (1, 3)) <= STEP + 0.02


def test_a_contour_ends_at_the_strongest_where_nothing_is_hard_enough():
    path = contour("fog", "snow", lambda blend: 90.0, 50)
    assert path[0] == Point(Blend("fog", 5.0, "snow", 0.0), 90.0)
    assert path[-1].blend == Blend("fog", 0.0, "snow", 5.0)


def test_names_of_blends_are_read_back():
    blend = Blend("py:dir/x.py:mine", 2.25, "snow", 0.5)
    assert blend.name == "py:dir/x.py:mine@2.25+snow@0.5"
    assert Blend.parse(blend.name) == blend
    assert scored_as(blend.name) == "py:dir/x.py:mine+snow"
    assert Blend.parse("fog/5") is None
    assert scored_as("fog/5") == "fog/5"


def test_severities_between_published_ones_are_means_of_images():
    data = digits("test")

    def seen(*blend):
        return BlendedDataset(data, Blend(*blend), "cifar").read(7).astype(float)

    def alone(kind, severity):
        return corrupt(data.read(7), kind, severity, "cifar", 0, image_id=data.ids[7]).astype(float)

    assert np.array_equal(seen("fog", 0.0, "snow", 0.0), data.read(7))
    assert np.array_equal(seen("fog", 3.0, "snow", 0.0), alone("fog", 3))
    assert np.array_equal(seen("fog", 0.0, "contrast", 4.0), alone("contrast", 4))
    between = 0.75 * alone("fog", 2) + 0.25 * alone("fog", 3)
    assert np.abs(seen("fog", 2.25, "snow", 0.0) - between).max() <= 0.5
    both = corrupt(alone("fog", 3).astype(np.uint8), "contrast", 2, "cifar", 0, image_id=data.ids[7])
    assert np.array_equal(seen("fog", 3.0, "contrast", 2.0), both)


def test_blends_have_digests_of_their_own_and_refuse_what_is_not_there():
    data = digits("test")
    made = [BlendedDataset(data, Blend("fog", severity, "snow", 1.0), "cifar", seed) for severity, seed in
            ((1.0, 0), (1.25, 0), (1.0, 1))]  # fmt: skip
    assert len({each.digest(0) for each in made}) == 3
    assert len({each.domain for each in made}) == 2
    with pytest.raises(DataError, match="from 0 to 5"):
        BlendedDataset(data, Blend("fog", 5.5, "snow", 1.0), "cifar")
    with pytest.raises(UnknownNameError, match="did you mean 'fog'"):
        BlendedDataset(data, Blend("fogg", 1.0, "snow", 1.0), "cifar")


PATH = [Point(Blend("fog", 2.0, "snow", level), 50.0) for level in (0.0, 0.5, 1.0)]
LABELS = np.arange(60) % 6


def test_each_point_of_the_path_is_shown_for_a_while_over_and_over():
    order = orders.changing({"clean": LABELS}, PATH, samples=100, samples_per_step=7, seed=3)
    assert len(order) == 100
    steps = np.arange(100) // 7 % 3
    assert np.array_equal(order.domain, steps)
    assert sorted(order.index[:60]) == list(range(60))  # no image comes again before all were shown
    assert not np.array_equal(order.index[:40], order.index[60:])
    assert order.hash() != orders.changing({"clean": LABELS}, PATH, samples=100, samples_per_step=7, seed=4).hash()
    assert order.hash() != orders.changing({"clean": LABELS}, PATH, samples=100, samples_per_step=8, seed=3).hash()


def test_images_that_calibrate_are_not_shown_and_labels_may_be_skewed(tmp_path):
    chosen, pool = held_out(60, 20)
    assert sorted([*chosen, *pool]) == list(range(60))
    order = orders.changing({"clean": LABELS}, PATH, pool=pool, samples=-1, skew=Skew(delta=0.01))
    assert sorted(order.index) == sorted(pool)
    seen = LABELS[order.index]
    assert (seen[1:] == seen[:-1]).mean() > 0.35  # 0.15 without
    order.save(tmp_path / "o.json")
    assert orders.Order.load(tmp_path / "o.json").parameters["path"][1] == ["fog@2+snow@0.5", 50.0]
    with pytest.raises(DataError, match="at most half"):
        held_out(60, 31)
    with pytest.raises(OptionError, match="samples_per_step"):
        orders.changing({"clean": LABELS}, PATH, samples_per_step=0)
