from __future__ import annotations

import csv
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import tomli_w

from neotta.cli.config import read_config
from neotta.cli.options import user_cache
from neotta.data import digits
from neotta.errors import OptionError
from neotta.evaluate.plan import METHODS, Plan
from neotta.evaluate.records import Records

COMMAND = [sys.executable, "-m", "neotta", "run"]
SMALL = ["--corruptions", "fog,contrast", "--samples", "40", "--seeds", "1"]


@pytest.fixture(autouse=True)
def caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture
def run(command, tmp_path):
    return lambda *words: command("run", *words, folder=tmp_path)


@pytest.fixture
def plan_file(tmp_path):
    """Writes entries of a plan to a file, and returns the words that use it."""

    def write(**entries):
        (tmp_path / "plan.toml").write_text(tomli_w.dumps(entries))
        return ["--config", "plan.toml"]

    return write


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
    folder = Path(tempfile.mkdtemp(prefix="t"))  # sockets in it need a short path
    words = [*SMALL, "--methods", "none,neo,tent", "--seeds", "30", "--jobs", "2"]
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("neotta-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    assert "interrupted: what is done is in results.jsonl" in out
    assert list(folder.glob("neotta-*")) == []
    shutil.rmtree(folder)


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


OWN = """
from neotta.adapters.neo import NEO


class Mine(NEO):
    name = "mine"
    title = "My method"


class Other(NEO):
    name = "other"
"""


def test_methods_of_ones_own_appear_under_their_titles(run, command, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    done = run(*SMALL, "--methods", "none,py:mine.py:Mine,py:mine.py:Other,rdumb+py:mine.py:Mine")
    assert done.returncode == 0, done.stderr
    again = command("compare", "results.jsonl", "--baseline", "My method", folder=tmp_path)
    for text in (done.stdout[done.stdout.index("Difference to none") :], again.stdout):
        assert all(title in text for title in ("My method", "Other", "rdumb+My method"))
        assert "py:" not in text


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
def test_a_terminal_shows_a_bar(tmp_path):
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
    assert re.search(r"neo-stream on fog/5: \d+\.\d %", text)
    assert "3/3" in text


def test_unlabelled_images_get_a_report_and_predictions(run, plan_file, tmp_path):
    from PIL import Image

    folder = tmp_path / "mine"
    folder.mkdir()
    for index in range(12):
        Image.fromarray(digits("test").read(index)).save(folder / f"{index}.png")
    done = run("digits", "mine", "--seeds", "1", *plan_file(predictions="answers.csv", workers=0, cache=False))
    assert done.returncode == 0, done.stderr
    assert "Without labels nobody can tell" in done.stdout
    assert "Next: neotta judge digits mine" in done.stderr
    lines = (tmp_path / "answers.csv").read_text().splitlines()
    columns = [f"{method}.{kind}" for method in METHODS for kind in ("prediction", "confidence")]
    assert lines[0] == ",".join(["id", "domain", "seed", *columns])
    assert len(lines) == 13


def test_options_override_a_plan_file(run, plan_file, tmp_path):
    words = plan_file(
        methods=["none", {"method": "neo-continual", "alpha": [0.05, 0.1]}],
        corruptions=["fog/3"],
        order="few-classes",
        order_options={"classes": 3},
        samples=20,
        held_out_samples=30,
        seeds=2,
        batch_sizes=[8],
        model_options={"preprocess": {"interpolation": "bilinear"}},
    )
    done = run(*words, "--seeds", "1", "--batch-size", "4,16", "--model-option", "preprocess.crop=true")
    assert done.returncode == 0, done.stderr
    records = Records(tmp_path / "results.jsonl").read()
    assert [record.batch_size for record in records] == [4, 16] * 3
    assert {record.order for record in records} == {"few-classes"}
    assert {(record.count, record.domain) for record in records} == {(30, "fog/3")}
    assert records[0].opened["model_options"]["preprocess"] == {"interpolation": "bilinear", "crop": True}


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
        ("plan.toml", 'samples = "many"\n', "'plan.toml': entry 'samples.0' of the plan is 'many'"),
        ("plan.json", "{}", "'plan.json': a configuration is a .toml file"),
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
        (["--order", "few-classes"], "needs the option 'classes'"),
        (["--order", "correlated:delt=1"], "has no option 'delt': did you mean 'delta'?"),
        (["--order", "correlated:1"], "options are written name=value, got '1'"),
        (["--order", "iid:ratio=2"], "order 'iid' has no option 'ratio'"),
        (["--labels", "nothing.txt"], "the labels 'nothing.txt' cannot be read"),
        (["--corruptions", "fog", "--group-by", "folder"], "belongs to nothing by group_by='folder'"),
        (["--methods", "tnet"], "unknown method 'tnet': did you mean 'tent'?"),
    ],
)
def test_mistakes_in_options_are_one_line(run, tmp_path, words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results.jsonl").exists()


def test_predictions_of_every_seed_are_written(run, plan_file, tmp_path):
    done = run(*SMALL, "--seeds", "2020,1234", *plan_file(predictions="p.csv"))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["seed"] for row in rows} == {"2020", "1234"}
    assert all(row["neo.prediction"] and row["none.prediction"] for row in rows)
    again = run(*SMALL, "--seeds", "2020,1234", *plan_file(predictions="again.csv"))
    assert "0 runs done" in again.stdout
    assert (tmp_path / "again.csv").read_text() == (tmp_path / "p.csv").read_text()


def test_predictions_that_cannot_be_written_are_one_line(run, plan_file, tmp_path):
    (tmp_path / "file").write_text("")
    done = run(*SMALL, *plan_file(predictions="file/p.csv"))
    assert done.returncode == 2
    assert re.fullmatch(r"neotta: cannot write 'file/p.csv': (File exists|Not a directory)\n", done.stderr)
    assert len(Records(tmp_path / "results.jsonl").read()) == 6


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(run, plan_file, tmp_path):
    run(*SMALL, *plan_file(cache="cache"))
    for path in (tmp_path / "cache").glob("*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    done = run(*SMALL, *plan_file(cache="cache", force=True))
    assert done.returncode == 0
    assert re.fullmatch(r"(neotta: cached embeddings are damaged and computed again .*\n){2}Next: .*\n", done.stderr)


def test_the_cache_lies_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "neotta" / "embeddings"


def test_a_configuration_is_checked_when_it_is_read(tmp_path):
    (tmp_path / "plan.toml").write_text("colour = 'red'\n")
    with pytest.raises(OptionError, match="unknown entry 'colour'"):
        read_config(tmp_path / "plan.toml", Plan.model_fields)


def test_options_are_tuned_on_other_domains(run, plan_file, tmp_path):
    words = [*SMALL, "--methods", "none,neo-continual:alpha=0.01|0.9", *plan_file(tune=["spatter", "saturate"])]
    first = run(*words)
    assert first.returncode == 0, first.stderr
    shown = " ".join(first.stdout.split())
    assert "the best of 2 settings (alpha: 0.01, 0.9) on spatter/5, saturate/5, none of which is reported" in shown
    assert len(Records(tmp_path / "results.jsonl").read()) == 4
    assert len(Records(tmp_path / "results.tuning.jsonl").read()) == 4
    assert "0 runs done, 4 already recorded" in run(*words).stdout
    refused = run(*SMALL, "--methods", "neo-continual:alpha=0.01|0.9", *plan_file(tune="fog"))
    assert refused.returncode == 2
    assert "fog would be tuned on and reported, too" in refused.stderr


def test_orders_through_domains_are_run_from_the_command_line(run):
    done = run(*SMALL, "--order", "recurring:rounds=2,delta=0.1")
    assert done.returncode == 0, done.stderr
    assert "order recurring, delta=0.1, rounds=2" in " ".join(done.stdout.split())
    refused = run(*SMALL, "--order", "recurring:round=2")
    assert refused.returncode == 2
    assert "did you mean 'rounds'" in refused.stderr


def test_the_help_is_short_and_has_examples(run):
    shown = run("--help").stdout
    assert len(set(re.findall(r"--[a-z-]+", shown.split("Options")[1]))) <= 18
    assert shown.count("neotta run ") == 2 + 1  # and the usage


def test_folders_are_classes_of_the_model_by_a_file_and_groups_by_their_names(run, tmp_path):
    from PIL import Image

    data = digits("test")
    for index in range(24):
        folder = tmp_path / "mine" / ("zero" if data.labels[index] == 0 else f"d{data.labels[index]}")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read(index)).save(folder / f"clip{index // 6}-{index}.png")
    (tmp_path / "classes.csv").write_text("zero,0\n" + "".join(f"d{number},{number}\n" for number in range(1, 10)))
    words = [
        "digits",
        "mine",
        "--labels",
        "classes.csv",
        "--group-by",
        r"clip(\d+)",
        "--methods",
        "none",
        "--seeds",
        "1",
    ]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "Next: neotta compare results.jsonl" in done.stderr
    (record,) = Records(tmp_path / "results.jsonl").read()
    assert record.metrics["top1"] > 80
    assert sorted(record.answers["groups"]) == sorted([0, 1, 2, 3] * 6)


def test_a_bare_module_takes_its_preprocessing_from_the_command_line(run, tmp_path):
    (tmp_path / "net.py").write_text("import neotta\ndef network():\n    return neotta.load_model('digits').model\n")
    words = ["py:net.py:network", "--methods", "none", *SMALL]
    for size in ("preprocess.size=32", "preprocess.size=32,32"):
        done = run(*words, "--model-option", size, "--model-option", "preprocess.mean=0.5,0.5,0.5")
        assert done.returncode == 0, done.stderr
    refused = run(*words)
    assert "--model-option preprocess.size=224" in refused.stderr
