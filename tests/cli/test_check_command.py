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
    done = command("check", "--samples", "200", "-o", str(path))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "what it returns is what the model returns" in text
    assert "Use: model = neotta.adapt(model)" in text
    assert "neo-stream, reference" in text
    assert "The reference was written:" in text
    model = neotta.load_model("digits").model
    neotta.adapt(model, "neo-stream", reference=path)


def test_unlabelled_folders_as_json(command, unlabelled):
    done = command("check", "digits", str(unlabelled), "--json", "--samples", "128")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["accuracy"] is None
    assert not found["labelled"]
    assert found["images"] == 128
    assert found["advice"] == "neotta.adapt(model)"
    worst = {(rule["rule"], rule["reference"]): rule["worst"] for rule in found["rules"]}
    assert worst["neo", False] < -20 < -1 <= worst["neo-stream", False]
    assert np.isclose(sum(found["shares"]), 1.0)


def test_images_of_another_place_are_noticed_and_leave_the_reference_as_it_was(command, unlabelled, tmp_path):
    (tmp_path / "dark").mkdir()
    for path in unlabelled.iterdir():
        pixels = np.asarray(Image.open(path)).astype(float)
        Image.fromarray((pixels * 0.1 + 20).astype(np.uint8)).save(tmp_path / "dark" / path.name)
    words = ("check", "--samples", "128", "-o", "clean.safetensors", "digits")
    assert command(*words, str(unlabelled), folder=tmp_path).returncode == 0
    before = (tmp_path / "clean.safetensors").read_bytes()
    done = command(*words, "dark", folder=tmp_path)
    text = " ".join(done.stdout.split())
    assert text.index("These do not look like clean images") < text.index("neo-continual")
    assert "as sure of them as of those of the reference" in text
    assert "Use none" not in text
    assert "Next: neotta judge digits dark" in done.stderr
    assert (tmp_path / "clean.safetensors").read_bytes() == before


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
        ([f"py:{tmp_path / 'four.py'}:build"], "has a class 9, and the model has 4 classes"),
        (["digits", str(tmp_path / "nothing")], "nothing"),
        (["--corruptions", "fogg"], "unknown corruption 'fogg': did you mean 'fog'?"),
        (["--labels", "nothing.txt"], "cannot be read"),
        (["--output", "clean.npz"], ".safetensors"),
        (["--samples", "3"], "samples"),
    ):
        done = command("check", *given)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_checkpoint_is_explained_in_two_lines(command, tmp_path):
    (tmp_path / "model.pt").write_bytes(b"pickled")
    done = command("check", "model.pt", folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2
    assert "torch.load('model.pt', weights_only=True)" in done.stderr
    assert "py:mine.py:build" in done.stderr


BATCH_NORM = """
import neotta
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layers = (nn.AdaptiveAvgPool2d(4), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 10))
    return neotta.LoadedModel(nn.Sequential(*layers).eval(), neotta.load_model("digits").preprocess)
"""


@pytest.mark.filterwarnings("ignore:a reference of")
def test_networks_with_batch_norm_are_checked_under_a_shift_with_names_of_classes(command, tmp_path):
    data = digits("test")
    names = [f"class {number}" for number in range(10)]
    for number in range(64):
        folder = tmp_path / "clean" / names[data.labels[number]]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.images[number]).save(folder / f"{number}.png")
    (tmp_path / "names.txt").write_text("\n".join(names))
    (tmp_path / "norms.py").write_text(BATCH_NORM)
    words = ("clean", "--corruptions", "fog", "--json", "--labels")
    done = command("check", "py:norms.py:build", *words, "names.txt", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["labelled"]
    (norm,) = (rule for rule in found["rules"] if rule["rule"] == "neo-bn")
    assert list(norm["changes"]) == ["clean", "fog/5"]
    assert {len(draws) for kinds in norm["changes"]["fog/5"].values() for draws in kinds.values()} == {3}
    (tmp_path / "folders.csv").write_text("".join(f"{name},{number}\n" for number, name in enumerate(names)))
    assert command("check", "py:norms.py:build", *words, "folders.csv", folder=tmp_path).stdout == done.stdout
