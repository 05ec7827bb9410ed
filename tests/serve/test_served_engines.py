"""What can be served: torch models with one head or two, and ONNX files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.serving import pictures, serving, small_engine
from support.small_model import network
from torch import nn

import neotta
from neotta.cli.serve import open_engine
from neotta.deploy.onnx.export import export
from neotta.deploy.serve.engine import TorchEngine
from neotta.errors import NeottaError, OptionError, StateError


@pytest.mark.parametrize("rule", ["neo", "neo-continual", "neo-mse", "neo-stream"])
def test_every_rule_answers_as_the_library_does(rule):
    images = pictures(24, seed=1, shift=0.5)
    engine = small_engine(rule)
    found = [engine.predict(part, ["a"] * 8).adapted for part in np.split(images, 3)]
    model = neotta.adapt(network().model.eval(), rule)
    with torch.inference_mode():
        expected = [model(torch.from_numpy(part)).numpy() for part in np.split(images, 3)]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), atol=1e-4)


class TwoHeads(nn.Module):
    """Two heads whose logits are averaged, as a distilled transformer has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
        self.head, self.head_dist = nn.Linear(48, 5), nn.Linear(48, 5)

    def forward(self, images):
        embeddings = self.body(images)
        return (self.head(embeddings) + self.head_dist(embeddings)) / 2


def test_a_model_with_two_heads():
    engine = TorchEngine(neotta.LoadedModel(TwoHeads(), neotta.Preprocess((32, 32))), "neo")
    images = pictures(8, shift=1.0)
    answer = engine.predict(images, ["a"] * 8)
    model = neotta.adapt(TwoHeads().eval(), "neo")
    with torch.inference_mode():
        np.testing.assert_allclose(answer.adapted, model(torch.from_numpy(images)).numpy(), atol=1e-5)
    snapshot = engine.snapshot("a")
    engine.reset("a")
    assert engine.counts() == {}
    engine.restore("a", snapshot)
    assert engine.counts() == {"a": 8}
    with pytest.raises(StateError, match="has the heads head,"):
        engine.restore("a", replace(snapshot, heads={"head": snapshot.heads["head"]}))


def test_a_model_whose_logits_are_not_its_head_is_refused():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
            self.head = nn.Linear(48, 5)

        def forward(self, images):
            return self.head(self.body(images)) * 3 + 1

    with pytest.raises(NeottaError):
        TorchEngine(neotta.LoadedModel(Scaled(), neotta.Preprocess((32, 32))), "neo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The digits as ONNX files: plain, folded after adapting, and adaptive."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    place = tmp_path_factory.mktemp("onnx")
    digits = neotta.load_model("digits")
    export(digits, place / "plain.onnx")
    neotta.adapt(digits.model, "neo")
    with torch.inference_mode():
        digits.model(torch.from_numpy(pictures(16, shift=1.0)))
    export(digits, place / "folded.onnx")
    neotta.reset(digits.model)
    export(digits, place / "adaptive.onnx", form="adaptive")
    return place


@pytest.mark.parametrize("rule", ["neo-stream", "neo"])
@pytest.mark.parametrize("form", ["plain", "adaptive"])
def test_onnx_files_adapt_to_each_camera_as_torch_does(folder, form, rule):
    engine = open_engine(str(folder / f"{form}.onnx"), rule=rule)
    assert engine.labels == tuple("0123456789")
    torch_engine = open_engine("digits", rule=rule)
    images = pictures(16, seed=2, shift=0.5)
    ids = [*"aaaaaaaabbbbaaaa"]
    found, expected = engine.predict(images, ids), torch_engine.predict(images, ids)
    np.testing.assert_allclose(found.plain, expected.plain, atol=1e-3)
    np.testing.assert_allclose(found.adapted, expected.adapted, atol=2e-3)
    np.testing.assert_allclose(engine.offset("a"), torch_engine.offset("a"), atol=2e-3)
    assert engine.counts() == {"a": 12, "b": 4}


def test_an_onnx_file_keeps_its_cameras(folder, tmp_path):
    for expected in (8, 16):
        engine = open_engine(str(folder / "plain.onnx"), folder=tmp_path)
        with serving(engine, name="digits", folder=None) as client:
            client.infer(pictures(8), name="digits", stream="gate")
            assert client.service.engine.counts() == {"gate": expected}


def test_a_folded_file_answers_as_it_is(folder):
    engine = open_engine(str(folder / "folded.onnx"))
    assert (engine.rule, engine.adapts) == ("none", False)
    answer = engine.predict(pictures(2), ["a", "a"])
    assert (answer.plain == answer.adapted).all()
    assert not answer.learnt.any()
    for wrong, reason in (({"rule": "neo"}, "adapted and folded"), ({"num_classes": 3}, "brings its own")):
        with pytest.raises(OptionError, match=reason):
            open_engine(str(folder / "folded.onnx"), **wrong)
    with pytest.raises(OptionError, match="needs embeddings"):
        open_engine(str(folder / "plain.onnx"), rule="neo-mse")


def test_a_state_of_another_model_is_refused(tmp_path):
    neotta.save(neotta.adapt(network().model, "neo"), tmp_path / "other.safetensors")
    with pytest.raises(StateError, match="another model"):
        open_engine("digits", state=tmp_path / "other.safetensors")
