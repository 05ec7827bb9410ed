"""What the methods that train share: the optimiser, and steps that are refused or taken back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neotta


def network(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    with torch.no_grad():
        model[-1].weight.mul_(8)  # an untrained head is sure of nothing
    return model.to(dtype).eval()


def images(rows=6, seed=0):
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)) for name in one
    )


@pytest.mark.parametrize(
    ("method", "options", "kind"),
    [
        ("tent", {"optimizer": "adam", "lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.2}, "Adam"),
        ("tent", {"optimizer": "sgd", "lr": 0.1, "momentum": 0.3, "weight_decay": 0.2}, "SGD"),
        ("cotta", {"optimizer": "sgd", "lr": 0.1, "momentum": 0.3, "nesterov": True, "weight_decay": 0.2}, "SGD"),
        ("surgeon", {"lr": 0.1, "betas": (0.5, 0.6), "eps": 1e-3, "weight_decay": 0.2}, "Adam"),
        ("sar", {"lr": 0.1, "momentum": 0.3}, "SGD"),
    ],
)
def test_every_option_reaches_the_optimiser(method, options, kind):
    optimizer = neotta.create(method, network(), **options).optimizer
    assert type(optimizer).__name__ == kind
    wanted = {name: value for name, value in options.items() if name != "optimizer"}
    assert {name: optimizer.param_groups[0][name] for name in wanted} == wanted
