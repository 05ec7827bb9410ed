"""Items by their names."""

import pytest

from neotta.errors import OptionError
from neotta.paper.item import ORDER, chosen, items


def names(*asked):
    return [item.name for item in chosen(list(asked))]


def test_every_item_has_its_place_in_the_report():
    assert list(items()) == ORDER.split()


def test_each_item_says_what_it_asks():
    for item in items().values():
        assert item.title
        assert item.question.endswith("?")
        assert bool(item.claim) == bool(item.place)


def test_items_come_in_the_order_asked_for_each_once():
    assert names("samples", "corruptions", "samples") == ["samples", "corruptions"]
    assert names("samples", "all") == list(items())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("coruptions", "did you mean 'corruptions'"),
        ("reliabilty", "did you mean 'reliability'"),
        ("xyz", "known: methods, tradeoff"),
        ("", "known: methods, tradeoff"),
    ],
)
def test_unknown_names_get_a_suggestion(asked, message):
    with pytest.raises(OptionError, match=message):
        chosen(["all", asked])
