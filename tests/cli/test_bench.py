from __future__ import annotations

import json
import subprocess
import sys

import pytest


def run(*words):
    return subprocess.run([sys.executable, "-m", "neotta", "bench", *words], capture_output=True, text=True)


QUICK = ("--batch-size", "4", "--batches", "2", "--threads", "1")


@pytest.mark.slow
def test_costs_as_json():
    done = run("--methods", "neo,tent,neo", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    costs = {cost["method"]: cost for cost in found["costs"]}
    assert list(costs) == ["neo", "tent"]
    assert costs["neo"]["forward_passes"] == 1
    assert (costs["neo"]["backward_passes"], costs["tent"]["backward_passes"]) == (0, 1)
    for cost in costs.values():
        assert cost["seconds_per_image"] > 0
        assert cost["slowdown"] == pytest.approx(cost["seconds_per_image"] / cost["plain_seconds_per_image"])
        assert cost["conditions"]["batch_size"] == 4
    assert found["machine"]["cores"]
    assert "neo" in done.stderr  # how far the work is, out of the way of the result


@pytest.mark.slow
def test_a_table_and_what_cannot_be_measured():
    done = run("--methods", "none,neo-bn", "--model", "timm:test_vit", *QUICK)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "timm:test_vit, float32, batches of 4 images" in lines[0]
    rows = {line.split("  ")[0]: line for line in lines}
    assert "ms/image" in rows["method"]
    assert "1.00" in rows["the plain model"]
    assert "none" in rows
    assert any(line.startswith("left out: neo-bn (") and "BatchNorm" in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "tnet"), "unknown method 'tnet': did you mean 'tent'?"),
        (("--methods", ","), "--methods names no method"),
        (("--device", "abacus"), "got device 'abacus'"),
    ],
)
def test_errors_are_one_line(words, message):
    done = run(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("neotta: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
