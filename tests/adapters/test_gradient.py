"""What the methods that train share: the optimiser, and steps that are skipped or taken back."""

from __future__ import annotations

import math

import pytest
import torch
from support.states import same
from torch import nn

import neotta
from neotta.adapters.base import COLLAPSE
from neotta.adapters.gradient import stays_in_range


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


METHODS = ["tent", "sar", "cotta", "surgeon"]
CALM = {"sar": {"margin": 2.0}, "cotta": {"restore_probability": 0.0}}


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_that_is_not_finite_skips_its_batch(method):
    adapter = neotta.create(method, network(), **CALM.get(method, {}))
    adapter(images())
    before = adapter.state_dict()
    adapter.head.register_forward_hook(lambda module, args, output: Poisoned.apply(output))
    with pytest.warns(RuntimeWarning, match="a gradient holds NaN or Inf: predicted, but not adapted to"):
        assert adapter(images(5, seed=1)).isfinite().all()
    assert adapter.skipped == 5
    assert same(adapter.state_dict(), before)


class Poisoned(torch.autograd.Function):
    """Nothing on the way forward, NaN on the way back."""

    @staticmethod
    def forward(ctx, input):
        return input.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.nan


OVERFLOW = [
    ("tent", {"lr": 1e39}),
    ("tent", {"lr": 1e30}),
    ("tent", {"lr": 1e30, "optimizer": "sgd", "weight_decay": 10.0}),
    ("sar", {"lr": 1e39, "margin": 2.0}),
    ("cotta", {"lr": 1e39}),
    ("cotta", {"lr": 1e39, "optimizer": "adam"}),
    ("surgeon", {"lr": 1e39}),
]


@pytest.mark.parametrize(("method", "options"), OVERFLOW)
def test_a_step_that_overflows_is_taken_back(method, options):
    adapter = neotta.create(method, network(), **options)
    before = adapter.state_dict()
    with pytest.warns(RuntimeWarning, match="too large"):
        assert adapter(images()).isfinite().all()
    assert adapter.skipped == 6
    assert same(adapter.state_dict(), before), "weights, and what the optimiser keeps"
    assert adapter(images(), adapt=False).isfinite().all()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize(
    ("lr", "size"), [(1e-3, 1.0), (1e30, 1.0), (1e-3, 1e15), (1e-3, 1e25), (1e20, 1e20), (1.0, 3e38)]
)
def test_what_is_said_to_stay_in_range_does(optimizer, lr, size):
    """And what overflows is never said to."""
    adapter = neotta.create("tent", network(), optimizer=optimizer, lr=lr, weight_decay=2.0)
    for tensor in adapter.params.values():
        tensor.detach().fill_(size)
    safe = stays_in_range(adapter.optimizer.param_groups[0], size, torch.float32)
    grads = [torch.full_like(tensor, size) for tensor in adapter.params.values()]
    for tensor, grad in zip(adapter.params.values(), grads, strict=True):
        tensor.grad = grad
    adapter.optimizer.step()
    finite = all(tensor.isfinite().all() for name, tensor in adapter.state_dict().items())
    assert finite or not safe
    assert safe or lr > 1 or size > 1, "no copies in an ordinary run"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("tent", {"episodic": True}),
        ("sar", {"episodic": True}),
        ("sar", {"reset_threshold": 100.0, "margin": 2.0}),
    ],
)
def test_collapse_is_noticed_by_methods_that_start_again(method, options):
    model = network()
    with torch.no_grad():
        model[-1].bias[2] = 50.0
    adapter = neotta.create(method, model, **options)
    batch = COLLAPSE // 4
    for seed in range(3):
        adapter(images(batch, seed))
    with pytest.warns(RuntimeWarning, match="all class 2"):
        adapter(images(batch, 3))
    adapter(images(batch, 4))  # once is enough
    adapter.reset()
    for seed in range(3):
        adapter(images(batch, seed))
    with pytest.warns(RuntimeWarning, match="all class 2"):
        adapter(images(batch, 3))
