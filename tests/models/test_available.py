from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from neotta.cli.models import models
from neotta.models import packaged
from neotta.models.load import FORMS
from neotta.models.packaged import available_models


@pytest.fixture(autouse=True)
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small packaged file in the place of the bundled one, so that its numbers are known."""
    from timm.models import VisionTransformer

    kwargs = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2, "num_classes": 3}
    card = {
        "architecture": "timm:VisionTransformer",
        "kwargs": kwargs,
        "preprocess": {"size": [16, 16]},
        "labels": ["a", "b", "c"],
        "accuracy": {"clean": 0.987},
    }
    path = tmp_path / "tiny.safetensors"
    save_file(VisionTransformer(**kwargs).state_dict(), path, metadata={"neotta": json.dumps(card)})
    monkeypatch.setitem(packaged.BUNDLED, "digits", path)


def test_without_a_pattern_the_bundled_models():
    entry, real = available_models()
    assert real.name == "mnist"
    assert entry.name == "digits"
    assert entry.size == (16, 16)
    assert entry.classes == 3
    assert entry.accuracy == 0.987
    # patches 3*8*8*12 + 12, positions 5*12, class token 12, block, norm, head
    block = 2 * 24 + 12 * 36 + 36 + 12 * 12 + 12 + 12 * 48 + 48 + 48 * 12 + 12
    assert entry.parameters == 2304 + 12 + 60 + 12 + block + 24 + 39


@pytest.mark.parametrize("pattern", ["vit_tiny_patch16_*", "timm:vit_tiny_patch16_*"])
def test_timms_models_by_pattern(pattern):
    entries = {entry.name: entry for entry in available_models(pattern)}
    assert entries["timm:vit_tiny_patch16_384"].size == (384, 384)
    assert entries["timm:vit_tiny_patch16_224"].classes == 1000
    assert entries["timm:vit_tiny_patch16_224"].weights == "published"
    assert all(name.startswith("timm:vit_tiny_patch16_") for name in entries)


def test_patterns_hold_for_bundled_models_too():
    assert [entry.name for entry in available_models("dig*")] == ["digits"]
    assert available_models("no such model") == []


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(models)
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def test_command_shows_the_bundled_models_and_all_forms():
    output = run()
    row = next(line.split() for line in output.splitlines() if line.split()[:1] == ["digits"])
    assert row == ["digits", "16x16", "3", "4,335", "98.7%", "bundled"]
    for form in FORMS:
        assert form in output


def test_command_with_a_pattern():
    assert "timm:vit_tiny_patch16_224" in run("vit_tiny*")
    assert "No model matches 'vit_tinny'; try '*vit_tinny*'." in run("vit_tinny")
