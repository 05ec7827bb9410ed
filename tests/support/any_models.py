"""Small models of every kind, with random weights, and small Hugging Face classifiers on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn


class Own(nn.Module):
    """A module whose head no convention names."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 8)
        self.out = nn.Linear(8, 5)
        self.unused = nn.Linear(8, 2)

    def forward(self, images):
        return self.out(torch.relu(self.mix(images.mean(dim=(2, 3)))))


class TorchvisionStyle(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.name = name
        if name == "fc":
            self.fc = nn.Linear(8, 5)
        elif name == "classifier":
            self.classifier = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 5))
        elif name == "heads":
            self.heads = nn.Sequential()
            self.heads.add_module("head", nn.Linear(8, 5))

    def forward(self, images):
        return getattr(self, self.name)(self.features(images).mean(dim=(2, 3)))


def timm_model(name, **kwargs):
    import timm

    return timm.create_model(name, pretrained=False, num_classes=5, **kwargs)


def hf_model():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=5,
    )  # fmt: skip
    return ViTForImageClassification(config)


VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
MODELS = {
    "timm-vit": (lambda: timm_model("vit_tiny_patch16_224", **VIT), ["head"]),
    "timm-deit-distilled": (
        lambda: timm_model("deit_tiny_distilled_patch16_224", **VIT),
        ["head", "head_dist"],
    ),
    "timm-convnext": (lambda: timm_model("convnext_atto", dims=(8, 8, 16, 16), depths=(1, 1, 1, 1)), ["head.fc"]),
    "timm-resnet": (lambda: timm_model("resnet10t", channels=(8, 8, 16, 16)), ["fc"]),
    "hf-vit": (hf_model, ["classifier"]),
    "fc": (lambda: TorchvisionStyle("fc"), ["fc"]),
    "classifier": (lambda: TorchvisionStyle("classifier"), ["classifier.3"]),
    "heads.head": (lambda: TorchvisionStyle("heads"), ["heads.head"]),
    "own": (Own, ["out"]),
}


@pytest.fixture(params=MODELS)
def any_model(request):
    """A model in evaluation mode and the names of its heads."""
    torch.manual_seed(0)
    build, names = MODELS[request.param]
    return build().eval(), names


@pytest.fixture
def images():
    return torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="session")
def save_classifier() -> Callable[..., nn.Module]:
    """A function that writes a small classifier and its image processor into a folder."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    def save(folder: Path, classes: int = 3, **config) -> nn.Module:
        torch.manual_seed(2)
        sizes = {"image_size": 32, "patch_size": 16, "hidden_size": 8, "intermediate_size": 8}
        heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": classes}
        model = ViTForImageClassification(ViTConfig(**sizes, **heads, **config)).eval()
        model.save_pretrained(folder)
        ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.4] * 3).save_pretrained(folder)
        return model

    return save


@pytest.fixture(scope="session")
def tiny_hf(tmp_path_factory: pytest.TempPathFactory, save_classifier: Callable[..., nn.Module]) -> Path:
    """The folder of a classifier with three named classes."""
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    save_classifier(folder, id2label={0: "cat", 1: "dog", 2: "eel"})
    return folder
