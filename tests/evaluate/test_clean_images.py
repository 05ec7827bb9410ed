"""Methods that need clean images get clean images, or are left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.benches import open_bench
from support.data_makers import class_folders, corrupted, write_image

from neotta.errors import DataError
from neotta.evaluate.domains import CleanImages, Domains, clean_domain, open_source
from neotta.evaluate.plan import MethodPlan, Plan
from neotta.evaluate.sweep import left_out_lines, suited
from neotta.models.preprocess import Preprocess

WNIDS = ("n01443537", "n01629819", "n01641577")
SMALL = Preprocess(size=(16, 16), resize=18, crop=True)
VIT = {"pretrained": False, "depth": 1, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8}
PLAN = {
    "model": "timm:vit_tiny_patch16_224",
    "model_options": VIT,
    "methods": "none,foa",
    "samples": [6],
    "batch_sizes": [3],
    "seeds": [1],
}
NEEDS = "FOA needs 32 clean images: give source (in a plan, a study or Python)"


@pytest.fixture
def shifted(tmp_path):
    return corrupted(tmp_path / "imagenet-c", ["fog", "snow"], [5], WNIDS, size=(32, 32))


@pytest.fixture
def clean(tmp_path):
    return class_folders(tmp_path / "val", WNIDS, per_class=12, size=(40, 36))


def clean_of(data, **settings):
    return Domains(Plan(data=str(data), **settings), None, SMALL).clean


@pytest.mark.parametrize("domains", [[], ["fog/5"]])
def test_shifted_images_are_never_taken(shifted, domains):
    with pytest.raises(DataError, match="no clean domain: give source"):
        clean_of(f"imagenet-c={shifted}", domains=domains)


@pytest.mark.parametrize("layout", ["imagenet-r", "imagenet-sketch"])
def test_data_that_is_shifted_as_it_is_has_no_clean_images(tmp_path, layout):
    class_folders(tmp_path / "set", WNIDS)
    for corrupt in (False, True):
        with pytest.raises(DataError, match="no clean domain"):
            clean_of(f"{layout}={tmp_path / 'set'}", corruptions=["fog"] if corrupt else [])


def test_a_folder_of_any_images_may_be_shifted(clean):
    with pytest.raises(DataError, match="no clean domain"):
        clean_of(f"folder={clean}")
    assert clean_of(f"folder={clean}", corruptions=["fog"]).dataset.domain.startswith("folder/val")


def test_a_clean_domain_is_found_beside_the_ones_asked_for(tmp_path):
    for name in ("clean", "fog"):
        class_folders(tmp_path / "set" / name / "5", ("a", "b"), size=(20, 20))
    found = clean_of(f"corrupted={tmp_path / 'set'}", domains=["fog"])
    assert found.dataset.domain.endswith("clean/5")


def test_clean_images_are_always_the_same_ones(clean):
    one, other = (CleanImages(open_source(f"imagenet={clean}"), SMALL) for _ in range(2))
    assert one.images(8).shape == (8, 3, 16, 16)
    assert torch.equal(one.images(8), other.images(8))
    assert one.digest(8) == other.digest(8) != one.digest(9)
    with pytest.raises(DataError, match=r"37 clean images are needed, and .* has 36"):
        one.images(37)


def test_images_that_cannot_be_read_are_passed_over(clean):
    whole = CleanImages(open_source(f"imagenet={clean}"), SMALL)
    first = whole.dataset.ids[int(np.random.default_rng(0).permutation(36)[0])]
    next(path for path in clean.rglob("*.JPEG") if path.stem in first).write_bytes(b"no image")
    assert CleanImages(open_source(f"imagenet={clean}"), SMALL).images(35).shape[0] == 35


def test_source_data_is_a_path_with_or_without_a_domain(shifted, clean, tmp_path):
    assert open_source(f"imagenet-c={shifted}:fog/5").domain == "imagenet-c/fog/5"
    assert len(open_source(f"imagenet={clean}")) == 36
    assert open_source("digits:test").domain == open_source("digits").domain
    for number in range(3):
        write_image(tmp_path / "a:b" / f"{number}.png")
    assert len(open_source(str(tmp_path / "a:b"))) == 3
    with pytest.raises(DataError, match="has 2 domains, name one"):
        open_source(f"imagenet-c={shifted}")
    with pytest.raises(DataError, match="no domain 'rain'"):
        open_source(f"imagenet-c={shifted}:rain")
    assert clean_domain(Domains(Plan(), None, SMALL).source) == "test"


def test_without_clean_images_the_method_alone_is_left_out(shifted, clean):
    plan = Plan.make({**PLAN, "data": f"imagenet-c={shifted}"})
    bench = open_bench(plan)
    kept, records = suited(bench, plan)
    assert [method.method for method in kept.methods] == ["none"]
    assert [(record.method, record.left_out) for record in records] == [("foa", NEEDS)]
    assert left_out_lines(records) == [f"foa was left out: {NEEDS}."]
    assert bench.record(bench.runs()[-1]).status == "failed", "from Python, its runs fail and the others go on"
    given = plan.model_copy(update={"source": f"imagenet={clean}"})
    bench = open_bench(given)
    assert suited(bench, given) == (given, [])
    made = [bench.record(run) for run in bench.runs()]
    assert [record.status for record in made] == ["ok"] * 4
    assert left_out_lines([*records, *made]) == [], "it has been measured since"


def test_a_model_that_does_not_suit_is_told_before_source_data_is_asked_for(shifted):
    options = {"pretrained": False, "num_classes": 1000}
    plan = Plan.make({**PLAN, "model": "timm:resnet10t", "model_options": options, "data": f"imagenet-c={shifted}"})
    assert "vision transformer" in open_bench(plan).why_not(MethodPlan(method="foa"))
    few = plan.model_copy(update={"model": PLAN["model"], "model_options": VIT, "source": "digits"})
    assert open_bench(few).why_not(MethodPlan(method="foa")) == ""
