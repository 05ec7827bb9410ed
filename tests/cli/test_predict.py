"""`neotta predict`: answers to a folder of images, adapting."""

import csv
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

import neotta
import neotta.deploy
from neotta.data.handwritten import digits


@pytest.fixture
def foggy(tmp_path):
    """Pictures with little contrast: some in folders, one beside them, one broken."""
    data = digits("test")
    for number in range(60):
        folder = tmp_path / "photos" / ("" if number == 0 else str(number % 2))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((data.images[number] * 0.5 + 80).astype(np.uint8)).save(folder / f"{number:02}.png")
    return tmp_path / "photos"


def answers(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.filterwarnings("ignore:sample .broken.png.")
def test_all_images_are_classified_by_a_model_that_adapts(command, tmp_path, foggy):
    (foggy / "broken.png").write_bytes(b"no image")
    done = command("predict", "digits", "photos", "-o", "a.csv", "--batch-size", "16", folder=tmp_path, width=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("60 images classified, 1 unreadable: a.csv\n")
    assert "Next: neotta judge digits photos" in done.stderr
    rows = answers(tmp_path / "a.csv")
    assert list(rows[0]) == ["image", "class", "confidence", "plain", "plain_confidence"]
    assert {row["image"] for row in rows} == {str(path.relative_to(tmp_path)) for path in foggy.rglob("[0-9]*.png")}

    loaded = neotta.load_model("digits")
    adapter = neotta.create("neo-stream", loaded.model)
    images = [np.asarray(Image.open(tmp_path / row["image"])) for row in rows]
    batches = loaded.preprocess.batch(np.stack(images)).split(16)
    expected = torch.cat([adapter(batch).softmax(dim=1) for batch in batches])
    assert [row["class"] for row in rows] == [str(int(each)) for each in expected.argmax(dim=1)]
    np.testing.assert_allclose([float(row["confidence"]) for row in rows], expected.amax(dim=1), atol=1e-3)
    with torch.no_grad():
        plain = torch.cat([neotta.load_model("digits").model(batch).softmax(dim=1) for batch in batches])
    assert [row["plain"] for row in rows] == [str(int(each)) for each in plain.argmax(dim=1)]
    np.testing.assert_allclose([float(row["plain_confidence"]) for row in rows], plain.amax(dim=1), atol=1e-3)
    changed = sum(row["class"] != row["plain"] for row in rows)
    assert f"NEO-Stream changed {changed} answers ({changed / 60:.1%})." in done.stdout
    assert "Health: " + str(neotta.health(adapter)).replace("\n- ", "; ") in done.stdout
    often, count = Counter(row["plain"] for row in rows).most_common(1)[0]
    assert f"Most frequent answers: plain {often} {count / 60:.0%}, " in done.stdout


def test_names_of_classes_and_another_method(command, tmp_path, foggy):
    (tmp_path / "names.txt").write_text("\n".join(f"digit {number}" for number in range(10)))
    words = ("--labels", "names.txt", "--method", "neo-continual:alpha=0.2")
    done = command("predict", "digits", "photos", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for row in answers(tmp_path / "answers.csv"):
        assert {row["class"].partition(" ")[0], row["plain"].partition(" ")[0]} == {"digit"}


def test_methods_that_learn_from_images_tell_the_plain_answers_too(command, tmp_path, foggy):
    for method, file in (("tent:lr=0.5", "tent.csv"), ("none", "none.csv")):
        done = command(
            "predict", "digits", "photos", "--method", method, "-o", file, "--batch-size", "16", folder=tmp_path
        )
        assert done.returncode == 0, done.stderr
    tent, none = answers(tmp_path / "tent.csv"), answers(tmp_path / "none.csv")
    plain = [(row["plain"], row["plain_confidence"]) for row in none]
    assert [(row["plain"], row["plain_confidence"]) for row in tent] == plain
    assert [(row["class"], row["confidence"]) for row in none] == plain
    assert tent != none


def test_one_answer_for_most_images_is_to_be_checked(command, tmp_path):
    for number in range(40):
        path = tmp_path / "night" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(path)
    done = command("predict", "digits", "night", folder=tmp_path)
    rows = answers(tmp_path / "answers.csv")
    often, count = Counter(row["class"] for row in rows).most_common(1)[0]
    assert count > 22
    assert f"Check: most answers are {often}" in done.stdout
    done = command("predict", "digits", "night", "--method", "none", folder=tmp_path)
    assert "The plain model answered: nothing adapts." in done.stdout
    assert "adapted" not in done.stdout


@pytest.mark.parametrize("form", ["adaptive", "folded"])
def test_an_onnx_file_answers_as_the_model_does(command, tmp_path, foggy, form):
    pytest.importorskip("onnxruntime")
    words = ("photos", "--batch-size", "16", "-o")
    method = "neo" if form == "adaptive" else "none"
    adapting = ("--method", method) if form == "adaptive" else ()
    assert command("export", "digits", "-o", "d.onnx", "--form", form, *adapting, folder=tmp_path).returncode == 0
    done = command("predict", "d.onnx", *words, "onnx.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert command("predict", "digits", *words, "torch.csv", "--method", method, folder=tmp_path).returncode == 0
    onnx, torch_ = answers(tmp_path / "onnx.csv"), answers(tmp_path / "torch.csv")
    told = ("image", "class", "plain") if form == "adaptive" else ("image", "class")
    assert [[row[name] for name in told] for row in onnx] == [[row[name] for name in told] for row in torch_]
    done = command("predict", "d.onnx", "photos", "--method", "tent", folder=tmp_path)
    assert "adapts as it was exported" in done.stderr


def test_a_file_that_was_adapted_and_folded_tells_no_plain_answers(command, tmp_path, foggy):
    pytest.importorskip("onnxruntime")
    loaded = neotta.load_model("digits")
    neotta.adapt(loaded.model, "neo")
    with torch.no_grad():
        loaded.model(torch.randn(40, 3, 32, 32))
    neotta.deploy.export(loaded, tmp_path / "folded.onnx")
    done = command("predict", "folded.onnx", "photos", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "folded into the file" in done.stdout
    assert "changed" not in done.stdout
    rows = answers(tmp_path / "answers.csv")
    assert {(row["plain"], row["plain_confidence"]) for row in rows} == {("", "")}
    assert all(row["class"] for row in rows)


def test_what_cannot_be_predicted_is_said_in_one_line(command, tmp_path, foggy):
    (tmp_path / "folders.csv").write_text("zero,0\none,1\n")
    for words, message in (
        (["digits", "photos", "--labels", "folders.csv"], "name the model's classes, one per line"),
        (["digits", "nothing"], "there is no file or folder"),
        (["digits", "photos", "-o", "a.xlsx"], "answers go to a .csv file"),
        (["digits", "photos", "--method", "tnet"], "did you mean 'tent'?"),
        (["digits", "photos", "--labels", "nothing.txt"], "cannot be read"),
    ):
        done = command("predict", *words, folder=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
