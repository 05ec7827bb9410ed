"""The monitor and the library of domains on models adapted with NEO-Stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import StateMismatchError

D, C = 6, 4


def model(**options):
    torch.manual_seed(0)
    linear = nn.Linear(D, C)
    nn.init.orthogonal_(linear.weight)
    return neotta.adapt(nn.Sequential(nn.Flatten(), linear).eval(), head="1", **options)


def samples(rows, seed, shift=0.0):
    """Four classes along the weights of the head, and a shift of the embeddings."""
    generator = torch.Generator().manual_seed(seed)
    peaks = torch.nn.functional.one_hot(torch.randint(C, (rows,), generator=generator), C) * 6.0
    noise = 0.4 * torch.randn(rows, D, generator=generator)
    return peaks @ model()[1].weight.detach() + noise + shift * torch.linspace(-1, 1, D)


@torch.no_grad()
def fed(net, data, size=16):
    for part in data.split(size):
        net(part)
    return net


def shift(net):
    return neotta.head(net).offset()


def test_status_tells_how_far_the_shift_is():
    net = model()
    with neotta.Monitor(net) as monitor:
        fed(net, samples(300, 0, shift=3.0))
        status = monitor.status()
    torch.testing.assert_close(torch.tensor(status.origin.distance).double(), shift(net).norm(), rtol=1e-4, atol=1e-4)
    assert status.model is not None
    assert status.model.distance < 1e-3
    assert status.samples == 300


@pytest.mark.parametrize("action", ["reset", "nearest"])
def test_a_change_restarts_the_shift_from_the_new_samples(action, tmp_path):
    new = samples(400, 2, shift=4.0)
    library = neotta.DomainLibrary(tmp_path)
    library.add("bright", fed(model(), samples(500, 5, shift=4.0)))
    net, fresh = model(window=None), fed(model(window=None), new)
    with neotta.Monitor(net, library, action=action) as monitor:
        fed(net, samples(400, 1))
        fed(net, new)
    assert [change.action for change in monitor.changes] == [action]
    stuck = fed(fed(model(window=None), samples(400, 1)), new)
    assert (shift(net) - shift(fresh)).norm() < 0.5 * (shift(stuck) - shift(fresh)).norm()
    if action == "nearest":
        assert monitor.changes[0].nearest.domain == "bright"
        assert monitor.changes[0].worth > 0


def test_domains_are_added_from_models_streams_and_monitors(tmp_path):
    library = neotta.DomainLibrary(tmp_path)
    net = model()
    with neotta.Monitor(net) as monitor:
        fed(net, samples(300, 0, shift=3.0))
        by_model, by_monitor = library.add("model", net), library.add("monitor", monitor)
    for domain in (by_model, by_monitor):
        assert (domain.space, domain.count) == ("logits", 300)
        torch.testing.assert_close(domain.offset, shift(net), rtol=1e-4, atol=1e-4)
    many = model(streams=True)
    for part in samples(60, 3).split(20):
        with neotta.streams(["gate"] * 20):
            fed(many, part, 20)
    assert library.add("gate", many, stream="gate").count == 60
    assert library.nearest(shift(net)).domain in ("model", "monitor")
    neotta.load(neotta.restore(net), tmp_path / "monitor.safetensors")
    assert neotta.head(net).count == 300
    damaged = neotta.merge([net])
    damaged.tensors["1.shift"] = torch.zeros(2, 2)
    damaged.save(tmp_path / "bad.safetensors")
    with pytest.raises(StateMismatchError, match="nothing that a model subtracts"):
        library["bad"]


def test_domains_of_another_rule_are_left_out(tmp_path):
    library = neotta.DomainLibrary(tmp_path)
    torch.manual_seed(0)
    neo = neotta.adapt(neotta.restore(model()), "neo", head="1")
    library.add("mean", fed(neo, samples(20, 0)))
    net = model()
    with neotta.Monitor(net, library, action="nearest") as monitor:
        fed(net, samples(20, 0))
        assert monitor.status().domains == ()
