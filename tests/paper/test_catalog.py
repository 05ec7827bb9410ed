"""Items by their names."""

from pathlib import Path

import pytest

from neotta.errors import OptionError
from neotta.paper import items as package
from neotta.paper.catalog import chosen, items


def names(*asked):
    return [item.name for item in chosen(list(asked))]


def test_every_file_holds_one_item_that_is_called_like_it():
    files = {path.stem.replace("_", "-") for path in Path(package.__file__).parent.glob("*.py")} - {"--init--"}
    assert set(items()) == files
    assert [item.order for item in items().values()] == list(range(1, 1 + len(files)))
    assert not any(name.startswith(("table-", "figure-")) for name in items())


def test_each_item_says_what_it_asks():
    for item in items().values():
        assert item.title
        assert item.question.endswith("?")
        assert bool(item.claim) == bool(item.place)


@pytest.mark.parametrize("name", list(items()))
def test_the_names_from_before_still_find_it(name):
    assert names(name) == names(f"table-{name}") == names(f"figure-{name}") == [name]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("corr", "corruptions"),
        ("table-corr", "corruptions"),
        ("continual", "continual"),  # also the beginning of continual-start
        ("continual-s", "continual-start"),
        ("batch_size", "batch-size"),
        ("stacked-methods", "stacks"),
    ],
)
def test_beginnings_and_other_spellings_find_it(asked, found):
    assert names(asked) == [found]


def test_items_come_in_the_order_asked_for_each_once():
    assert names("samples", "corruptions", "table-samples") == ["samples", "corruptions"]
    assert names("samples", "all") == list(items())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("coruptions", "did you mean 'corruptions'"),
        ("figure-reliabilty", "did you mean 'reliability'"),
        ("c", "ambiguous: it could be corruptions, calibration, classes, continual"),
        ("xyz", "see neotta paper --list"),
        ("", "see neotta paper --list"),
    ],
)
def test_unknown_names_get_a_suggestion(asked, message):
    with pytest.raises(OptionError, match=message):
        chosen(["all", asked])
