"""`neotta export` on the bundled model, and the real images it was made for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import neotta
from neotta.cli.app import app
from neotta.data import digits
from neotta.deploy import LogitRecenter, OnnxClassifier
from neotta.errors import InputError, NeottaError, OptionError


def run(*words):
    return CliRunner().invoke(app, ["export", *map(str, words)], catch_exceptions=False)


def foggy():
    """Images and labels of a domain of its own: little contrast, and bright."""
    data = digits()
    return (data.images[:200] * 0.5 + 80).astype(np.uint8), data.labels[:200]


def test_an_adaptive_file_reaches_the_accuracy_of_the_model(tmp_path):
    out = tmp_path / "digits.onnx"
    done = run("digits", "-o", out, "--form", "adaptive", "--method", "neo-continual:alpha=0.2,debias=true")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{out}: adaptive, ")
    assert done.stdout.endswith("MiB, checked against torch\n")
    images, labels = foggy()
    loaded = neotta.load_model("digits")
    model = neotta.adapt(loaded.model, "neo-continual", alpha=0.2, debias=True)
    classifier = OnnxClassifier(out)
    right = {"torch": 0, "onnx": 0}
    with torch.no_grad():
        for batch, truth in zip(np.split(images, 4), np.split(labels, 4), strict=True):
            right["torch"] += int((model(loaded.preprocess.batch(batch)).argmax(1).numpy() == truth).sum())
            right["onnx"] += int((np.array(classifier.classify(batch)) == truth.astype(str)).sum())
    assert right["torch"] == right["onnx"] > 140  # of 200; without adapting it is 80


def test_a_saved_state_is_folded_in(tmp_path):
    loaded = neotta.load_model("digits")
    images = loaded.preprocess.batch(foggy()[0][:50])
    model = neotta.adapt(loaded.model, "neo")
    with torch.no_grad():
        logits = model(images).numpy()
    neotta.save(model, tmp_path / "fog.safetensors")
    done = run("digits", "-o", tmp_path / "digits.onnx", "--state", tmp_path / "fog.safetensors")
    assert done.stdout.endswith("checked against torch\n")
    assert ": folded, " in done.stdout
    classifier = OnnxClassifier(tmp_path / "digits.onnx")
    assert (classifier.form, classifier.name, classifier.labels) == ("folded", "digits", tuple("0123456789"))
    np.testing.assert_allclose(classifier.predict(images.numpy()), logits, atol=1e-4)


def test_one_stream_of_a_state_of_many(tmp_path):
    loaded = neotta.load_model("digits")
    many, images = neotta.adapt(loaded.model, "neo", streams=True), loaded.preprocess.batch(foggy()[0][:8])
    with torch.no_grad(), neotta.streams(["gate", 7, 7, 7] * 2):
        logits = many(images)
    neotta.save(many, tmp_path / "all.safetensors")
    done = run("digits", "-o", tmp_path / "x.onnx", "--state", tmp_path / "all.safetensors", "--stream", "7")
    assert done.exit_code == 0
    classifier = OnnxClassifier(tmp_path / "x.onnx")
    assert classifier.count == 6
    np.testing.assert_allclose(classifier.predict(images.numpy())[1], logits[1].numpy(), atol=1e-4)
    for words, message in (([], "name a stream"), (["--stream", "yard"], "no stream 'yard'")):
        with pytest.raises(InputError, match=message):
            run("digits", "-o", tmp_path / "y.onnx", "--state", tmp_path / "all.safetensors", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "-o", "{}/x.onnx", "--form", "flat"], "unknown form 'flat': known: adaptive, folded"),
        (["digits", "-o", "{}/x.onnx", "--method", "neo"], "--form adaptive"),
        (["digits", "-o", "{}/x.onnx", "--state", "{}/nothing", "--method", "neo"], "omit --method"),
        (["digits", "-o", "{}/x.onnx", "--state", "{}/nothing"], "no state file"),
        (["digits", "-o", "{}/x.onnx", "--stream", "gate"], "give both"),
        (["digits", "-o", "{}/x.tflite"], r"is an ONNX file, so name one such as '.*x\.onnx'"),
        (["digits", "-o", "{}", "--form", "adaptive"], "is a folder"),
        (["digits", "-o", "{}/x.onnx", "--form", "adaptive", "--method", "neo:alpha"], "name=value"),
        (["digits", "-o", "{}/x.onnx", "--form", "adaptive", "--method", "neo:weighting=none"], "weighting"),
        (["digits", "-o", "{}/x.onnx", "--labels", "{}/nothing"], "cannot be read"),
    ],
)
def test_what_is_wrong_is_said(words, message, tmp_path):
    with pytest.raises(NeottaError, match=message):
        run(*(word.format(tmp_path) for word in words))
    assert not list(tmp_path.iterdir())


def test_without_a_state_it_says_that_nothing_is_folded_in(tmp_path):
    words = ("--model-option", "preprocess.interpolation=box")
    done = run("digits", "-o", tmp_path / "x.onnx", *words)
    assert OnnxClassifier(tmp_path / "x.onnx").preprocess.interpolation == "box"
    assert ": the plain model (no --state to fold in), " in done.stdout
    LogitRecenter.from_onnx(tmp_path / "x.onnx")  # so it may be re-centered


def test_labels_of_another_number_are_refused(tmp_path):
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    with pytest.raises(OptionError, match="2 labels"):
        run("digits", "-o", tmp_path / "x.onnx", "--labels", tmp_path / "labels.txt")


def test_the_command_is_listed():
    done = subprocess.run([sys.executable, "-m", "neotta", "--help"], capture_output=True, text=True, check=True)
    assert "export" in done.stdout
