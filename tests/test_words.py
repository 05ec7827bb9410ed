from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from neotta._words import printable


@given(st.text())
def test_nothing_that_reaches_a_terminal_controls_it(text):
    shown = printable(text)
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    assert "\x1b" not in shown
    assert "\r" not in shown


def test_control_characters_are_shown_escaped_and_names_stay():
    assert printable("évil\x1b[2J\x07\u202e\r 名前") == "évil\\x1b[2J\\x07\\u202e\\r 名前"
