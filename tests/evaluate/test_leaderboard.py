"""Which rows are ranked together, what is said of them, and how they can be measured again."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
from support.answered import packed, records_of
from support.benches import open_bench
from typer.testing import CliRunner

from neotta.cli.app import app
from neotta.cli.config import read_config
from neotta.evaluate.leaderboard import leaderboard
from neotta.evaluate.plan import Plan
from neotta.evaluate.reproduce import reproducing_command
from neotta.evaluate.statistics import difference

DOMAINS = ("fog/5", "snow/5")


def made(right, **more):
    found = records_of(right, DOMAINS)
    for record in found:
        record["metrics"]["ece"] = 0.1
        record |= {"code": f"code of {record['method']}", "preset": "paper", "seconds": 4.0, "stream": "iid", **more}
    return found


def test_rows_are_ranked_by_accuracy_on_the_same_images():
    records = made({"none": (200, 200), "neo": (260, 280), "tent": (259, 281)})
    (group,) = leaderboard({"mine.jsonl": records})
    assert [(row.rank, row.label, row.accuracy.mean) for row in group.rows] == [
        (1, "neo", 67.5), (1, "tent", 67.5), (3, "none", 50.0),
    ]  # fmt: skip
    assert (group.domains, group.seeds, group.severities) == (list(DOMAINS), [1, 2], ["5"])
    best, level, last = group.rows
    assert best.behind is None
    assert level.behind.verdict == "can't tell"
    assert last.behind.verdict == "hurts"
    right = [np.concatenate([np.arange(400) < count for count in counts]) for counts in ((200, 200), (260, 280))]
    images = np.concatenate([np.arange(400), np.arange(400)])
    expected = difference([right[0]] * 2, [right[1]] * 2, [images, images + 400])
    assert last.behind.interval.ends == pytest.approx((100 * expected.low, 100 * expected.high))
    assert best.error.mean == pytest.approx(0.1)
    assert (best.seconds, best.with_encoder) == (0.01, True)


@pytest.mark.parametrize(
    "changed",
    [{"weights": "other"}, {"manifests": ["other"]}, {"preprocess": {"resize": 256}}],
    ids=["weights", "orders", "preprocessing"],
)
def test_rows_that_do_not_match_are_not_ranked_together(changed):
    first, second = made({"none": (200, 200)}), made({"neo": (260, 280)}, **changed)
    groups = leaderboard({"a": first, "b": second})
    assert [[row.label for row in group.rows] for group in groups] in ([["none"], ["neo"]], [["neo"], ["none"]])
    (name,) = [name for name in groups[0].identity._fields if len({getattr(g.identity, name) for g in groups}) > 1]
    assert name == {"weights": "weights", "manifests": "orders", "preprocess": "preprocess"}[next(iter(changed))]


def test_a_row_without_a_domain_or_a_seed_is_not_ranked_with_whole_ones():
    whole, part = made({"none": (200, 200)}), made({"neo": (260, 280)})
    assert len(leaderboard({"a": whole, "b": [record for record in part if record["seed"] == 1]})) == 2
    assert len(leaderboard({"a": whole, "b": [record for record in part if record["domain"] == "fog/5"]})) == 2
    assert len(leaderboard({"a": whole, "b": part})) == 1


def test_names_of_models_and_folders_do_not_matter():
    groups = leaderboard({"a": made({"none": (200, 200)}), "b": made({"neo": (260, 280)}, model="n", data="elsewhere")})
    assert [row.label for row in groups[0].rows] == ["neo", "none"]
    assert (groups[0].models, groups[0].data) == (["m", "n"], ["d", "elsewhere"])


def test_the_same_numbers_of_several_people_are_one_row_and_others_are_marked():
    mine, yours = made({"neo": (260, 280)}), list(reversed(made({"neo": (260, 280)})))
    (group,) = leaderboard({"mine": mine, "yours": yours})
    assert [(row.files, row.differs) for row in group.rows] == [(["mine", "yours"], False)]
    (group,) = leaderboard({"mine": mine, "yours": made({"neo": (260, 281)})})
    assert [(row.files, row.differs) for row in group.rows] == [(["yours"], True), (["mine"], True)]
    (group,) = leaderboard({"mine": mine, "yours": made({"neo": (260, 281)}, code="other code")})
    assert [(row.code, row.differs) for row in group.rows] == [("other code", False), ("code of neo", False)]


def test_what_cannot_be_ranked_is_left_out():
    records = made({"none": (200, 200)})
    broken = [
        {**records[0], "status": "failed", "error": "it broke"},
        {**records[0], "manifests": []},
        {**records[0], "metrics": {"entropy": 1.0}},
        {**records[0], "metrics": {"top1": "very good"}},
        {**records[0], "metrics": {"top1": float("nan")}},
        {**records[0], "answers": {**packed([True]), "right": "damaged"}},
        {"key": "x", "method": "foa", "left_out": "needs clean images"},
    ]
    assert leaderboard({"a": broken}) == []


def test_costs_of_the_same_method_and_model_stand_beside():
    cost = {"kind": "cost", "key": "c", "status": "ok", "method": "neo", "model": "m", "options": {}, "slowdown": 1.5}
    other = {**cost, "model": "another"}
    (group,) = leaderboard({"a": [*made({"none": (200, 200), "neo": (260, 280)}), cost], "b": [other]})
    assert [row.cost for row in group.rows] == [cost, None]


# ---- commands


def repeated(plan):
    """The records of a plan, and the words of the command that is behind them."""
    bench = open_bench(Plan.make(plan))
    records = [bench.execute(run)[0] for run in bench.runs()]
    words = shlex.split(reproducing_command(records))
    assert words[:2] == ["neotta", "run"]
    return records, words


@pytest.mark.parametrize(
    "plan",
    [
        {"corruptions": ["fog", "snow"], "severities": [3, 5], "methods": "neo-continual:alpha=0.05,debias=true"},
        {"corruptions": ["clean", "fog"], "methods": "sar@original:lr=0.01", "batch_sizes": [4]},
        {"corruptions": ["fog"], "methods": "neo", "order": "correlated", "order_options": {"delta": 0.5}},
        {"corruptions": ["fog"], "methods": "neo", "protocol": "hold-out", "held_out_samples": 9},
        {"corruptions": ["fog", "snow"], "methods": "neo", "protocol": "continual"},
        {"domains": ["test"], "methods": "neo:shrinkage=james-stein", "model_options": {"preprocess": {"resize": 20}}},
    ],
)
def test_the_command_asks_for_the_same_runs(plan, tmp_path):
    records, words = repeated({"samples": [8], "seeds": [2020], **plan})
    shown = CliRunner().invoke(app, [*words[1:], "--print-config"])
    assert shown.exit_code == 0, shown.output
    config = tmp_path / "plan.toml"
    config.write_text(shown.stdout, encoding="utf-8")
    again = open_bench(Plan.make(read_config(config)))
    assert {again.key(run) for run in again.runs()} == {record["key"] for record in records}
    assert words[-2:] == ["-o", "check.jsonl"]


def test_names_from_strangers_are_quoted():
    record = made({"neo": (1, 1)}, data="x; rm -rf ~", model="m\x1b[2J")[0]
    words = shlex.split(reproducing_command([record], output="o"))
    assert words[words.index("--data") + 1] == "x; rm -rf ~"
    assert "\x1b" not in reproducing_command([record])
