"""The preprocessing of the paper's protocol."""

from __future__ import annotations

import pytest
from support.data_makers import class_folders, corrupted

from neotta.evaluate.execute import execute
from neotta.models.preprocess import Preprocess
from neotta.paper.evidence import Evidence
from neotta.paper.page import facts
from neotta.paper.published import in_words, published_preprocess
from neotta.paper.study import Study, Subject

TIMM = Preprocess(size=(224, 224), resize=248, crop=True, interpolation="bicubic")
WNIDS = ("n01443537", "n01629819", "n01641577")
MODEL = {"model": "timm:vit_tiny_patch16_224", "model_options": {"pretrained": False, "depth": 1}}


@pytest.mark.parametrize("layout", ["imagenet", "imagenet-r", "imagenet-sketch", "imagenet-v2"])
def test_imagenet_has_its_shorter_side_resized_to_256(layout):
    assert published_preprocess(layout, TIMM) == {"resize": 256, "crop": True, "interpolation": "bilinear"}


def test_cifar_is_resized_as_a_whole():
    for layout in ("cifar-10", "cifar10-c"):
        assert published_preprocess(layout, TIMM) == {"resize": [224, 224], "crop": False, "interpolation": "bilinear"}


@pytest.mark.parametrize(
    ("layout", "used"),
    [
        ("imagenet-c", TIMM),
        ("folder", TIMM),
        ("imagenet", Preprocess(size=(224, 224), resize=None, crop=True)),
        ("imagenet", Preprocess(size=(224, 224), resize=256, crop=True)),
        ("imagenet", Preprocess(size=(384, 384), resize=384, crop=True)),
        ("imagenet", Preprocess(size=(224, 224), resize=248, crop=True, mean=(0.4, 0.5, 0.5))),
    ],
)
def test_nothing_is_changed_elsewhere(layout, used):
    assert published_preprocess(layout, used) == {}


def test_words():
    assert in_words(TIMM) == "shorter side to 248 (bicubic), the middle 224 x 224"
    assert in_words(Preprocess(size=(32, 32), resize=(32, 32))) == "resized to 32 x 32 (bilinear)"
    assert in_words(Preprocess(size=(32, 32))) == "not resized"


def test_a_study_uses_it_and_says_so(tmp_path):
    class_folders(tmp_path / "r", WNIDS, size=(250, 230))
    corrupted(tmp_path / "c", ["fog", "snow"], [5], WNIDS, size=(224, 224))
    own = {**MODEL["model_options"], "preprocess": {"resize": 240}}
    subjects = [
        Subject(**MODEL, data=f"imagenet-sketch={tmp_path / 'r'}", name="sketch"),
        Subject(**{**MODEL, "model_options": own}, data=f"imagenet-sketch={tmp_path / 'r'}", name="own"),
        Subject(**MODEL, data=f"imagenet-c={tmp_path / 'c'}", name="c"),
    ]
    study = Study(subjects=subjects, methods=["none", "neo"], samples=6, seeds=[1])
    evidence = Evidence(study, tmp_path / "records.jsonl")
    used = [evidence.bench(setting).data.preprocess for setting in evidence.settings]
    assert [(each.resize, each.interpolation) for each in used] == [
        (256, "bilinear"),
        (240, "bicubic"),
        (None, "bicubic"),
    ]
    bench = evidence.bench(evidence.settings[0])
    plan = evidence.settings[0].plan("none")
    record, _ = execute(bench, bench.runs(plan)[0])
    assert record.preprocess["resize"] == 256
    about = dict(facts(evidence, 1.0))
    assert about["sketch"].endswith("; shorter side to 256 (bilinear), the middle 224 x 224")
    assert about["c"].endswith("; not resized, the middle 224 x 224")
