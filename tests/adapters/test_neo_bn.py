"""NEO-BN tells when it is not right: streams of few classes."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import neotta

WORDS = "one or two classes"


def network():
    """Four classes, one for each channel."""
    net = nn.Sequential(nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)).eval()
    with torch.no_grad():
        net[3].weight.copy_(torch.eye(4))
        net[3].bias.copy_(torch.linspace(0, 50, 4))  # so that all answers are the last class
    return net


def images(rows):
    return torch.randn(rows, 4, 2, 2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_few_classes_in_a_batch_are_warned_of_once(kind):
    net = network()
    model = neotta.adapt(net, "neo-bn", head="3") if kind == "model" else neotta.create("neo-bn", net, head="3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(15))  # too few images to tell
    with pytest.warns(RuntimeWarning, match=WORDS):
        model(images(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(16))


def test_mixed_classes_are_fine():
    net = network()
    with torch.no_grad():
        net[3].bias.zero_()
    model = neotta.adapt(net, "neo-bn", head="3")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(images(64))
