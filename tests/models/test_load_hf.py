from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from neotta.errors import MissingExtraError, ModelLoadError, OptionError
from neotta.models.load import load_model
from neotta.models.preprocess import Preprocess


def same_weights(model: nn.Module, other: nn.Module) -> bool:
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


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


def test_hugging_face_checkpoint_and_random_weights(tiny_hf, tmp_path, save_classifier):
    other = save_classifier(tmp_path / "other", classes=5)
    checkpoint = tmp_path / "other" / "model.safetensors"
    loaded = load_model(f"hf:{tiny_hf}", checkpoint=checkpoint, num_classes=5)
    assert same_weights(loaded.model, other)
    assert loaded.labels is None
    assert load_model(f"hf:{tiny_hf}", checkpoint=checkpoint, num_classes=5, labels="abcde").labels == tuple("abcde")
    with pytest.raises(ModelLoadError, match=r"classifier\.weight \(5, 8\) instead of \(3, 8\)"):
        load_model(f"hf:{tiny_hf}", checkpoint=checkpoint)
    checkpoint.rename(tmp_path / "gone.safetensors")
    assert load_model(f"hf:{tmp_path / 'other'}", pretrained=False).model.num_labels == 5


def test_hugging_face_head_of_another_size_is_random(tiny_hf):
    with pytest.warns(UserWarning, match="the head of 7 is random"):
        loaded = load_model(f"hf:{tiny_hf}", num_classes=7)
    assert loaded.model(torch.zeros(1, 3, 32, 32)).logits.shape == (1, 7)
    assert loaded.labels is None


def test_hugging_face_folders_that_cannot_be_used(tiny_hf, tmp_path, save_classifier):
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


def test_a_timm_model_in_a_hugging_face_folder(tmp_path):
    import timm
    from timm.models import save_for_hf

    model = timm.create_model("test_vit", num_classes=4).eval()
    save_for_hf(model, tmp_path, model_config={"label_names": ["w", "x", "y", "z"]}, safe_serialization=True)
    loaded = load_model(f"hf:{tmp_path}")
    assert loaded.labels == ("w", "x", "y", "z")
    assert loaded.preprocess == load_model("timm:test_vit", pretrained=False).preprocess
    images = torch.rand(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(loaded.model(images).logits, model(images))
