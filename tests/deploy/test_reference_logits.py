"""References behind other runtimes: `LogitRecenter`, adaptive ONNX files and `OnnxClassifier`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.reference_models import CLASSES, network, pictures

import neotta
from neotta.deploy import LogitRecenter, OnnxClassifier, export
from neotta.errors import OptionError, StateMismatchError


@pytest.fixture(scope="module")
def known() -> neotta.Reference:
    return neotta.reference(network(), pictures())


@pytest.fixture(scope="module")
def plain() -> np.ndarray:
    with torch.no_grad():
        return network()(pictures(90, 2, 0.4)).numpy()


def adapted_answers(method: str, known: neotta.Reference) -> np.ndarray:
    model = neotta.adapt(network(), method, reference=known)
    with torch.no_grad():
        return torch.cat([model(batch) for batch in pictures(90, 2, 0.4).split(16)]).numpy()


def in_batches(predict, rows) -> np.ndarray:
    return np.concatenate([predict(rows[start : start + 16]) for start in range(0, len(rows), 16)])


# ---- LogitRecenter


def test_logits_are_recentered_towards_the_reference_as_by_the_layer(known, plain, tmp_path):
    known.save(tmp_path / "reference.safetensors")
    wanted = adapted_answers("neo-stream", known)
    bias = network()[3].bias
    for given in (known, tmp_path / "reference.safetensors"):
        found = in_batches(LogitRecenter(bias, reference=given).recenter, plain)
        np.testing.assert_allclose(found, wanted, atol=2e-4)
    without_bias = in_batches(LogitRecenter(reference=known).recenter, plain)  # the reference takes its place
    np.testing.assert_allclose(without_bias, wanted, atol=2e-4)
    assert abs(in_batches(LogitRecenter(bias).recenter, plain) - wanted).max() > 0.01


def test_a_reference_of_another_head_is_refused(known, plain):
    other = neotta.reference(network(5), pictures())
    head, foreign = network()[3], network(5)[3]
    with pytest.raises(StateMismatchError, match="bias differs"):
        LogitRecenter(head.bias, reference=other).recenter(plain)
    with torch.no_grad():
        foreign.bias.copy_(head.bias)
    with pytest.raises(StateMismatchError, match="weight differs"):
        LogitRecenter(head.bias, weight=foreign.weight, reference=known).recenter(plain)
    LogitRecenter(head.bias, weight=head.weight, reference=known).recenter(plain)
    with pytest.raises(StateMismatchError, match="5 classes, the logits 4"):
        LogitRecenter(reference=known).recenter(plain[:, :4])
    with pytest.raises(OptionError, match="neo-stream"):
        LogitRecenter(head.bias, "neo", reference=known)
    with pytest.raises(OptionError, match="expected the result of"):
        LogitRecenter(reference=3).recenter(plain)


def test_a_state_belongs_to_its_reference(known, plain, tmp_path):
    one, other = LogitRecenter(reference=known), LogitRecenter()
    one.recenter(plain)
    one.save(tmp_path / "state.safetensors")
    again = LogitRecenter(reference=known)
    again.load(tmp_path / "state.safetensors")
    np.testing.assert_array_equal(again.recenter(plain, adapt=False), one.recenter(plain, adapt=False))
    with pytest.raises(StateMismatchError, match="another reference"):
        other.load(tmp_path / "state.safetensors")
    other.recenter(plain)
    with pytest.raises(StateMismatchError, match="another reference"):
        one.merge(other)


# ---- ONNX


def write(path, model) -> OnnxClassifier:
    export(model, path, form="adaptive", example=pictures(2), verify=False)
    return OnnxClassifier(path)


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    """A file of a model that has no reference."""
    path = tmp_path_factory.mktemp("without") / "model.onnx"
    write(path, neotta.adapt(network()))
    return path


@pytest.fixture(scope="module")
def inside(tmp_path_factory, known):
    """A file of a model that has one."""
    path = tmp_path_factory.mktemp("inside") / "model.onnx"
    write(path, neotta.adapt(network(), reference=known))
    return path


@pytest.mark.slow
def test_a_file_answers_as_the_model_with_the_reference(known, without, inside, tmp_path):
    classifier = OnnxClassifier(inside)
    images = pictures(90, 2, 0.4)
    found = in_batches(classifier.predict, images.numpy())
    np.testing.assert_allclose(found, adapted_answers("neo-stream", known), atol=1e-4)
    assert abs(in_batches(OnnxClassifier(without).predict, images.numpy()) - found).max() > 0.01
    with torch.no_grad():
        np.testing.assert_allclose(classifier.plain(images), network()(images), atol=1e-5)

    classifier.save(tmp_path / "state.safetensors")
    fresh = network()
    neotta.load(fresh, tmp_path / "state.safetensors")  # adapts it, towards the same reference
    with torch.no_grad(), neotta.paused(fresh):
        np.testing.assert_allclose(fresh(images), classifier.predict(images.numpy(), adapt=False), atol=1e-4)
    neotta.save(fresh, tmp_path / "torch.safetensors")
    other = OnnxClassifier(inside)
    other.load(tmp_path / "torch.safetensors")
    assert other.count == 90
    with pytest.raises(StateMismatchError, match="another reference"):
        OnnxClassifier(without).load(tmp_path / "torch.safetensors")


@pytest.mark.slow
def test_streams_of_a_file_recenter_towards_the_reference(known, inside):
    classifier, model = OnnxClassifier(inside), neotta.adapt(network(), streams=True, reference=known)
    images, ids = pictures(48, 2, 0.4), ["gate", "yard", "gate"] * 16
    for start in range(0, 48, 12):
        part = slice(start, start + 12)
        with torch.no_grad(), neotta.streams(ids[part]):
            wanted = model(images[part])
        np.testing.assert_allclose(classifier.predict(images[part].numpy(), stream=ids[part]), wanted, atol=1e-4)


@pytest.mark.slow
def test_a_file_with_a_mean_rule_contains_the_reference(known, tmp_path):
    classifier = write(tmp_path / "neo.onnx", neotta.adapt(network(), "neo", reference=known))
    found = in_batches(classifier.predict, pictures(90, 2, 0.4).numpy())
    np.testing.assert_allclose(found, adapted_answers("neo", known), atol=1e-4)
    other = write(tmp_path / "plain.onnx", neotta.adapt(network(), "neo"))
    assert abs(in_batches(other.predict, pictures(90, 2, 0.4).numpy()) - found).max() > 0.01


def test_the_logits_of_a_plain_file_are_recentered_towards_the_reference(known, tmp_path):
    path = tmp_path / "folded.onnx"
    export(network(), path, form="folded", example=pictures(2), verify=False)
    logits = np.random.default_rng(0).normal(size=(4, CLASSES))
    LogitRecenter.from_onnx(path, reference=known).recenter(logits)
    with pytest.raises(StateMismatchError, match="another head"):
        LogitRecenter.from_onnx(path, reference=neotta.reference(network(5), pictures())).recenter(logits)
