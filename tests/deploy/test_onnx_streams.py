"""Adaptive files with streams and weights: neo-stream, and a rule on means."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import onnxruntime
import pytest
import torch
from support.deploy_models import network, started
from torch import nn

import neotta
from neotta.deploy import OnnxClassifier, export
from neotta.errors import InputError, NotAdaptedError, StateMismatchError

RULES = ["neo-stream", "neo"]
EXAMPLE = torch.zeros(1, 3, 32, 32)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The adaptive file of a network that has seen nothing, for each rule."""
    folder = tmp_path_factory.mktemp("onnx")
    for rule in RULES:
        export(neotta.adapt(network(), rule), folder / rule, form="adaptive", example=EXAMPLE)
    return lambda rule: folder / rule


def images(rows, seed=0):
    return torch.randn(rows, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 2 + 0.3


IDS = ["gate", "yard", "gate", 7, "gate", 7, "yard", "gate"]


@pytest.mark.parametrize("rule", RULES)
@torch.no_grad()
def test_streams_answer_and_are_saved_as_those_of_the_model(file, rule, tmp_path):
    classifier = OnnxClassifier(file(rule))
    model = neotta.adapt(network(), rule, streams=True)
    for seed in range(4):
        with neotta.streams(IDS):
            wanted = model(images(8, seed))
        np.testing.assert_allclose(classifier.predict(images(8, seed).numpy(), stream=IDS), wanted, atol=1e-4)
    assert classifier.streams() == neotta.head(model).streams.counts() == {"gate": 16, "yard": 8, 7: 8}
    assert classifier.count == 32
    classifier.save(tmp_path / "all")
    classifier.save(tmp_path / "one", stream=7)
    neotta.load(model, tmp_path / "all")
    one = neotta.adapt(network(), rule)
    neotta.load(one, tmp_path / "one")
    neotta.save(model, tmp_path / "torch")
    again = OnnxClassifier(file(rule))
    again.load(tmp_path / "torch")
    again.load(tmp_path / "one", stream="copy")
    for head in (neotta.head(model), neotta.head(one)):
        head.freeze()
    with neotta.streams([7] * 8):
        wanted = model(images(8, 9))
    np.testing.assert_allclose(one(images(8, 9)), wanted, atol=1e-5)
    for stream in (7, "copy"):
        np.testing.assert_allclose(again.predict(images(8, 9).numpy(), adapt=False, stream=stream), wanted, atol=1e-4)
    again.reset("copy")
    assert again.streams() == {"gate": 16, "yard": 8, 7: 8}
    again.reset()
    assert again.count == 0


@pytest.mark.parametrize("rule", RULES)
@torch.no_grad()
def test_images_without_weight_are_predicted_but_not_learnt_from(file, rule):
    classifier, model = OnnxClassifier(file(rule)), neotta.adapt(network(), rule)
    weights = [1, 0, 1, 1, 1, 0, 1, 1]
    for seed in range(3):
        with neotta.rows(weights):
            wanted = model(images(8, seed))
        found = classifier.predict(images(8, seed).numpy(), weights=weights)
        learnt = np.array(weights) > 0  # the others are answered afterwards, not in their place
        np.testing.assert_allclose(found[learnt], wanted[learnt], atol=1e-4)
        later = classifier.predict(images(8, seed).numpy(), adapt=False)
        np.testing.assert_allclose(found[~learnt], later[~learnt], atol=1e-6)
    assert classifier.count == 18
    before = classifier.state()
    classifier.predict(images(8).numpy(), weights=np.zeros(8))
    assert all(np.array_equal(value, classifier.state()[name]) for name, value in before.items())
    for bad in ([1.0] * 7, [-1.0] * 8, [np.inf] * 8):
        with pytest.raises(InputError, match="weight"):
            classifier.predict(images(8).numpy(), weights=bad)
    with pytest.raises(InputError, match="0 or 1"):
        classifier.predict(images(8).numpy(), weights=[0.5] * 8)
    with pytest.raises(InputError, match="3 stream ids for a batch of 8"):
        classifier.predict(images(8).numpy(), stream=["a", "b", "c"])


@torch.no_grad()
def test_the_graph_itself_begins_with_the_exported_state_and_goes_on(file):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file("neo-stream"), options)
    model, feed = neotta.adapt(network(), "neo-stream"), {}
    for seed, rows in enumerate((1, 5, 3, 1, 8, 64)):
        feed["images"] = images(rows, seed).numpy()
        logits, state = session.run(None, feed)
        np.testing.assert_allclose(logits, model(images(rows, seed)), atol=1e-4)
        _, same = session.run(None, {**feed, "state": state, "adapt": np.array(False)})
        np.testing.assert_array_equal(same, state)
        feed["state"] = state
    assert state[0, :2].tolist() == [82, 0]
    bad = images(2, 3)
    bad[0] = torch.nan
    _, after = session.run(None, {"images": bad.numpy(), "state": state})
    assert after[0, :2].tolist() == [83, 1]
    assert np.isfinite(after).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["four classes in turn, shifted, one batch", "runs of five classes, shifted, 100 in one batch"]
)
def test_the_graph_replays_the_recorded_vectors(name, shared, tmp_path):
    case = json.loads((shared / "safe" / "vectors-3.json").read_text())[name]
    classes = len(case["bias"])
    body = nn.Flatten()
    model = nn.Sequential(OrderedDict(body=body, fc=nn.Linear(classes, classes)))
    with torch.no_grad():
        model.fc.weight.copy_(torch.eye(classes))
        model.fc.bias.copy_(torch.tensor(case["bias"]))
    neotta.adapt(model, "neo-stream", head="fc")
    rows = (np.array(case["logits"]) - case["bias"]).astype(np.float32)[:, None, None]
    export(model, tmp_path / "x", form="adaptive", example=torch.tensor(rows[:2]), verify=False)
    classifier = OnnxClassifier(tmp_path / "x")
    answers = [classifier.predict(rows[at : at + case["batch"]]) for at in range(0, len(rows), case["batch"])]
    wanted = np.array(case["outputs"])
    np.testing.assert_allclose(np.concatenate(answers), wanted, atol=1e-5 * np.abs(wanted).max())


def test_a_folded_file_has_neither_streams_nor_weights(tmp_path):
    export(started(network(), "neo"), tmp_path / "x", example=EXAMPLE, verify=False)
    classifier = OnnxClassifier(tmp_path / "x")
    for more in ({"stream": "gate"}, {"weights": [1, 1]}):
        with pytest.raises(NotAdaptedError, match="folded"):
            classifier.predict(images(2).numpy(), **more)


def test_a_state_of_another_rule_is_refused(file, tmp_path):
    OnnxClassifier(file("neo")).save(tmp_path / "neo")
    classifier = OnnxClassifier(file("neo-stream"))
    with pytest.raises(StateMismatchError, match="is of neo "):
        classifier.load(tmp_path / "neo")
    assert classifier.count == 0
