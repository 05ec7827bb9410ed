"""Models that the caller made: what timm and Hugging Face have on record for them is used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import neotta
from neotta.data import digits
from neotta.errors import OptionError
from neotta.evaluate.judgement import readable_names
from neotta.models._timm import timm_package
from neotta.models.load import known_parts, load_model
from neotta.models.preprocess import Preprocess
from neotta.neo.find_head import logits_of

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}


def of_timm(name="vit_tiny_patch16_224", **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm_package().create_model(name, **options).eval()


def of_hugging_face(folder):
    from transformers import AutoModelForImageClassification

    return AutoModelForImageClassification.from_pretrained(folder).eval()


@pytest.fixture
def photos(tmp_path):
    folder, data = tmp_path / "photos", digits("test")
    for index in range(12):
        path = folder / str(data.labels[index] % 3) / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read(index)).save(path)
    return folder


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "efficientnet_b0"])
def test_a_model_of_timm_has_the_preprocessing_that_its_name_has(name):
    assert known_parts(of_timm(name)).preprocess == load_model(f"timm:{name}", pretrained=False).preprocess


def test_a_model_of_timm_made_for_another_size_takes_that():
    by_name = load_model("timm:vit_tiny_patch16_224", pretrained=False, **TINY)
    assert by_name.preprocess.size == (32, 32)
    assert known_parts(of_timm(**TINY)).preprocess == by_name.preprocess


@pytest.mark.parametrize(("options", "labels"), [({}, 1000), ({"num_classes": 3}, None)])
def test_classes_of_imagenet_have_names_and_others_none(options, labels):
    found = known_parts(of_timm(**TINY, **options)).labels
    assert (found and len(found)) == labels


def test_a_model_of_hugging_face_has_the_processor_beside_its_weights(tiny_hf):
    found, by_name = known_parts(of_hugging_face(tiny_hf)), load_model(f"hf:{tiny_hf}")
    assert (found.preprocess, found.labels) == (by_name.preprocess, by_name.labels)


def test_without_a_processor_nothing_is_known(tiny_hf, tmp_path):
    model = of_hugging_face(tiny_hf)
    model.save_pretrained(tmp_path / "weights alone")
    assert known_parts(of_hugging_face(tmp_path / "weights alone")).preprocess is None
    assert known_parts(type(model)(model.config.__class__())).preprocess is None


@pytest.mark.parametrize("kind", ["timm", "hf"])
def test_images_are_evaluated_and_judged_with_it(kind, tiny_hf, photos):
    model = of_hugging_face(tiny_hf) if kind == "hf" else of_timm(num_classes=3, **TINY)
    ready = known_parts(model).preprocess
    how = {"methods": ["none", "neo"], "seeds": 1, "samples": 12}
    found, given = (
        neotta.evaluate(model, photos, **how, **options).frame().answers for options in ({}, {"preprocess": ready})
    )
    assert [answers.right.tolist() for answers in found] == [answers.right.tolist() for answers in given]
    judged = neotta.judge(model, photos)
    with torch.inference_mode():
        logits = model(ready.batch(Image.open(path) for path in sorted(photos.rglob("*.png"))))
    names = readable_names(known_parts(model).labels, 3)
    assert [row[0] for row in judged.answers.values()] == [names[each] for each in logits_of(logits).argmax(1)]
    of_source = neotta.judge(model, neotta.data.open_data(photos))
    assert list(of_source.answers.values()) == list(judged.answers.values())


def test_what_is_given_comes_first_and_tensors_are_what_the_model_takes(photos):
    model = of_timm(num_classes=3, **TINY)
    black = Preprocess((32, 32), (32, 32), mean=(0.5,) * 3, std=(1e6,) * 3)
    rows = neotta.judge(model, photos, preprocess=black).answers.values()
    assert len({row[0] for row in rows}) == 1
    inputs = known_parts(model).preprocess.batch(Image.open(path) for path in sorted(photos.rglob("*.png")))
    rows = neotta.judge(model, inputs).answers.values()
    with torch.inference_mode():
        wanted = model(inputs).argmax(1)
    assert [row[0] for row in rows] == [f"class {each}" for each in wanted]


def test_other_models_need_a_preprocessing(photos):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).eval()
    for use in (neotta.evaluate, neotta.judge):
        with pytest.raises(OptionError, match="pass preprocess"):
            use(model, photos)


def test_what_cannot_be_reached_or_translated_is_not_known(tiny_hf, photos, tmp_path, monkeypatch):
    model = of_hugging_face(tiny_hf)
    model.config._name_or_path = "nobody/has-this-model"
    assert known_parts(model).preprocess is None
    with pytest.raises(OptionError, match="pass preprocess"):
        neotta.judge(model, photos)
    build = (
        "    model = timm.create_model('resnet18')\n    model.pretrained_cfg['crop_mode'] = 'border'\n    return model"
    )
    (tmp_path / "mine.py").write_text(f"import timm\n\ndef build():\n{build}")
    with pytest.raises(OptionError, match="crop mode 'border'"):
        load_model(f"py:{tmp_path / 'mine.py'}:build")
    ready = Preprocess((32, 32))
    assert load_model(f"py:{tmp_path / 'mine.py'}:build", preprocess=ready).preprocess is ready


def test_a_function_of_ones_own_may_return_a_model_of_timm(tmp_path):
    code = f"import timm\n\ndef build():\n    return timm.create_model('vit_tiny_patch16_224', num_classes=3, **{TINY})"
    (tmp_path / "mine.py").write_text(code)
    timm_package()
    loaded = load_model(f"py:{tmp_path / 'mine.py'}:build")
    assert loaded.preprocess == known_parts(of_timm(num_classes=3, **TINY)).preprocess
    image = np.zeros((40, 50, 3), np.uint8)
    assert loaded.model(loaded.preprocess(image)[None]).shape == (1, 3)
