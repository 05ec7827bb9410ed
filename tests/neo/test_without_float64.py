"""A device without float64, as MPS is: nothing may make such a tensor there, and nothing may read one without a copy.

The device is simulated on the CPU by a tensor class: what is computed from its tensors is of that class too, until it
is copied by `cpu()`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import neotta

READING = {Tensor.numpy, Tensor.__array__}


class OnDevice(Tensor):
    """A tensor on a device that has no float64."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in READING:
            raise TypeError("can't convert a tensor of this device to NumPy: copy it to the CPU first")
        result = super().__torch_function__(func, types, args, kwargs or {})
        if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(result)):
            raise TypeError("this device has no float64")
        return result.as_subclass(Tensor) if func is Tensor.cpu else result


def on_device(model: nn.Module) -> nn.Module:
    """Move a model, with its states."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach().as_subclass(OnDevice), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.as_subclass(OnDevice)
    return model


def images(count: int = 24) -> Tensor:
    return torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(count)).as_subclass(OnDevice)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 5)).eval()


@pytest.fixture(autouse=True)
def _no_float64(monkeypatch):
    for module in ("state", "streams"):
        monkeypatch.setattr(f"neotta.neo.{module}.widest", lambda device: torch.float32)


def test_the_device_is_simulated():
    with pytest.raises(TypeError, match="no float64"):
        images().double()
    with pytest.raises(TypeError, match="no float64"):
        torch.add(images(), torch.zeros(4, dtype=torch.float64))
    with pytest.raises(TypeError, match="NumPy"):
        images().numpy()
    assert images().cpu().double().numpy().dtype == "float64"


@pytest.mark.parametrize("method", ["neo-stream", "neo", "neo-continual", "neo-mse"])
@pytest.mark.parametrize("options", [{}, {"at": "logits"}, {"streams": True}], ids=str)
def test_adapting_saving_folding_and_health(method, options, tmp_path):
    model = on_device(neotta.adapt(network(), method, **options))
    stream = {"stream": "gate"} if "streams" in options else {}
    with torch.no_grad(), neotta.streams(["gate", "dock"] * 12):
        with neotta.rows([1.0, 0.5] * 12):
            assert isinstance(model(images()), OnDevice)
        with neotta.paused(model):
            model(images())
    neotta.head(model).streams._buffers["table"] = neotta.head(model).streams.table.as_subclass(OnDevice)
    neotta.health(model, **stream)
    neotta.head(model).offset(*stream.values())
    neotta.save(model, tmp_path / "state")
    neotta.load(model, tmp_path / "state")
    if "at" not in options:
        neotta.fold(model, **stream)
        with torch.no_grad():
            model(images())


@pytest.mark.parametrize("at", [None, "logits"])
def test_finding_the_head_by_a_run_and_measuring_a_reference(at):
    model = on_device(nn.ModuleDict({"body": nn.Flatten(), "last": nn.Linear(48, 5)})).eval()
    model.forward = lambda x: model["last"](model["body"](x))
    known = neotta.reference(model, images(300), at=at)
    neotta.adapt(model, example=images(2), reference=known, at=at)
    with torch.no_grad():
        model(images())


@pytest.mark.parametrize("method", ["neo-stream", "neo"])
def test_monitoring(method):
    model = on_device(neotta.adapt(network(), method))
    with torch.no_grad():
        model(images(300))
    assert neotta.health(model).samples == 300
    assert isinstance(neotta.accuracy(model, images(50)).value, float)
