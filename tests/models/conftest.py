"""Tiny Hugging Face classifiers, for the tests of loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from neotta.models._torchvision import guard


@pytest.fixture(scope="session")
def save_classifier() -> Callable[..., nn.Module]:
    """A function that writes a small classifier and its image processor into a folder."""
    guard()
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
