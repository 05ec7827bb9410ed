"""What is shown of long work: lines where there is no terminal, a live table where there is one."""

import io
import re

import pytest
from rich.console import Console

from neotta.cli.watch import watching


def test_each_measurement_of_time_and_memory_is_told():
    console = Console(file=io.StringIO(), force_terminal=False)
    with watching(console, jobs=1) as watcher:
        watcher.measuring("the plain model", 0, 2)
        watcher.measuring("neo", 1, 2)
    lines = console.file.getvalue().splitlines()
    assert lines == ["measuring 1 of 2: the plain model", "measuring 2 of 2: neo"]


@pytest.mark.parametrize("told", [True, False])
def test_in_a_terminal_it_stands_in_the_place_of_the_table(told):
    console = Console(file=io.StringIO(), force_terminal=True)
    with watching(console, jobs=1) as watcher:
        if told:
            watcher.measuring("neo", 1, 2)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # without colours
    assert ("measuring 2 of 2: neo" if told else "opening the model") in shown
