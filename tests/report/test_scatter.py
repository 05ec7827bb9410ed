from __future__ import annotations

import math

import pytest

from neotta.evaluate.metrics import Interval
from neotta.report.charts import LARGEST, SMALLEST, SizedPoint, area, scatter_chart
from neotta.report.figures import Figure


def points(*xs, size=100.0):
    return [SizedPoint(f"method-{place}", x, Interval(50.0, 2.0, 3), size) for place, x in enumerate(xs)]


@pytest.mark.parametrize(
    ("shown", "scale"),
    [
        (points(1.0, 2.0, 3.0), "linear"),
        (points(0.1, 30.0), "log"),
        (points(0.1, 30.0, size=math.nan), "log"),
        ([SizedPoint("alone", 1.0, Interval(50.0, math.nan, 1), 3.0)], "linear"),
    ],
)
def test_every_point_is_named_and_times_that_differ_widely_get_a_logarithmic_axis(shown, scale):
    drawn = []

    def draw(canvas):
        scatter_chart(shown, sizes="memory", unit="MiB")(canvas)
        drawn.append(canvas)

    Figure("test", "", draw, [], size=(7.0, 4.2)).png()
    assert drawn[0].axes[0].get_xscale() == scale
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names == [point.name for point in shown]
    assert len(drawn[0].legends) == (1 if math.isnan(shown[0].size) else 2)


def test_areas_are_proportional_but_never_invisible():
    assert area(400.0, 400.0) == LARGEST
    assert area(200.0, 400.0) == LARGEST / 2
    assert area(0.0, 400.0) == SMALLEST
    assert area(math.nan, 400.0) == SMALLEST


def test_control_characters_are_escaped():
    names = ["esc\x1b[31m", "nul\x00", "$x_1$"]
    shown = [SizedPoint(name, 1.0 + place, Interval(2.0, 1.0, 3), 3.0) for place, name in enumerate(names)]
    page = Figure("test", "", scatter_chart(shown, x="\x07", y="\x1b"), []).svg()
    assert all(each in page for each in ("esc\\x1b[31m", "nul\\x00", "$x_1$", "\\x07"))
