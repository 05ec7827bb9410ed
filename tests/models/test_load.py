from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from neotta.errors import ModelLoadError, OptionError, UnknownModelError
from neotta.models.load import load_model
from neotta.models.preprocess import Preprocess

ALL_FORMS = (
    "known: <path>.safetensors, digits, hf:<repository or folder>, mnist, "
    "py:<module or file.py>:<function>, timm:<name>"
)
SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="module")
def four_classes(tmp_path_factory) -> Path:
    """A checkpoint of timm's smallest ViT with four classes, with their names beside it."""
    import timm

    folder = tmp_path_factory.mktemp("timm")
    torch.manual_seed(1)
    save_file(timm.create_model("test_vit", num_classes=4).state_dict(), folder / "four.safetensors")
    (folder / "four.classes.json").write_text(json.dumps(["w", "x", "y", "z"]))
    return folder / "four.safetensors"


def test_timm_with_a_checkpoint(four_classes):
    from timm.data import create_transform, resolve_data_config

    loaded = load_model("timm:test_vit", checkpoint=four_classes, num_classes=4)
    tensors = load_file(four_classes)
    assert all(torch.equal(value, tensors[key]) for key, value in loaded.model.state_dict().items())
    assert loaded.labels == ("w", "x", "y", "z")
    assert not loaded.model.training
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (201, 260, 3), dtype=np.uint8))
    theirs = create_transform(**resolve_data_config(model=loaded.model))
    assert torch.equal(loaded.preprocess(photo), theirs(photo))


def test_labels_and_preprocessing_of_the_caller_come_first(four_classes):
    ready = Preprocess((160, 160), 170, crop=True)
    options = {
        "checkpoint": four_classes,
        "num_classes": 4,
        "preprocess": ready,
        "labels": ["1", "2", "3", "4"],
    }
    loaded = load_model("timm:test_vit", **options)
    assert loaded.labels == ("1", "2", "3", "4")
    assert loaded.preprocess is ready
    with pytest.raises(OptionError, match="3 labels for a model of 4 classes"):
        load_model("timm:test_vit", **{**options, "labels": ["1", "2", "3"]})


def test_a_checkpoint_has_to_fit(four_classes, tmp_path):
    with pytest.raises(ModelLoadError, match=r"2 of another shape \(head.weight \(4, 64\) instead of \(1000, 64\)"):
        load_model("timm:test_vit", checkpoint=four_classes)
    tensors = load_file(four_classes)
    for key in [key for key in tensors if key.startswith("blocks.0.")][:5]:
        tensors[f"module.{key}"] = tensors.pop(key)
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(
        ModelLoadError, match=r"5 missing \(blocks.0.* and 2 more\); 5 not in the model \(module.blocks.0"
    ):
        load_model("timm:test_vit", checkpoint=tmp_path / "other.safetensors", num_classes=4)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt"])
def test_nothing_is_unpickled(tmp_path, suffix):
    path = tmp_path / f"weights{suffix}"
    torch.save({}, path)
    with pytest.raises(ModelLoadError, match=r"save_file\(torch.load\('weights.*'weights.safetensors'\)"):
        load_model("timm:test_vit", checkpoint=path)


def test_labels_beside_a_checkpoint_must_be_a_list(four_classes, tmp_path):
    path = tmp_path / "four.safetensors"
    path.write_bytes(four_classes.read_bytes())
    for text in ("not json", '{"0": "w"}'):
        (tmp_path / "four.classes.json").write_text(text)
        with pytest.raises(ModelLoadError, match=r"four\.classes\.json"):
            load_model("timm:test_vit", checkpoint=path, num_classes=4)


def test_timm_without_weights_and_with_its_options():
    loaded = load_model("timm:test_vit", pretrained=False, num_classes=5, img_size=64, norm_eps=1e-3)
    assert loaded.preprocess.size == (64, 64)
    assert loaded.labels is None
    assert loaded.model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    assert {m.eps for m in loaded.model.modules() if isinstance(m, nn.LayerNorm)} == {1e-3}
    assert load_model("timm:test_resnet", pretrained=False).preprocess.size == (160, 160)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_device(four_classes, dtype):
    model = load_model("timm:test_vit", checkpoint=four_classes, num_classes=4, dtype=dtype, device="cpu").model
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "num_classes takes"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"checkpoint_path": "weights.pth"}, "checkpoint_path"),
        ({"features_only": True}, "features_only"),
        ({"in_chans": 1}, "1 channels"),
        ({"img_size": (64, 96)}, "preprocess="),
        ({"dtype": torch.int8}, "dtype takes"),
        ({"device": "nowhere"}, "device 'nowhere'"),
        ({"norm_eps": 0.0}, "norm_eps takes"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        load_model("timm:test_vit", pretrained=False, **options)


def test_norm_eps_needs_a_layer_norm():
    with pytest.raises(OptionError, match="ResNet has no LayerNorm"):
        load_model("timm:test_resnet", pretrained=False, norm_eps=1e-6)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("timm:vit_tinny_patch16_224", "did you mean 'timm:vit_tiny_patch16_224'"),
        ("timm:vit_tiny_patch16_224.augreg_in22k", "did you mean 'timm:vit_tiny_patch16_224.augreg_in21k'"),
        ("timm:0", "`neotta models '*'` lists"),
        ("vit_tiny_patch16_224", "did you mean 'timm:vit_tiny_patch16_224'"),
        ("digts", "did you mean 'digits'"),
        ("nateraw/vit-base", "did you mean 'hf:nateraw/vit-base'"),
        ("onnx:0", ALL_FORMS),
        ("timm:", "did you mean 'timm:<name>'"),
        ("", ALL_FORMS),
    ],
)
def test_unknown_names(name, answer):
    with pytest.raises(UnknownModelError) as raised:
        load_model(name)
    assert answer in str(raised.value)


def test_a_folder_without_a_prefix(tmp_path):
    with pytest.raises(ModelLoadError, match="'hf:"):
        load_model(tmp_path)


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = (
        "import sys, neotta.models.load, neotta.models.packaged, neotta.cli.models\n"
        "heavy = ('timm', 'torchvision', 'transformers', 'huggingface_hub', 'safetensors')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_real_vit_tiny(shared):
    """100 images of Tiny-ImageNet, with the eps and the preprocessing of these weights."""
    path = shared / "data" / "models" / "vit_tiny_patch16_224-tinyimagenet200.safetensors"
    loaded = load_model(
        "timm:vit_tiny_patch16_224",
        checkpoint=path,
        num_classes=200,
        norm_eps=1e-12,
        preprocess=Preprocess((224, 224), 256, crop=True, interpolation="bilinear"),
    )
    assert loaded.labels is not None
    folder = shared / "data" / "tiny-imagenet-200" / "val"
    lines = (folder / "val_annotations.txt").read_text().splitlines()
    rows = [line.split("\t")[:2] for line in lines]
    rows = [row for row in rows if (folder / "images" / row[0]).is_file()][::40][:100]
    truth = torch.tensor([loaded.labels.index(wnid) for _, wnid in rows])
    images = loaded.preprocess.batch(Image.open(folder / "images" / name) for name, _ in rows)
    with torch.inference_mode():
        predicted = torch.cat([loaded.model(part).argmax(-1) for part in images.split(25)])
    assert len(rows) == 100
    assert (predicted == truth).float().mean() > 0.6
