from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import neotta


def network(*layers):
    return nn.Sequential(nn.Linear(3, 8), *layers, nn.Linear(8, 5))


@pytest.mark.parametrize("options", [{}, {"at": "logits"}])
@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(8)])
def test_adapting_in_training_mode_warns_once(layer, options):
    model = neotta.adapt(network(layer).train(), **options)
    with pytest.warns(RuntimeWarning, match=r"adapts in training mode.*model\.eval\(\)"):
        model(torch.randn(4, 3))
    model(torch.randn(4, 3))


def test_nothing_is_said_where_the_mode_does_not_matter():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        neotta.adapt(network(nn.ReLU()).train())(torch.randn(4, 3))
        neotta.adapt(network(nn.Dropout(0.1)).eval())(torch.randn(4, 3))
        frozen = neotta.adapt(network(nn.Dropout(0.1)).train())
        neotta.head(frozen).freeze()
        frozen(torch.randn(4, 3))
        neotta.NEOHead(nn.Linear(3, 4)).train()(torch.randn(4, 3))
