"""Models that may give different results have different identities."""

import copy

import torch
from torch import nn

from neotta.evaluate.key import identity


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def test_the_same_model_has_the_same():
    assert identity(network()) == identity(copy.deepcopy(network()))


def test_another_weight_another_option_or_another_layer_differ():
    other_weight, other_eps, other_layer = network(), network(), network()
    with torch.no_grad():
        other_weight[0].weight[0, 0] += 1e-3
    other_eps[1].eps = 1e-12
    other_layer.append(nn.Softmax(dim=1))
    assert len({identity(model) for model in (network(), other_weight, other_eps, other_layer)}) == 4


def test_code_of_ones_own_counts(tmp_path, monkeypatch):
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for number, line in enumerate(("x", "-x")):
        name = f"own_model_{number}"
        (tmp_path / f"{name}.py").write_text(
            f"from torch import nn\n\n\nclass Own(nn.Module):\n    def forward(self, x):\n        return {line}\n"
        )
        found.append(identity(importlib.import_module(name).Own()))
    assert found[0] != found[1]
