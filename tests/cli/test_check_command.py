"""`neotta check`: which line to use, before deployment."""

import json

import numpy as np
import pytest
from PIL import Image

import neotta
from neotta.data.handwritten import digits


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    """A folder of clean pictures without labels."""
    folder = tmp_path_factory.mktemp("clean")
    data = digits("test")
    for name, image in zip(data.ids, data.images, strict=True):
        if int(name) % 2 == 0:
            Image.fromarray(image).save(folder / f"{name}.png")
    return folder


@pytest.mark.slow
def test_the_bundled_digits(command, tmp_path):
    path = tmp_path / "reference.safetensors"
    done = command("check", "--samples", "200", "--reference", str(path))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "what it returns is what the model returns" in text
    assert "Use: model = neotta.adapt(model)" in text
    assert "neo-stream, reference" in text
    assert "The reference was written to" in text
    model = neotta.load_model("digits").model
    neotta.adapt(model, "neo-stream", reference=path)


def test_unlabelled_folders_as_json(command, unlabelled):
    done = command("check", "--data", str(unlabelled), "--json", "--samples", "128")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"] is None
    assert not found["labelled"]
    assert found["images"] == 128
    assert found["advice"] == "neotta.adapt(model)"
    worst = {(rule["rule"], rule["reference"]): rule["worst"] for rule in found["rules"]}
    assert worst["neo", False] < -20 < -1 <= worst["neo-stream", False]
    assert np.isclose(sum(found["shares"]), 1.0)


FOUR_OUTPUTS = """
import neotta
from torch import nn

def build():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 4))
    return neotta.LoadedModel(model.eval(), neotta.load_model("digits").preprocess)
"""


def test_what_cannot_be_checked_is_said_in_one_line(command, tmp_path):
    (tmp_path / "four.py").write_text(FOUR_OUTPUTS)
    for given, message in (
        ([f"py:{tmp_path / 'four.py'}:build", "--allow-code"], "go up to 9, and the model has 4 outputs"),
        (["--data", str(tmp_path / "nothing")], "nothing"),
        (["--domain", "fog"], "the data has test"),
        (["--reference", "clean.npz"], ".safetensors"),
        (["--samples", "3"], "samples"),
    ):
        done = command("check", *given)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
