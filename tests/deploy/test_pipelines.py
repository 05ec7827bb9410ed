"""An adapted model of Hugging Face is still a model of Hugging Face."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from support.deploy_models import LABELS, hf_vit, started

import neotta


@pytest.fixture
def processor():
    from transformers import ViTImageProcessor

    return ViTImageProcessor(size={"height": 32, "width": 32})


@pytest.fixture
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(4)]


def test_a_pipeline_adapts(processor, pictures):
    from transformers import pipeline

    model = neotta.adapt(hf_vit(), "neo")
    classify = pipeline("image-classification", model=model, image_processor=processor, device="cpu")
    first = classify(pictures[0])
    assert {entry["label"] for entry in first} == set(LABELS)
    classify(pictures[1:], batch_size=2)
    assert neotta.head(model).count == 4

    # the same images, given to the same model by hand
    other = neotta.adapt(hf_vit(), "neo")
    with torch.no_grad():
        for part in (pictures[:1], pictures[1:3], pictures[3:]):
            logits = other(**processor(images=part, return_tensors="pt")).logits
    assert torch.equal(neotta.head(other).offset(), neotta.head(model).offset())
    neotta.head(model).freeze()
    best = classify(pictures[3])[0]
    assert best["label"] == LABELS[logits[0].argmax()]
    assert best["score"] == pytest.approx(logits[0].softmax(0).max().item(), abs=1e-6)


def test_saved_weights_load_without_neotta(tmp_path, pictures, processor):
    from safetensors import safe_open
    from transformers import AutoModelForImageClassification, pipeline

    started(hf_vit()).save_pretrained(tmp_path)
    plain = hf_vit()
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "streams" in name]  # noqa: SIM118
    loaded, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert type(loaded.classifier) is torch.nn.Linear
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in plain.state_dict().items())

    # and what comes from from_pretrained can be adapted and used again
    classify = pipeline(
        "image-classification", model=neotta.adapt(loaded, "neo"), image_processor=processor, device="cpu"
    )
    assert len(classify(pictures)) == 4


def test_weights_and_adaptation_are_saved_side_by_side(tmp_path, pictures, processor):
    from transformers import AutoModelForImageClassification, pipeline

    hf_vit().save_pretrained(tmp_path / "plain")
    processor.save_pretrained(tmp_path / "plain")
    classify = pipeline("image-classification", str(tmp_path / "plain"), device="cpu")
    model = neotta.adapt(classify.model, "neo")
    classify(pictures, batch_size=2)
    model.save_pretrained(tmp_path / "gate")
    neotta.save(model, tmp_path / "gate" / "adaptation.safetensors")

    again = AutoModelForImageClassification.from_pretrained(tmp_path / "gate")
    neotta.load(again, tmp_path / "gate" / "adaptation.safetensors")
    assert neotta.head(again).count == 4
    goes_on = pipeline("image-classification", model=again, image_processor=processor, device="cpu")
    assert goes_on(pictures[:2]) == classify(pictures[:2])
    assert neotta.head(again).count == 6


def test_a_folded_model_is_saved_with_its_adapted_bias(tmp_path, pictures, processor):
    from transformers import AutoModelForImageClassification

    model = started(hf_vit())
    neotta.head(model).freeze()
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = model(pixels).logits
        neotta.fold(model).save_pretrained(tmp_path)
        loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
        torch.testing.assert_close(loaded(pixels).logits, wanted, atol=1e-5, rtol=0)


def test_a_pipeline_with_one_id_for_all_or_one_for_each_image(processor, pictures):
    from transformers import pipeline

    model = neotta.adapt(hf_vit(), streams=True)
    classify = pipeline("image-classification", model=model, image_processor=processor, device="cpu")
    with neotta.streams("gate"):
        classify(pictures, batch_size=3)
    with neotta.streams(["gate", "yard", "gate", "door"]), neotta.rows([1.0, 1.0, 0.5, 0.0]):
        classify(pictures, batch_size=4)
    assert neotta.head(model).streams.counts() == {"gate": 6, "yard": 1}
