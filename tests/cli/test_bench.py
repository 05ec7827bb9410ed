from __future__ import annotations

import io

import pytest
from rich.console import Console

import neotta
from neotta.cli.bench import _table
from neotta.evaluate.costs import CostConditions, cost_record
from neotta.evaluate.provenance import _processor
from neotta.evaluate.records import Records

QUICK = ("--batch-size", "4")


@pytest.mark.slow
def test_costs_are_records(tmp_path, command, small_model):
    file = tmp_path / "costs.jsonl"
    words = (small_model, "--methods", "neo,neo,neo-bn", *QUICK, "--output", file)
    done = command("bench", *words)
    assert done.returncode == 0, done.stderr
    (cost,) = Records(file).read()
    assert (cost.kind, cost.method, cost.model) == ("cost", "neo", small_model)
    assert (cost.forward_passes, cost.backward_passes) == (1, 0)
    assert cost.seconds_per_image > 0
    assert cost.slowdown == pytest.approx(cost.seconds_per_image / cost.plain_seconds_per_image)
    assert cost.conditions["batch_size"] == 4
    assert cost.peak_memory > cost.memory_above_plain >= 0
    assert cost.machine["cores"]
    said = " ".join(done.stderr.split())
    assert "left out: neo-bn" in done.stdout
    assert "BatchNorm" in done.stdout
    assert "3 of 3" in said  # how far the work is, out of the way of the result
    assert "1 records added" in said
    (row,) = neotta.results(file).frame().to_dict("records")
    assert (row["method"], row["conditions.batch_size"]) == ("neo", 4)


def test_measured_again_a_cost_takes_the_place_of_the_old_one(tmp_path):
    records = Records(tmp_path / "costs.jsonl")
    for found in (cost("neo"), cost("neo", seconds_per_image=0.5), cost("tent")):
        records.append(found)
    assert [(record.method, record.seconds_per_image) for record in records.read()] == [
        ("neo", 0.5),
        ("tent", 0.02),
    ]


def test_a_board_is_named_where_the_processor_has_no_name(tmp_path):
    (tmp_path / "proc" / "device-tree").mkdir(parents=True)
    (tmp_path / "proc" / "cpuinfo").write_text("processor\t: 0\nCPU part\t: 0xd0b\n")
    assert _processor(tmp_path)  # some name there always is
    (tmp_path / "proc" / "device-tree" / "model").write_text("Raspberry Pi 5 Model B Rev 1.0\0")
    assert _processor(tmp_path) == "Raspberry Pi 5 Model B Rev 1.0"
    (tmp_path / "proc" / "cpuinfo").write_text("model name\t: A processor: fast\n")
    assert _processor(tmp_path) == "A processor: fast"


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
    about = {"method": method, "preset": "paper", "options": {}}
    return cost_record(CostConditions(model="digits"), about, {"threads": 1, "image_size": (32, 32), **figures})


def test_the_table_lists_the_cheapest_first():
    costs = {"tent": cost("tent"), "neo": cost("neo", seconds_per_image=0.0101, memory_above_plain=None)}
    text = io.StringIO()
    Console(file=text, width=80).print(_table(costs))
    title, plain, neo, tent = (line.split() for line in text.getvalue().splitlines())
    assert title == ["method", "ms/image", "x", "plain", "images/s", "+MiB", "forward", "backward", "GFLOP"]
    assert plain == ["plain", "10", "1.00", "100", "0", "1", "0"]
    assert neo == ["neo", "10.1", "1.01", "99", "?", "2", "1", "1.5"]
    assert tent == ["tent", "20", "2.00", "50", "25", "2", "1", "1.5"]


def test_columns_agree_where_the_device_was_busy_during_one_method():
    busy = cost("neo", seconds_per_image=0.044, plain_seconds_per_image=0.040, slowdown_error=0.5)
    text = io.StringIO()
    Console(file=text, width=90).print(_table({"neo": busy, "tent": cost("tent")}))
    _, plain, neo, tent, *_ = (line.split() for line in text.getvalue().splitlines())
    assert plain[1:3] == ["25", "1.00"]
    assert neo[:5] == ["neo", "27.5", "1.10", "±0.50", "36"]
    assert tent[:4] == ["tent", "50", "2.00", "20"], "slower than NEO in every column"


def test_what_was_too_noisy_is_named():
    assert (
        "for neo:" in _table({"neo": cost("neo", slowdown_error=0.5), "tent": cost("tent", slowdown_error=0.1)}).caption
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "tnet"), "unknown method 'tnet': did you mean 'tent'?"),
        (("--methods", ","), "--methods names no method"),
        (("--device", "abacus"), "option 'device' of the costs of 'digits' is 'abacus'"),
        (("--output", "."), "'.' is a folder"),
    ],
)
def test_errors_are_one_line(words, message, command):
    done = command("bench", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("neotta: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
