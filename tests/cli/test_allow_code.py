"""Plans, records and model folders of strangers run no code unless that is allowed."""

from __future__ import annotations

import json
import warnings

import pytest

from neotta.errors import CodeError, ModelLoadError
from neotta.evaluate.plan import check_code, code_in
from neotta.evaluate.records import Record, Records
from neotta.models.load import load_model

EVIL = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
raise RuntimeError("it ran")
"""


@pytest.fixture
def evil(tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path


@pytest.mark.parametrize(
    "entry",
    [
        'model = "py:evil.py:model"',
        'methods = ["none", "py:evil.py:Method"]',
        'methods = ["neo+py:evil.py:Method"]',
        '[[methods]]\nmethod = "py:evil.py:Method"',
        'data = "py:evil.py:data=."',
        'corruptions = ["fog", "py:evil.py:fog"]',
        "[model_options]\ntrust_remote_code = true",
        '[model_options]\nattn_implementation = "somebody/attention"',
    ],
)
def test_a_plan_that_runs_code_is_refused_in_one_line(command, evil, entry):
    (evil / "plan.toml").write_text(f"{entry}\n")
    done = command("run", "--config", "plan.toml", folder=evil, width=300)
    assert done.returncode == 2
    assert "'plan.toml' runs code" in done.stderr
    assert "pass --allow-code if you trust it" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (evil / "ran").exists()


def test_code_runs_where_it_is_allowed_or_typed(command, evil):
    (evil / "plan.toml").write_text('model = "py:evil.py:model"\n')
    done = command("run", "--config", "plan.toml", "--allow-code", folder=evil, width=300)
    assert "it ran" in done.stderr
    (evil / "ran").unlink()
    done = command("run", "py:evil.py:model", folder=evil, width=300)
    assert "it ran" in done.stderr
    (evil / "ran").unlink()
    words = ("run", "digits", "--config", "plan.toml", "--corruptions", "fog", "--samples", "8")
    assert command(*words, folder=evil).returncode == 0
    assert not (evil / "ran").exists()


def test_a_study_that_runs_code_is_refused(command, evil):
    (evil / "study.toml").write_text('[[subjects]]\nmodel = "py:evil.py:model"\n')
    done = command("paper", "all", "--config", "study.toml", folder=evil, width=300)
    assert (done.returncode, (evil / "ran").exists()) == (2, False)
    assert "'study.toml' runs code (py:evil.py:model): pass --allow-code" in done.stderr


@pytest.mark.parametrize("words", [("run", "hf:evil"), ("predict", "hf:evil", ".")])
def test_the_code_of_a_model_runs_only_if_its_option_is_typed(command, evil, words):
    (evil / "evil").mkdir()
    (evil / "evil" / "config.json").write_text('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}')
    (evil / "evil" / "model.safetensors").touch()
    (evil / "evil.py").rename(evil / "evil" / "evil.py")
    assert command(*words, folder=evil).returncode == 2
    assert not list(evil.rglob("ran"))


def test_comparing_records_runs_nothing(command, evil):
    records = Records(evil / "r.jsonl")
    for method in ("none", f"py:{evil}/evil.py:Method", f"neo+py:{evil}/evil.py:Method"):
        content = {"method": method, "preset": "paper", "options": {}, "model": f"py:{evil}/evil.py:model"}
        content |= {"domains": ["fog"], "domain": "fog", "data": "digits"}
        content |= {"order": "iid", "order_options": {}}
        content |= {
            "samples": 10,
            "held_out_samples": -1,
            "seed": 1,
            "batch_size": 2,
            "metrics": {"top1": 1.0},
            "status": "ok",
        }
        records.append(Record.make({"key": method, **content}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        command("compare", "r.jsonl", folder=evil)
    assert not (evil / "ran").exists()


def test_a_model_folder_with_code_of_its_own_is_not_trusted(evil):
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "model.safetensors").touch()
    with pytest.raises(ModelLoadError, match="cannot load"):
        load_model(f"hf:{evil}")
    assert not (evil / "ran").exists()


def test_what_is_no_code():
    plan = {"model": "digits", "methods": ["neo", {"method": "tent", "note": "happy:"}], "data": "photos/py"}
    assert list(code_in({**plan, "model_options": {"trust_remote_code": False, "attn_implementation": "sdpa"}})) == []
    check_code(plan, "a plan", allowed=False)
    with pytest.raises(CodeError, match="a plan runs code"):
        check_code({**plan, "model": " py:a.py:b"}, "a plan", allowed=False)
