from __future__ import annotations

import itertools
import math

import pytest

from neotta.report.figures import Figure
from neotta.report.scatter import LARGEST, SMALLEST, Point, area, scatter_chart

APART = [Point("a", 1.0, 10.0, 100.0), Point("b", 2.0, 20.0, 200.0), Point("c", 3.0, 15.0, 400.0)]
CROWDED = [Point(f"method-{number}", 1.0 + number / 100, 50.0 + number / 100, 100.0, 5.0) for number in range(7)]
WIDE = [Point("quick", 0.1, 50.0, math.nan), Point("slow", 30.0, 60.0, math.nan)]


def drawn(points):
    """The axes as they are drawn, and the rectangles of the names on them in pixels."""
    kept = {}

    def draw(canvas):
        scatter_chart(points, sizes="memory", unit="MiB")(canvas)
        kept["canvas"], kept["axes"] = canvas, canvas.axes[0]

    Figure("test", "", draw, [], size=(7.0, 4.2)).png()
    kept["canvas"].draw_without_rendering()
    texts = [text for text in kept["axes"].texts if text.get_text()]
    return kept["axes"], {text.get_text(): text.get_window_extent() for text in texts}


@pytest.mark.parametrize("points", [APART, CROWDED, WIDE, APART[:1]])
def test_every_point_is_named_and_no_name_covers_another_or_leaves_the_axes(points):
    axes, boxes = drawn(points)
    assert set(boxes) == {point.name for point in points}
    for one, other in itertools.combinations(boxes.values(), 2):
        assert not one.overlaps(other)
    frame = axes.get_window_extent()
    for box in boxes.values():
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1


def test_names_stand_beside_points_not_on_them():
    axes, boxes = drawn(APART)
    for point in APART:
        x, y = axes.transData.transform((point.x, point.y))
        assert not any(box.contains(x, y) for box in boxes.values())


def test_areas_are_proportional_but_never_invisible():
    assert area(400.0, 400.0) == LARGEST
    assert area(200.0, 400.0) == LARGEST / 2
    assert area(0.0, 400.0) == SMALLEST
    assert area(math.nan, 400.0) == SMALLEST


def test_times_that_differ_widely_get_a_logarithmic_axis():
    assert drawn(WIDE)[0].get_xscale() == "log"
    assert drawn(APART)[0].get_xscale() == "linear"


def test_control_characters_are_escaped_before_names_are_placed():
    names = ["esc\x1b[31m", "nul\x00", "$x_1$"]
    chart = scatter_chart([Point(name, 1.0 + place, 2.0, 3.0) for place, name in enumerate(names)], x="\x07", y="\x1b")
    page = Figure("test", "", chart, []).svg()  # and no warning of glyphs that no font has
    assert all(shown in page for shown in ("esc\\x1b[31m", "nul\\x00", "$x_1$", "\\x07"))
