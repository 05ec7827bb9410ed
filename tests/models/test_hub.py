from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neotta.errors import ModelLoadError
from neotta.models.load import load_model

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "hf:nateraw/vit-base-patch16-224-cifar10"])
def test_offline_the_error_says_what_was_wanted_and_what_to_do(name, tmp_path, monkeypatch):
    import timm  # noqa: F401  # here, as it takes a while
    from transformers import AutoModelForImageClassification  # noqa: F401

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    start = time.perf_counter()
    with pytest.raises(ModelLoadError) as raised:
        load_model(name)
    assert time.perf_counter() - start < 10
    message = str(raised.value)
    assert name.partition(":")[2].partition("/")[0] in message
    for part in (
        "not in the cache",
        "HF_HUB_OFFLINE is set",
        "checkpoint=",
        "pretrained=False",
        "hf download",
    ):
        assert part in message
    assert raised.value.__cause__ is not None


@pytest.mark.slow
def test_a_hub_over_http(tiny_hf, tmp_path, save_classifier):
    """With a real server on this machine: fetched, found in the cache, rejected, or given up soon."""
    import timm

    hub = tmp_path / "hub"
    weights = hub / "timm" / "test_vit.r160_in1k"
    weights.mkdir(parents=True)
    torch.manual_seed(3)
    model = timm.create_model("test_vit")
    save_file(model.state_dict(), weights / "model.safetensors")
    (hub / "timm" / "test_vit2.r160_in1k").mkdir()
    (hub / "timm" / "test_vit2.r160_in1k" / "pytorch_model.bin").write_bytes(b"pickle")
    (hub / "someone").mkdir()
    (hub / "someone" / "tiny").symlink_to(tiny_hf)
    classifier = save_classifier(hub / "someone" / "sharded")
    classifier.save_pretrained(hub / "someone" / "sharded", max_shard_size="4KB")
    (hub / "someone" / "sharded" / "model.safetensors").unlink(missing_ok=True)
    save_classifier(hub / "someone" / "pickled")
    (hub / "someone" / "pickled" / "model.safetensors").rename(hub / "someone" / "pickled" / "pytorch_model.bin")

    env = {**os.environ, "PYTHONPATH": str(SRC), "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    env.pop("HF_HUB_CACHE", None)
    script = Path(__file__).parents[1] / "support" / "hub_session.py"
    done = subprocess.run([sys.executable, str(script), str(hub)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)

    def total(module: nn.Module) -> float:
        return sum(parameter.double().sum().item() for parameter in module.parameters())

    assert results["timm"]["sum"] == pytest.approx(total(model))
    assert results["timm"]["labels"][:2] == ["n01440764", "n01443537"]
    assert results["timm"]["size"] == [160, 160]
    assert results["timm"]["warnings"] == []
    assert results["timm_other_head"]["labels"] is None
    assert results["timm_other_head"]["warnings"] == [
        "hub_session.py: the weights of timm:test_vit have 1000 classes: its head of 7 is random"
    ]
    assert results["hf"]["labels"] == ["cat", "dog", "eel"]
    assert results["hf_sharded"]["sum"] == pytest.approx(total(classifier))
    assert not any(".bin" in line for result in results.values() for line in result["asked"])
    assert "no model.safetensors" in results["hf_pickled"]["error"]
    assert "has no model.safetensors" in results["timm_pickled"]["error"]
    assert "no repository 'someone/else'" in results["hf_unknown"]["error"]

    assert results["timm_gone"]["sum"] == results["timm"]["sum"]
    assert results["hf_gone"]["sum"] == results["hf"]["sum"]
    assert results["hf_sharded_gone"]["sum"] == results["hf_sharded"]["sum"]
    assert results["hf_revision"]["error"].endswith("has no revision 'v9'")
    for case in ("hf_unknown_gone", "timm_unknown_gone", "timm_silent"):
        assert results[case]["error"].startswith("ModelLoadError")
        assert "the hub cannot be reached" in results[case]["error"]
        assert "\n" not in results[case]["error"]
        assert results[case]["seconds"] < 10
