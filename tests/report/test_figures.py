"""The pieces that figures are drawn with."""

import math

from matplotlib.figure import Figure as Canvas

from neotta.report.figures import Bars, Series, bars, lines


def test_a_name_without_a_value_in_the_first_group_is_in_the_legend():
    axes = Canvas().subplots()
    bars(axes, Bars(["one", "two"], {"neo": [1.0, 2.0], "foa": [math.nan, 3.0], "lame": [math.nan, math.nan]}))
    assert axes.get_legend_handles_labels()[1] == ["neo", "foa"]


def test_the_interval_of_a_single_point_is_seen():
    axes = Canvas().subplots()
    lines(axes, {"neo": Series([64], [10.0], [3.0])})
    low, high = axes.get_ylim()
    assert len(axes.containers) == 1
    assert low < 7.0 < 13.0 < high
    assert axes.get_legend_handles_labels()[1] == ["neo"]
