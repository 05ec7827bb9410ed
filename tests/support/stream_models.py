"""A small model with many streams, and data for it."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

import neotta

FEATURES, CLASSES = 6, 4


def plain(classes=CLASSES):
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(body=nn.Identity(), classes=nn.Linear(FEATURES, classes)))


def many(method="neo", **options):
    """One centroid for each stream."""
    return neotta.adapt(plain(), method, head="classes", streams=True, **options)


def alone(method="neo", **options):
    """One centroid."""
    return neotta.adapt(plain(), method, head="classes", **options)


def batch(rows, seed=1):
    return torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(seed)) * 2 + 3


@torch.no_grad()
def answer(model, data, ids):
    with neotta.streams(ids):
        return model(data)
