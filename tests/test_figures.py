"""The pieces that figures are drawn with."""

import math

from matplotlib.figure import Figure as Canvas

from neotta.report.figures import Bars, bars


def test_a_name_without_a_value_in_the_first_group_is_in_the_legend():
    axes = Canvas().subplots()
    bars(axes, Bars(["one", "two"], {"neo": [1.0, 2.0], "foa": [math.nan, 3.0], "lame": [math.nan, math.nan]}))
    assert axes.get_legend_handles_labels()[1] == ["neo", "foa"]
