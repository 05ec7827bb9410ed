from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from neotta.errors import ModelLoadError, OptionError
from neotta.models._weights import Request
from neotta.models.load import LoadedModel, load_model
from neotta.models.packaged import load_packaged, read_package
from neotta.models.preprocess import Preprocess

VIT = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 1, "num_heads": 2, "num_classes": 3}
CARD = {
    "architecture": "timm:VisionTransformer",
    "kwargs": VIT,
    "preprocess": {
        "size": [16, 16],
        "resize": None,
        "crop": None,
        "interpolation": "bilinear",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
    "labels": ["a", "b", "c"],
    "accuracy": {"clean": 0.5},
}


def tiny_vit() -> nn.Module:
    from timm.models import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(**VIT).eval()
    nn.init.normal_(model.head.weight)
    return model


def package(path: Path, model: nn.Module, **changes) -> Path:
    save_file(model.state_dict(), path, metadata={"neotta": json.dumps({**CARD, **changes})})
    return path


def same_weights(model: nn.Module, other: nn.Module) -> bool:
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_a_packaged_file_brings_everything(tmp_path):
    model = tiny_vit()
    path = package(tmp_path / "tiny.safetensors", model)
    loaded = load_model(path)
    assert isinstance(loaded, LoadedModel)
    assert same_weights(loaded.model, model)
    assert not loaded.model.training
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.preprocess == Preprocess((16, 16))
    assert loaded.labels == ("a", "b", "c")
    assert loaded.name == str(path)
    assert load_model(str(path), num_classes=3).labels == loaded.labels
    assert same_weights(load_packaged(path, Request()).model, model)
    assert read_package(path).accuracy == 0.5


def test_a_packaged_model_of_timms_registry(tmp_path):
    import timm

    model = timm.create_model("test_vit", num_classes=3)
    path = package(tmp_path / "registered.safetensors", model, architecture="timm:test_vit", kwargs={"num_classes": 3})
    assert same_weights(load_model(path).model, model)


def test_packaged_norm_eps_and_the_callers_own(tmp_path):
    path = package(tmp_path / "eps.safetensors", tiny_vit(), norm_eps=1e-12)
    for expected, options in ((1e-12, {}), (1e-3, {"norm_eps": 1e-3})):
        norms = [m for m in load_model(path, **options).model.modules() if isinstance(m, nn.LayerNorm)]
        assert len(norms) == 3
        assert {norm.eps for norm in norms} == {expected}


def test_random_weights_of_a_packaged_architecture(tmp_path):
    path = package(tmp_path / "tiny.safetensors", tiny_vit())
    assert not same_weights(load_model(path, pretrained=False).model, tiny_vit())
    loaded = load_model(path, pretrained=False, num_classes=7)
    assert loaded.model(torch.zeros(1, 3, 16, 16)).shape == (1, 7)
    assert loaded.labels is None
    with pytest.raises(ModelLoadError, match=r"head\.weight"):
        load_model(path, num_classes=7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "timm:NoSuchModel"}, "which is unknown"),
        ({"architecture": "os:system"}, "which is unknown"),
        ({"architecture": "timm:create_model"}, "which is unknown"),
        ({"preprocess": {"size": [16]}}, "size takes"),
        ({"kwargs": 3}, "cannot be used"),
        ({"kwargs": {**VIT, "num_classes": 4}}, r"head.weight \(3, 12\) instead of \(4, 12\)"),
    ],
)
def test_a_package_that_cannot_be_used(tmp_path, changes, message):
    with pytest.raises(ModelLoadError, match=message):
        load_model(package(tmp_path / "bad.safetensors", tiny_vit(), **changes))


def test_a_package_cannot_make_timm_read_another_file(tmp_path):
    changes = {"architecture": "timm:test_vit", "kwargs": {"checkpoint_path": "evil.pth"}}
    with pytest.raises(OptionError, match="checkpoint_path"):
        load_model(package(tmp_path / "evil.safetensors", tiny_vit(), **changes))


def test_files_that_are_no_package(tmp_path):
    with pytest.raises(ModelLoadError, match="there is no file"):
        load_model(tmp_path / "absent.safetensors")
    save_file(tiny_vit().state_dict(), tmp_path / "plain.safetensors")
    with pytest.raises(ModelLoadError, match=r"no 'neotta' metadata.*checkpoint='plain.safetensors'"):
        load_model(tmp_path / "plain.safetensors")
    (tmp_path / "damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ModelLoadError, match="damaged"):
        load_model(tmp_path / "damaged.safetensors")
    path = package(tmp_path / "cut.safetensors", tiny_vit())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelLoadError, match="damaged"):
        load_model(path)
    with pytest.raises(OptionError, match="checkpoint= has no place"):
        load_model(path, checkpoint=path)


def test_the_bundled_digits():
    loaded = load_model("digits")
    assert loaded.name == "digits"
    assert loaded.labels == tuple("0123456789")
    batch = loaded.preprocess.batch([np.zeros((32, 32, 3), np.uint8)] * 2)
    with torch.inference_mode():
        assert loaded.model(batch).shape == (2, 10)
