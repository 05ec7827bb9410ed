from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from neotta.cli.bench import _table
from neotta.evaluate.costs import Conditions, Cost

QUICK = ("--batch-size", "4", "--batches", "2", "--threads", "1")


@pytest.mark.slow
def test_costs_as_json(command):
    done = command("bench", "--methods", "tent,neo-bn,tent", "--model", "timm:test_vit", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [cost] = found["costs"]
    assert (cost["method"], cost["forward_passes"], cost["backward_passes"]) == ("tent", 1, 1)
    assert cost["seconds_per_image"] > 0
    assert cost["slowdown"] == pytest.approx(cost["seconds_per_image"] / cost["plain_seconds_per_image"])
    assert cost["conditions"]["batch_size"] == 4
    assert found["machine"]["cores"]
    assert "BatchNorm" in found["failed"]["neo-bn"]
    assert "1 of 3" in done.stderr  # how far the work is, out of the way of the result


def cost(method, **changes):
    figures = {
        "seconds_per_image": 0.02,
        "plain_seconds_per_image": 0.01,
        "forward_passes": 2.0,
        "backward_passes": 1.0,
        "peak_memory": 300 * 2**20,
        "memory_above_plain": 25 * 2**20,
        "flops_per_image": 1.5e9,
        **changes,
    }
    return Cost(method, "paper", {}, Conditions("digits"), threads=1, image_size=(32, 32), **figures)


def test_the_table_lists_the_cheapest_first():
    costs = {"tent": cost("tent"), "neo": cost("neo", seconds_per_image=0.0101, memory_above_plain=None)}
    text = io.StringIO()
    Console(file=text, width=80).print(_table(costs))
    title, plain, neo, tent = (line.split() for line in text.getvalue().splitlines())
    assert title == ["method", "ms/image", "x", "plain", "images/s", "+MiB", "forward", "backward", "GFLOP"]
    assert plain == ["plain", "10", "1.00", "100", "0", "1", "0"]
    assert neo == ["neo", "10.1", "1.01", "99", "?", "2", "1", "1.5"]
    assert tent == ["tent", "20", "2.00", "50", "25", "2", "1", "1.5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "tnet"), "unknown method 'tnet': did you mean 'tent'?"),
        (("--methods", ","), "--methods names no method"),
        (("--device", "abacus"), "got device 'abacus'"),
    ],
)
def test_errors_are_one_line(command, words, message):
    done = command("bench", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("neotta: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
