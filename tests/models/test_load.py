from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from neotta.errors import MissingExtraError, ModelLoadError, OptionError, UnknownModelError
from neotta.models._torchvision import guard
from neotta.models.load import LoadedModel, load_model
from neotta.models.packaged import BUNDLED, load_packaged, read_package
from neotta.models.preprocess import Preprocess

guard()

SRC = Path(__file__).resolve().parents[2] / "src"
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


# Packaged files


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
    assert same_weights(load_packaged(path).model, model)
    assert read_package(path).accuracy == 0.5


def test_a_packaged_model_of_timms_registry(tmp_path):
    import timm

    model = timm.create_model("test_vit", num_classes=3)
    path = package(
        tmp_path / "registered.safetensors", model, architecture="timm:test_vit", kwargs={"num_classes": 3}
    )
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "timm:NoSuchModel"}, "not known here"),
        ({"architecture": "os:system"}, "not known here"),
        ({"architecture": "timm:create_model"}, "not known here"),
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


@pytest.mark.skipif(not BUNDLED["digits"].is_file(), reason="the bundled model is not in this tree")
def test_the_bundled_digits():
    loaded = load_model("digits")
    assert loaded.name == "digits"
    assert loaded.labels == tuple("0123456789")
    batch = loaded.preprocess.batch([np.zeros((32, 32, 3), np.uint8)] * 2)
    with torch.inference_mode():
        assert loaded.model(batch).shape == (2, 10)


# timm


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
    with pytest.raises(
        ModelLoadError, match=r"2 of another shape \(head.weight \(4, 64\) instead of \(1000, 64\)"
    ):
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
    path.write_bytes(test_vit.read_bytes())
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
    model = load_model(
        "timm:test_vit", checkpoint=four_classes, num_classes=4, dtype=dtype, device="cpu"
    ).model
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


# Names


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("timm:vit_tinny_patch16_224", "did you mean 'timm:vit_tiny_patch16_224'"),
        ("timm:vit_tiny_patch16_224.augreg_in22k", "did you mean 'timm:vit_tiny_patch16_224.augreg_in21k'"),
        ("timm:0", "`neotta models '*'` lists"),
        ("vit_tiny_patch16_224", "did you mean 'timm:vit_tiny_patch16_224'"),
        ("digts", "did you mean 'digits'"),
        ("nateraw/vit-base", "did you mean 'hf:nateraw/vit-base'"),
        ("onnx:0", "known: <path>.safetensors, digits, hf:<repository or folder>, timm:<name>"),
        ("timm:", "did you mean 'timm:<name>'"),
        ("", "known: <path>.safetensors, digits, hf:<repository or folder>, timm:<name>"),
    ],
)
def test_unknown_names(name, answer):
    with pytest.raises(UnknownModelError) as raised:
        load_model(name)
    assert answer in str(raised.value)


def test_a_folder_without_a_prefix(tmp_path):
    with pytest.raises(ModelLoadError, match="'hf:"):
        load_model(tmp_path)


# Hugging Face


def save_classifier(folder: Path, classes: int = 3, **config) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(2)
    sizes = {"image_size": 32, "patch_size": 16, "hidden_size": 8, "intermediate_size": 8}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": classes}
    model = ViTForImageClassification(ViTConfig(**sizes, **heads, **config)).eval()
    model.save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4] * 3).save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def tiny_hf(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    save_classifier(folder, id2label={0: "cat", 1: "dog", 2: "eel"})
    return folder


def test_hugging_face_folder(tiny_hf):
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    loaded = load_model(f"hf:{tiny_hf}")
    assert loaded.labels == ("cat", "dog", "eel")
    assert loaded.preprocess == Preprocess((32, 32), (32, 32), mean=(0.4,) * 3, crop_rounding="down")
    assert not loaded.model.training
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 50, 3), dtype=np.uint8))
    theirs = AutoModelForImageClassification.from_pretrained(tiny_hf).eval()
    pixels = AutoImageProcessor.from_pretrained(tiny_hf)(images=photo, return_tensors="pt")
    with torch.inference_mode():
        ours = loaded.model(loaded.preprocess.batch([photo])).logits
        torch.testing.assert_close(ours, theirs(**pixels).logits, atol=1e-2, rtol=0)
        exact = loaded.model(pixels["pixel_values"]).logits
    assert torch.equal(exact, theirs(**pixels).logits)


def test_hugging_face_options(tiny_hf, tmp_path):
    ready = Preprocess((32, 32), 40, crop=True)
    options = {"preprocess": ready, "dtype": torch.bfloat16, "norm_eps": 1e-5, "attn_implementation": "eager"}
    loaded = load_model(f"hf:{tiny_hf}", **options)
    assert loaded.preprocess is ready
    assert loaded.model.dtype == torch.bfloat16
    assert {m.eps for m in loaded.model.modules() if isinstance(m, nn.LayerNorm)} == {1e-5}
    assert loaded.model.config._attn_implementation == "eager"

    half = load_model(f"hf:{tiny_hf}").model.half()
    half.save_pretrained(tmp_path / "half")
    assert load_model(f"hf:{tmp_path / 'half'}", preprocess=ready).model.dtype == torch.float32


def test_hugging_face_checkpoint_and_random_weights(tiny_hf, tmp_path):
    other = save_classifier(tmp_path / "other", classes=5)
    checkpoint = tmp_path / "other" / "model.safetensors"
    loaded = load_model(f"hf:{tiny_hf}", checkpoint=checkpoint, num_classes=5)
    assert same_weights(loaded.model, other)
    assert loaded.labels is None
    assert load_model(f"hf:{tiny_hf}", checkpoint=checkpoint, num_classes=5, labels="abcde").labels == tuple(
        "abcde"
    )
    with pytest.raises(ModelLoadError, match=r"classifier\.weight \(5, 8\) instead of \(3, 8\)"):
        load_model(f"hf:{tiny_hf}", checkpoint=checkpoint)
    checkpoint.rename(tmp_path / "gone.safetensors")
    assert load_model(f"hf:{tmp_path / 'other'}", pretrained=False).model.num_labels == 5


def test_hugging_face_head_of_another_size_is_random(tiny_hf):
    with pytest.warns(UserWarning, match="the head of 7 is random"):
        loaded = load_model(f"hf:{tiny_hf}", num_classes=7)
    assert loaded.model(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 7)
    assert loaded.labels is None


def test_hugging_face_folders_that_cannot_be_used(tiny_hf, tmp_path):
    from transformers import BertConfig, ViTModel

    with pytest.raises(ModelLoadError, match="cannot load hf:"):
        load_model(f"hf:{tmp_path}", pretrained=False)
    with pytest.raises(ModelLoadError, match="neither a folder nor the name of a repository"):
        load_model(f"hf:{tmp_path / 'absent'}")
    with pytest.raises(OptionError, match="revision='main' needs a repository"):
        load_model(f"hf:{tiny_hf}", revision="main")
    with pytest.raises(OptionError, match="use_safetensors"):
        load_model(f"hf:{tiny_hf}", use_safetensors=False)

    pickled = tmp_path / "pickled"
    model = save_classifier(pickled)
    (pickled / "model.safetensors").unlink()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"no model.safetensors.*save_pretrained"):
        load_model(f"hf:{pickled}")

    headless = tmp_path / "headless"
    save_classifier(headless)
    ViTModel.from_pretrained(tiny_hf).save_pretrained(headless)
    with pytest.raises(ModelLoadError, match=r"not those of a whole .*2 missing \(classifier.bias"):
        load_model(f"hf:{headless}")

    BertConfig().save_pretrained(tmp_path / "text")
    with pytest.raises(ModelLoadError, match=r"cannot load hf:.*BertConfig"):
        load_model(f"hf:{tmp_path / 'text'}", pretrained=False)

    (headless / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadError, match="cannot load hf:"):
        load_model(f"hf:{headless}", pretrained=False)


def test_without_transformers_the_error_names_the_extra(tiny_hf, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"neotta\[hf\]"):
        load_model(f"hf:{tiny_hf}")


# The hub


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "hf:nateraw/vit-base-patch16-224-cifar10"])
def test_offline_the_error_says_what_was_wanted_and_what_to_do(name, tmp_path, monkeypatch):
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
def test_a_hub_over_http(tiny_hf, tmp_path):
    """With a real server on this machine: fetched, found in the cache, refused, or given up soon."""
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
    (hub / "someone" / "pickled" / "model.safetensors").rename(
        hub / "someone" / "pickled" / "pytorch_model.bin"
    )

    env = {**os.environ, "PYTHONPATH": str(SRC), "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    env.pop("HF_HUB_CACHE", None)
    script = Path(__file__).with_name("hub_session.py")
    done = subprocess.run(
        [sys.executable, str(script), str(hub)], env=env, capture_output=True, text=True, timeout=120
    )
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


# The real ViT-Tiny


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
