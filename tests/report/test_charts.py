"""The pieces that figures are drawn with."""

import math
from xml.etree import ElementTree

import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Canvas

from neotta.evaluate.metrics import Interval
from neotta.report.charts import Panel, Ranking, Series, legend, line_chart, lines, ranking_chart
from neotta.report.figures import Figure


def test_the_interval_of_a_single_point_is_seen():
    axes = Canvas().subplots()
    lines(axes, {"neo": Series([64], [10.0], [(8.0, 13.0)])})
    (whisker,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert whisker.get_segments()[0].tolist() == [[64, 8], [64, 13]]
    assert axes.get_legend_handles_labels()[1] == ["NEO"]


def test_panels_share_one_legend_and_name_their_ticks():
    canvas, ticks = Canvas(), [1, 2, 4]
    series = {"neo": Series(ticks, [1.0, 2.0, 3.0])}
    line_chart(Panel(series, "samples", "gain", ticks=ticks, zero=True), Panel(series, title="clean"))(canvas)
    first, second = canvas.axes
    assert [text.get_text() for text in first.get_xticklabels()] == ["1", "2", "4"]
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    assert (first.get_xlabel(), first.get_ylabel(), second.get_title()) == ("samples", "gain", "clean")
    assert len(canvas.legends) == 1


def test_a_bar_without_a_value_is_left_out_and_changes_show_zero():
    canvas = Canvas()
    nothing = math.nan
    values = {name: Interval(*ends, 3) for name, ends in {"neo": (2.0, 3.0), "foa": (nothing, nothing)}.items()}
    values["lame"] = Interval(-1.0, nothing, 3)
    ranking_chart(Ranking(values, "change", sign="+"), Ranking(values, "the same", digits=0))(canvas)
    axes = canvas.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["NEO", "FOA", "LAME"]
    assert [text.get_text() for text in axes.texts] == ["+2.0", "-1.0"]
    assert [text.get_text() for text in canvas.axes[1].texts] == ["2", "-1"]
    low, high = axes.get_xlim()
    assert low < -1.0 < 5.0 < high, "the whole interval of a change"


def test_whiskers_reach_from_one_end_of_the_interval_to_the_other():
    canvas = Canvas()
    ranking_chart(Ranking({"neo": Interval(2.3, 2.5, 3, low=0.5, high=4.8)}, "change", sign="+"))(canvas)
    (whisker,) = [each for each in canvas.axes[0].collections if isinstance(each, LineCollection)]
    assert whisker.get_segments()[0][:, 0].tolist() == pytest.approx([0.5, 4.8])


def test_shares_have_no_axis_beyond_100_percent():
    canvas = Canvas()
    line_chart(Panel({"neo": Series([1, 2], [99.0, 98.0], [(95.0, 103.0), (58.0, 138.0)])}, y="accuracy (%)"))(canvas)
    low, high = canvas.axes[0].get_ylim()
    assert (low, high) <= (60, 101)
    canvas = Canvas()
    ranking_chart(Ranking({"neo": Interval(99.0, 4.0, 3), "none": Interval(96.0, 1.0, 3)}, "accuracy in %"))(canvas)
    assert max(canvas.axes[0].get_xticks()) == 100
    canvas = Canvas()
    ranking_chart(Ranking({"neo": Interval(150.0, 4.0, 3)}, "gain in %", sign="+"))(canvas)
    assert max(canvas.axes[0].get_xticks()) > 100


def test_a_dollar_sign_in_a_name_is_a_dollar_sign():
    names = ["$broken_{", "a $ b $ c", "\\frac{"]

    def draw(canvas):
        lines(canvas.subplots(), {name: Series([1, 2], [1.0, 2.0]) for name in names})
        canvas.axes[0].legend()
        canvas.axes[0].set_title(names[0])

    figure = Figure("name", "title", draw, [])
    assert figure.png().startswith(b"\x89PNG")
    assert all(name in figure.svg() for name in names)


def test_names_that_are_no_text_are_drawn_and_named():
    names = ["_hidden", "bell\x07", "clear\x1b[2J", "nul\x00"]

    def draw(canvas):
        axes = canvas.subplots()
        lines(axes, {name: Series([1, 2], [1.0, 2.0]) for name in names})
        legend(canvas, axes)
        axes.set_xticks([1, 2], labels=["one\x1b", "two"])

    figure = Figure("name", "title", draw, [])
    assert figure.png().startswith(b"\x89PNG")  # and no warning of glyphs that no font has
    texts = {element.text for element in ElementTree.fromstring(figure.svg()).iter() if element.text}
    assert {" _hidden", "bell\\x07", "clear\\x1b[2J", "nul\\x00", "one\\x1b"} <= texts
