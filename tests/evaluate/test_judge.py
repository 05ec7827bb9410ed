"""`neotta.judge`: which images, what the model and the rules answer, and what is known of the right classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import neotta
from neotta.data.handwritten import digits
from neotta.errors import DataError, InputError, OptionError, UnknownMethodError
from neotta.evaluate.judgement import readable_names


@pytest.fixture(scope="module")
def loaded():
    return neotta.load_model("mnist")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    data = digits("all")
    for number in range(120):
        Image.fromarray(data.read(number)).save(folder / f"IMG_{number:03}.png")
    return folder


def predicted(model, images, size=1):
    with torch.inference_mode():
        return [str(int(each)) for batch in images.split(size) for each in model(batch).argmax(1)]


def test_the_rules_answer_online_as_the_adapted_model_does(loaded, photos):
    judged = neotta.judge(loaded, photos, ["neo", "neo-stream"])
    data = digits("all")
    images = loaded.preprocess.batch(data.read(number) for number in range(120))
    columns = list(zip(*judged.answers.values(), strict=True))
    assert list(judged.answers) == sorted(path.name for path in photos.iterdir())
    assert list(columns[0]) == predicted(loaded.model, images)
    for column, rule in zip(columns[1:], ("neo", "neo-stream"), strict=True):
        assert list(column) == predicted(neotta.adapt(loaded.model, rule), images)
        neotta.restore(loaded.model)
    steps = []
    in_batches = neotta.judge(loaded, photos, "neo", batch_size=16, progress=lambda *step: steps.append(step))
    assert [step for step in steps if step[0] == "neo answers"] == [("neo answers", n, 120) for n in range(0, 120, 16)]
    assert [row[1] for row in in_batches.answers.values()] == predicted(neotta.adapt(loaded.model, "neo"), images, 16)
    neotta.restore(loaded.model)
    assert judged.known == {}
    np.testing.assert_array_equal(judged.image("IMG_003.png"), data.read(3))


def test_the_first_images_are_taken_or_a_random_part_of_all(loaded, photos):
    first = neotta.judge(loaded, photos, "neo", samples=40)
    assert list(first.answers) == [f"IMG_{number:03}.png" for number in range(40)]
    assert "40 of 120 images in the order of their names, 1 at a time" in str(first)
    shuffled = neotta.judge(loaded, photos, "neo", samples=40, shuffled=True)
    assert len(shuffled.answers) == 40
    assert list(shuffled.answers) != sorted(shuffled.answers)
    assert max(shuffled.answers) > "IMG_040.png"


def test_labels_of_data_decide_without_a_question():
    judged = neotta.judge("mnist", "digits-all", samples=600)
    assert judged.finished
    assert judged.order == []
    truth = [str(label) for label in digits("all").labels[:600]]
    for place, gain in enumerate(judged.gains, 1):
        right = [
            np.mean([row[each] == true for row, true in zip(judged.answers.values(), truth, strict=True)])
            for each in (0, place)
        ]
        assert gain.low == gain.high == pytest.approx(100 * (right[1] - right[0]))
    assert judged.line == 'neotta.adapt(model, "neo")'


@pytest.mark.parametrize(("nested", "named"), [("", True), ("val/", True), ("camera ", False)])
def test_folders_called_like_classes_are_labels_and_others_are_not(loaded, tmp_path, nested, named):
    data = digits("all")
    for number in range(30):
        folder = tmp_path / f"{nested}{data.labels[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read(number)).save(folder / f"{number}.png")
    judged = neotta.judge(loaded, tmp_path, "neo")
    assert len(judged.answers) == 30
    assert bool(judged.known) is named
    assert bool(judged.order) is not named
    assert ("sorted by class" in str(judged)) is named


def test_folders_of_which_some_are_no_classes_are_no_labels(loaded, tmp_path):
    for folder in ("1", "2", "garage"):
        (tmp_path / folder).mkdir()
        Image.fromarray(digits("all").read(1)).save(tmp_path / folder / "a.png")
    assert neotta.judge(loaded, tmp_path, "neo").known == {}


def test_some_labels_are_used_for_their_images(loaded, photos):
    everything = neotta.judge(loaded, photos, "neo")
    some = dict.fromkeys(everything.order[:3], "7")
    judged = neotta.judge(loaded, photos, "neo", labels=some)
    assert judged.known == some
    assert set(judged.order) == set(everything.order[3:])
    with pytest.raises(DataError):
        neotta.judge(loaded, photos, "neo", labels={"IMG_000.png": "seven"})
    with pytest.raises(DataError):
        neotta.judge(loaded, photos, "neo", labels={"other.png": "7"})


@pytest.mark.filterwarnings("ignore:sample .* is skipped")
def test_unreadable_images_are_left_out_and_counted(loaded, photos, tmp_path):
    for path in sorted(photos.iterdir())[:10]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "IMG_0005.png").write_bytes(b"no image")
    judged = neotta.judge(loaded, tmp_path, "neo")
    assert len(judged.answers) == 10
    assert "1 image could not be read" in str(judged)
    for path in tmp_path.iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(DataError):
        neotta.judge(loaded, tmp_path, "neo")


def test_a_changed_image_is_judged_again(loaded, photos, tmp_path):
    for path in photos.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    kept = tmp_path / "kept" / "answers.jsonl"
    judged = neotta.judge(loaded, tmp_path, "neo", path=kept)
    first = judged.next
    judged.answer(first, "(skip)")
    assert neotta.judge(loaded, tmp_path, "neo", path=kept).given == ["(skip)"]
    Image.fromarray(digits("all").read(500)).save(tmp_path / first)
    with pytest.warns(RuntimeWarning, match="changed since"):
        assert neotta.judge(loaded, tmp_path, "neo", path=kept).given == []


def test_tensors_and_a_bare_module_are_judged_as_they_are(loaded):
    data = digits("all")
    images = loaded.preprocess.batch(data.read(number) for number in range(60))
    judged = neotta.judge(loaded.model, images, "neo")
    assert list(judged.answers) == [str(number) for number in range(60)]
    assert {text for row in judged.answers.values() for text in row} <= {f"class {number}" for number in range(10)}
    shown = judged.image("3")
    assert (shown.dtype, shown.shape, shown.min(), shown.max()) == (np.uint8, (32, 32, 3), 0, 255)
    labelled = neotta.judge(loaded.model, (images, torch.tensor(data.labels[:60])), "neo")
    assert labelled.order == []
    with pytest.raises(DataError):
        neotta.judge(loaded.model, (images, torch.full((60,), 12)), "neo")


def test_methods_that_need_images_and_options_are_judged_too(loaded, photos):
    judged = neotta.judge(loaded, photos, ["neo-continual:alpha=0.05", "tent"], samples=24, batch_size=8)
    assert judged.lines == ('neotta.adapt(model, "neo-continual", alpha=0.05)', 'neotta.create("tent", model)')
    adapter = neotta.create("tent", loaded.model)
    images = loaded.preprocess.batch(digits("all").read(number) for number in range(24))
    expected = [str(int(each)) for batch in images.split(8) for each in adapter(batch).argmax(1)]
    assert [row[2] for row in judged.answers.values()] == expected
    adapter.detach()


def test_names_of_classes_can_be_read_and_told_apart():
    assert readable_names(None, 2) == ["class 0", "class 1"]
    assert readable_names(["crane", "dog", "crane"], 3) == ["crane (0)", "dog", "crane (2)"]
    pytest.importorskip("timm")
    assert readable_names(["n01440764", "n02012849"], 2) == ["tench, Tinca tinca", "crane"]


@pytest.mark.parametrize(
    ("rules", "more", "error"),
    [
        ("none", {}, OptionError),
        ([], {}, OptionError),
        ("nero", {}, UnknownMethodError),
        ("neo", {"batch_size": 0}, OptionError),
    ],
)
def test_what_cannot_be_judged_is_refused(loaded, photos, rules, more, error):
    with pytest.raises(error):
        neotta.judge(loaded, photos, rules, **more)


def test_models_that_cannot_be_judged_are_refused(loaded, photos):
    with pytest.raises(InputError):
        neotta.judge(torch.nn.Linear(3, 2).train(), photos)
    with pytest.raises(OptionError):
        neotta.judge(loaded.model, photos)
    with pytest.raises(DataError):
        neotta.judge(loaded, photos / "nothing", "neo")


def test_an_empty_source_says_what_is_missing(loaded, tmp_path):
    with pytest.raises(DataError):
        neotta.judge(loaded, tmp_path, "neo")
