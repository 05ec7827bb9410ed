from __future__ import annotations

import csv
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from neotta.cli.config import read_config, write_config
from neotta.cli.values import user_cache
from neotta.cli.watch import time_left
from neotta.data import digits
from neotta.errors import OptionError
from neotta.evaluate.plan import METHODS, Plan
from neotta.evaluate.records import Records

COMMAND = [sys.executable, "-m", "neotta", "run"]
SMALL = ["--corruptions", "fog,contrast", "--samples", "40", "--seeds", "1", "--workers", "0", "--no-cache"]


@pytest.fixture
def run(command, tmp_path):
    return lambda *words: command("run", *words, folder=tmp_path)


def test_runs_once_and_then_only_what_is_new(run, tmp_path):
    first = run(*SMALL)
    assert first.returncode == 0, first.stderr
    assert "6 runs to do, 0 already recorded; 80 images to encode" in first.stdout
    assert "6 runs done, 0 already recorded, 0 failed: results.jsonl" in first.stdout
    assert "Difference to none" in first.stdout
    again = run(*SMALL, "--methods", "none,neo,lame")
    assert "2 runs done, 4 already recorded, 0 failed" in again.stdout
    assert len(Records(tmp_path / "results.jsonl").read()) == 8


@pytest.mark.slow
def test_an_interrupted_run_continues(run, tmp_path, interruptible):
    words = [*SMALL, "--methods", "none,neo,tent", "--seeds", "3"]
    path = tmp_path / "results.jsonl"
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "interrupted: what is done is in results.jsonl, and the same command continues" in out
    done = len(Records(path).read())
    assert 0 < done < 18
    assert f"{18 - done} runs done, {done} already recorded, 0 failed" in run(*words).stdout
    assert len(path.read_text().splitlines()) == len(Records(path).read()) == 18


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends signals")
def test_a_run_that_is_terminated_removes_its_temporary_folders(tmp_path):
    (tmp_path / "tmp").mkdir()
    words = [*SMALL, "--methods", "none,neo,tent", "--seeds", "30", "--jobs", "2"]
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "tmp").glob("neotta-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    assert "interrupted: what is done is in results.jsonl" in out
    assert list((tmp_path / "tmp").glob("neotta-*")) == []


FAILING = """
from neotta.adapters.none import NoAdapt


class Failing(NoAdapt):
    name = "failing"

    def _embeddings(self, embeddings, adapt):
        raise RuntimeError("no luck")
"""


def test_a_failed_run_gives_exit_code_1(run, tmp_path):
    (tmp_path / "mine.py").write_text(FAILING)
    done = run(*SMALL, "--methods", "neo,py:mine.py:Failing")
    assert done.returncode == 1
    assert "4 runs done, 0 already recorded, 2 failed" in done.stdout
    assert "failed: py:mine.py:Failing: RuntimeError: no luck (mine.py:9)" in done.stdout
    assert "(runs: 2; on fog/5, contrast/5)" in done.stdout


def test_methods_that_do_not_suit_the_model_are_left_out_at_the_start(run, command, tmp_path):
    done = run(*SMALL, "--methods", "none,neo,neo-bn")
    assert done.returncode == 0
    reason = re.search(r"neo-bn was left out: .*BatchNorm.*", done.stdout)[0]
    assert done.stdout.index(reason) < done.stdout.index("4 runs to do")
    assert "4 runs done, 0 already recorded, 0 failed" in done.stdout
    table = " ".join(done.stdout[done.stdout.index("Difference to none") :].split())
    assert reason in table
    shown = command("compare", tmp_path / "results.jsonl", "--format", "markdown").stdout
    assert reason in shown
    only = run(*SMALL, "--methods", "neo-bn")
    assert only.returncode == 2
    assert "BatchNorm" in only.stderr


@pytest.mark.slow
def test_a_terminal_shows_a_table(tmp_path):
    ours, theirs = pty.openpty()
    words = [*COMMAND, *SMALL, "--corruptions", "fog"]
    process = subprocess.Popen(words, stdout=theirs, stderr=theirs, cwd=tmp_path, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # on Linux the end of a terminal is an error
            part = b""
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert re.search(r"method +done +accuracy % +last domain", text)
    assert re.search(r"neo +1/1 +\d+\.\d +fog/5", text)
    assert "3/3 runs" in text


def test_unlabelled_images_get_a_report_and_predictions(run, tmp_path):
    from PIL import Image

    folder = tmp_path / "mine"
    folder.mkdir()
    for index in range(12):
        Image.fromarray(digits("test").read(index)).save(folder / f"{index}.png")
    words = ["--data", "mine", "--seeds", "1", "--workers", "0", "--no-cache", "--predictions", "answers.csv"]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "Without labels nobody can tell" in done.stdout
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    columns = [f"{method}.{kind}" for method in METHODS for kind in ("prediction", "confidence")]
    assert lines[0] == ",".join(["id", "domain", "seed", *columns])
    assert len(lines) == 13


def test_the_printed_configuration_gives_the_same_plan_back(run, tmp_path):
    words = ["--methods", "none,neo-continual:alpha=0.05|0.1,debias=true", "--methods", "tent@original:lr=1e-4"]
    words += ["--model", "timm:vit_tiny_patch16_224", "--checkpoint", "w.safetensors", "--num-classes", "10"]
    words += ["--data", "imagenet-c=some where", "--domains", "fog/5,*/3", "--seeds", "2020,", "--samples", "64,-1"]
    words += ["--protocol", "hold-out", "--order", "few-classes", "--order-option", "classes=3"]
    words += ["--held-out-samples", "100"]
    words += ["--batch-sizes", "1,64", "--model-option", "pretrained=false", "--model-option", "preprocess.resize=256"]
    first = run(*words, "--print-config")
    assert first.returncode == 0, first.stderr
    (tmp_path / "plan.toml").write_text(first.stdout)
    assert run("--config", "plan.toml", "--print-config").stdout == first.stdout
    plan = Plan.make(read_config(tmp_path / "plan.toml"))
    of_model = {"checkpoint": "w.safetensors", "num_classes": 10, "pretrained": False, "preprocess": {"resize": 256}}
    assert plan.model_options == of_model
    assert [method.method for method in plan.methods] == ["none", "neo-continual", "tent"]
    assert plan.methods[1].options == {"alpha": [0.05, 0.1], "debias": True}
    assert (plan.methods[2].preset, plan.methods[2].options) == ("original", {"lr": 1e-4})
    assert (plan.seeds, plan.samples, plan.held_out_samples) == ([2020], [64, -1], 100)
    assert plan.order_options == {"classes": 3}
    changed = run("--config", "plan.toml", "--seeds", "2", "--print-config")
    assert "seeds = [\n    2020,\n    1234,\n]" in changed.stdout
    further = run("--config", "plan.toml", "--model-option", "preprocess.crop=true", "--print-config")
    (tmp_path / "further.toml").write_text(further.stdout)
    assert read_config(tmp_path / "further.toml")["model_options"]["preprocess"] == {"resize": 256, "crop": True}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"methods": [{"method": "t3a", "preset": "original", "filter_k": [5, None]}, "neo+lame"]},
        {"model": 'a "quoted" näme\n', "model_options": {"odd key!": 1.5}, "corruption_preset": "cifar"},
        {"seeds": 5, "model_options": {"list": [1, [2.5, True]], "table": {"a": "b"}}},
    ],
)
def test_plans_survive_being_written(tmp_path, given):
    plan = Plan.make(given)
    path = tmp_path / "plan.toml"
    path.write_text(write_config(plan), encoding="utf-8")
    assert Plan.make(read_config(path)) == plan


def test_yaml_says_the_same_as_toml(tmp_path):
    (tmp_path / "a.toml").write_text('seeds = 2\nmethods = ["none", {method = "tent", lr = [1e-3, 2e-4]}]\n')
    (tmp_path / "b.yaml").write_text("seeds: 2\nmethods:\n- none\n- {method: tent, lr: [1e-3, 2e-4]}\n")
    assert Plan.make(read_config(tmp_path / "a.toml")) == Plan.make(read_config(tmp_path / "b.yaml"))
    (tmp_path / "empty.yml").write_text("")
    assert read_config(tmp_path / "empty.yml") == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("plan.toml", "sample = 3\n", "'plan.toml' has the unknown entry 'sample': did you mean 'samples'?"),
        ("plan.toml", "xyz = 3\n", "'plan.toml' has the unknown entry 'xyz': known: model, "),
        ("plan.toml", "samples = -7\n", "'plan.toml': entry 'samples.0' of the plan is -7: "),
        ("plan.toml", "batch_sizes = [8, 0]\n", "'plan.toml': entry 'batch_sizes.1' of the plan is 0: "),
        ("plan.toml", "held_out_samples = -5\n", "'plan.toml': entry 'held_out_samples' of the plan is -5: "),
        ("plan.toml", "severities = 9\n", "'plan.toml': entry 'severities.0' of the plan is 9: "),
        ("plan.toml", 'methods = [{metod = "neo"}]\n', "'plan.toml': a method of the plan needs the entry 'method'"),
        (
            "plan.toml",
            'methods = [{method = "neo", options = {}, presets = "x"}]\n',
            "'plan.toml': a method of the plan has no entry 'presets': did you mean 'preset'?",
        ),
        (
            "plan.toml",
            'methods = [{method = "tent", lr = []}]\n',
            "'plan.toml': the option 'lr' of a method has no value",
        ),
        ("plan.toml", "seeds = [\n", "'plan.toml' is not valid TOML: "),
        ("plan.yaml", "a: [1\nb: 2", "'plan.yaml' is not valid YAML: "),
        ("plan.yaml", "- 1\n", "'plan.yaml' has to hold entries such as 'model', got a list"),
        ("plan.toml", 'samples = "many"\n', "'plan.toml': entry 'samples.0' of the plan is 'many'"),
        ("plan.json", "{}", "'plan.json': a configuration is a .toml, .yaml or .yml file"),
        ("other.toml", "", "the configuration 'plan.toml' cannot be read: No such file"),
    ],
)
def test_mistakes_in_a_configuration_are_one_line(run, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    done = run("--config", "plan.toml" if name == "other.toml" else name)
    assert done.returncode == 2
    assert done.stderr.startswith(f"neotta: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "two"], "--seeds takes whole numbers with commas between them, got 'two'"),
        (["--order-option", "classes"], "--order-option takes NAME=VALUE, got 'classes'"),
        (["--order", "few-classes"], "'few-classes' goes with the protocol 'hold-out', not 'online'"),
        (["--order", "correlated", "--protocol", "hold-out"], "goes with the protocol 'online' or 'continual', not"),
        (["--order", "few-classes", "--protocol", "hold-out"], "needs the option 'classes'"),
        (["--order", "correlated", "--order-option", "delt=1"], "has no option 'delt': did you mean 'delta'?"),
        (["--order-option", "ratio=2"], "the order 'iid' of the protocol 'online' has no option 'ratio'"),
        (["--cache", "x", "--no-cache"], "--cache and --no-cache contradict each other"),
        (["--predictions", "a.txt"], "predictions go to a .csv or .parquet file, got 'a.txt'"),
        (["--methods", "tnet"], "unknown method 'tnet': did you mean 'tent'?"),
    ],
)
def test_mistakes_in_options_are_one_line(run, tmp_path, words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results.jsonl").exists()


def test_records_are_logged_where_it_is_asked_for(run, tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    done = run(*SMALL, "--log", "tensorboard:events")
    assert done.returncode == 0, done.stderr
    logged = {folder.name.rpartition("_")[2] for folder in (tmp_path / "events").iterdir()}
    assert logged == {record["key"][:8] for record in Records(tmp_path / "results.jsonl").read()}
    assert "no logger 'neptune'" in run(*SMALL, "--log", "neptune:x").stderr


def test_predictions_of_every_seed_are_written(run, tmp_path):
    done = run(*SMALL, "--seeds", "2020,1234", "--predictions", "p.csv")
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["seed"] for row in rows} == {"2020", "1234"}
    assert all(row["neo.prediction"] and row["none.prediction"] for row in rows)
    again = run(*SMALL, "--seeds", "2020,1234", "--predictions", "again.csv")
    assert "0 runs done" in again.stdout
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "p.csv").read_text()


def test_predictions_that_cannot_be_written_are_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(*SMALL, "--predictions", "file/p.csv")
    assert done.returncode == 2
    assert re.fullmatch(r"neotta: cannot write 'file/p.csv': (File exists|Not a directory)\n", done.stderr)
    assert len(Records(tmp_path / "results.jsonl").read()) == 6


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(run, tmp_path):
    words = [*SMALL[:-1], "--cache", "cache"]
    run(*words)
    for path in (tmp_path / "cache").glob("*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    done = run(*words, "--force")
    assert done.returncode == 0
    assert re.fullmatch(r"(neotta: cached embeddings are damaged and computed again .*\n){2}", done.stderr)


def test_the_cache_lies_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "neotta" / "embeddings"


def test_time_left_in_words():
    assert [time_left(seconds) for seconds in (None, 4.2, 80, 200, 9000)] == [
        "", "(4 s left)", "(80 s left)", "(3 min left)", "(2 h left)",
    ]  # fmt: skip


def test_a_configuration_is_checked_when_it_is_read(tmp_path):
    (tmp_path / "plan.toml").write_text("colour = 'red'\n")
    with pytest.raises(OptionError, match="unknown entry 'colour'"):
        read_config(tmp_path / "plan.toml")


def test_options_are_tuned_on_other_domains(run, tmp_path):
    words = [*SMALL, "--methods", "none,neo-continual:alpha=0.01|0.9", "--tune", "spatter,saturate"]
    first = run(*words)
    assert first.returncode == 0, first.stderr
    shown = " ".join(first.stdout.split())
    assert "the best of 2 settings (alpha: 0.01, 0.9) on spatter/5, saturate/5, none of which is reported" in shown
    assert len(Records(tmp_path / "results.jsonl").read()) == 4
    assert len(Records(tmp_path / "results.tuning.jsonl").read()) == 4
    assert "0 runs done, 4 already recorded" in run(*words).stdout
    refused = run(*SMALL, "--methods", "neo-continual:alpha=0.01|0.9", "--tune", "fog")
    assert refused.returncode == 2
    assert "fog would be tuned on and reported, too" in refused.stderr


def test_orders_through_domains_are_run_from_the_command_line(run):
    done = run(*SMALL, "--order", "recurring", "--order-option", "rounds=2", "--order-option", "delta=0.1")
    assert done.returncode == 0, done.stderr
    assert "recurring stream, delta=0.1, rounds=2" in " ".join(done.stdout.split())
    refused = run(*SMALL, "--order", "recurring", "--order-option", "round=2")
    assert refused.returncode == 2
    assert "did you mean 'rounds'" in refused.stderr
    assert "samples_per_step" in run("--help").stdout
