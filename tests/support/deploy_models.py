"""Small models of several kinds, with random weights, plain or adapted."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

import neotta

PREPROCESS = neotta.Preprocess(size=(32, 32), resize=36, crop=True, interpolation="bicubic", mean=(0.4, 0.5, 0.6))
LABELS = ["ant", "bee", "cat", "dog", "eel"]


def network(seed=0):
    """A small network with batch normalisation."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(OrderedDict(body=body, fc=nn.Linear(8, 5)))
    model(torch.randn(16, 3, 32, 32) + 1)  # statistics other than the initial ones
    return model.eval()


def timm_vit(name="vit_tiny_patch16_224"):
    import timm

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 5}
    return timm.create_model(name, pretrained=False, **sizes).eval()


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=5, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    return ViTForImageClassification(config).eval()


def started(model, method="neo", **options):
    """An adapted model that has seen a few images."""
    neotta.adapt(model, method, **options)
    with torch.no_grad():
        model(torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(4)) + 0.5)
    return model
