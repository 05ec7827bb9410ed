"""What Prometheus reads of a model."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import MissingExtraError, NotAdaptedError
from neotta.monitoring import prometheus

client = pytest.importorskip("prometheus_client")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4)).eval()


def scraped(model, **options):
    registry = client.CollectorRegistry()
    prometheus.export(model, registry, **options)
    lines = client.generate_latest(registry).decode().splitlines()
    return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def test_the_figures_are_those_of_health():
    model = neotta.adapt(network(), head="1")
    model(torch.randn(40, 6))
    found, health = scraped(model, prefix="door"), neotta.health(model)
    assert found["door_samples"] == 40
    assert found["door_top_share"] == health.top_share
    assert found[f'door_verdict{{verdict="{health.verdict}"}}'] == 1
    assert {f'door_sign{{sign="{sign}"}}' for sign in health.signs} == {name for name in found if "sign" in name}


def test_streams_have_a_label_and_what_is_not_known_is_left_out():
    model = neotta.adapt(network(), "neo", head="1", streams=True)
    with neotta.streams(["gate", "yard", "gate"]):
        model(torch.randn(3, 6))
    found = scraped(model)
    assert (found['neotta_samples{stream="gate"}'], found['neotta_samples{stream="yard"}']) == (2, 1)
    assert not any("changed" in name for name in found)


def test_adapters_are_exported_too_and_plain_models_rejected():
    adapter = neotta.create("neo-stream", network(), head="1")
    adapter.predict_embeddings(torch.randn(20, 6))
    assert scraped(adapter)["neotta_samples"] == 20
    with pytest.raises(NotAdaptedError):  # at once, and not when it is scraped
        prometheus.export(network(), client.CollectorRegistry())


def test_without_prometheus_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"neotta\[prometheus\]"):
        prometheus.export(neotta.adapt(network(), head="1"))
