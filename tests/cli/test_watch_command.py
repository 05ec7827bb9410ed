"""What is shown of long work: lines where there is no terminal, a bar where there is one."""

import io
import re
import time

from rich.console import Console

from neotta.cli.console import progress_bar
from neotta.cli.watch import watching
from neotta.evaluate.records import Record


def shown(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    with watching(console, every=0.0) as watcher:
        watcher.measuring("the plain model", 0, 2)
        watcher.measuring("neo", 1, 2)
        watcher.planned([None] * 2, 3, 0)
        watcher.recorded(Record(key="1", method="[neo]", domain="fog/5", status="ok", metrics={"top1": 50.0}))
        watcher.recorded(Record(key="2", method="tent", domain="fog/5", status="failed"))
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())  # without colours


def test_lines_where_there_is_no_terminal():
    assert shown(False).splitlines() == [
        "1 of 2: measuring the plain model",
        "2 of 2: measuring neo",
        "2 runs to do, 3 already recorded; 0 images to encode",
        "1 of 2: [neo] on fog/5: 50.0 %",
        "2 of 2: tent on fog/5: failed",
    ]


def test_lines_tell_how_long_a_step_still_takes():
    console = Console(file=io.StringIO(), width=100)
    with progress_bar(console, every=0.0) as show:
        show("encoding images", 500, 1000)  # of which 500 were known
        time.sleep(0.2)
        for done in (600, 1000):
            show("encoding images", done, 1000)
    first, second, third = console.file.getvalue().splitlines()
    assert (first, third) == ("500 of 1000: encoding images", "1000 of 1000: encoding images")
    assert float(re.fullmatch(r"600 of 1000: encoding images, about (\d+) s left", second)[1]) >= 1


def test_short_work_shows_no_line():
    console = Console(file=io.StringIO(), width=100)
    with progress_bar(console) as show:
        show("encoding images", 0, 2)
        show("encoding images", 2, 2)
    assert console.file.getvalue() == ""


def test_a_bar_in_a_terminal():
    text = shown(True)
    assert "2 runs to do, 3 already recorded" in text
    assert "tent on fog/5: failed" in text
    assert "2/2" in text
