"""The contract that every registered method keeps, on every kind of model (see `neotta.testing`)."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
import torch

import neotta
from neotta.errors import (
    AlreadyAdaptedError,
    InputError,
    MissingExtraError,
    OptionError,
    UnknownMethodError,
    UnsupportedModelError,
)
from neotta.testing import CHECKS, MODELS, Case, Check
from neotta.testing._case import images


def timm_vit():
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=7)


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8,
        num_labels=7,
    )  # fmt: skip
    return ViTForImageClassification(config)


KINDS = {**MODELS, "timm-vit": timm_vit, "hf-vit": hf_vit}
UNSUPPORTED = {
    *(("neo-bn", kind) for kind in KINDS if kind != "batch-norm"),
    *(("foa", kind) for kind in ("batch-norm", "group-norm")),
}
NO_EFFECT = {("bn", kind) for kind in KINDS if kind != "batch-norm"}
OPTIONS = {"eata": {"source": images(40, seed=99)}}  # rather than thousands
MOST_PASSES = {
    "cotta": {"anchor_threshold": 1.0},
    "deyo": {"deyo_margin": 100.0},
    "rotta": {"update_frequency": 6},
    "sar": {"margin": 100.0},
}
METHODS = list(neotta.methods())
CASES = [
    Case(method, kind, make, OPTIONS.get(method, {}), MOST_PASSES.get(method, {}))
    for method in METHODS
    for kind, make in KINDS.items()
    if (method, kind) not in UNSUPPORTED
]  # made by hand, since `contract` would import timm and transformers to see what is supported


@pytest.mark.filterwarnings("ignore:bn changes nothing")
@pytest.mark.parametrize("check", [Check(check, case) for case in CASES for check in CHECKS], ids=str)
def test_contract(check):
    check()


@pytest.mark.parametrize(("method", "kind"), sorted(UNSUPPORTED))
def test_models_a_method_cannot_work_on_are_refused(method, kind):
    with pytest.raises(UnsupportedModelError):
        Case(method, kind, KINDS[kind]).adapter()
    assert neotta.methods()[method].declaration.batch_norm == (method == "neo-bn")


IN_A_NEW_PROCESS = """
import sys, torch
torch.set_num_threads(1)
import neotta
from neotta.testing import MODELS, Case
from neotta.testing._case import images
from safetensors.torch import save_file
folder, answers = sys.argv[1], {}
for each in sys.argv[2:]:
    method, kind = each.split("@")
    adapter = Case(method, kind, MODELS[kind]).adapter()
    adapter.load(f"{folder}/{method}")
    answers[method] = adapter(images(5, seed=7))
save_file(answers, folder + "/answers")
"""
LAST_KIND = {method: kind for method in METHODS for kind in MODELS if (method, kind) not in UNSUPPORTED | NO_EFFECT}


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """What every method answers here and, its state loaded, in a new process: one for all, as it takes seconds."""
    from safetensors.torch import load_file

    folder, here, adapters = tmp_path_factory.mktemp("states"), {}, {}
    for method, kind in LAST_KIND.items():
        with contextlib.suppress(MissingExtraError):
            adapters[method] = Case(method, kind, MODELS[kind]).adapter()
    for method, adapter in adapters.items():
        for seed in range(2):
            adapter(images(6, seed))
        adapter.save(folder / method)
        here[method] = adapter(images(5, seed=7))
    pairs = [f"{method}@{LAST_KIND[method]}" for method in adapters]
    subprocess.run([sys.executable, "-W", "error", "-c", IN_A_NEW_PROCESS, folder, *pairs], check=True)
    return here, load_file(folder / "answers")


@pytest.mark.parametrize("method", METHODS)
def test_a_state_continues_exactly_in_a_new_process(method, continued):
    here, there = continued
    if method not in here:
        pytest.skip(f"{method} needs a package that is not installed")
    assert torch.equal(here[method], there[method])


def model():
    return Case("none", "group-norm", MODELS["group-norm"]).model()


def test_a_model_that_adapts_by_itself_is_refused():
    with pytest.raises(AlreadyAdaptedError, match="restore"):
        neotta.create("none", neotta.adapt(model(), "neo"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [("tnet", "tent"), ("NEO", "neo"), ("Tent", "tent"), ("NEO-bn", "neo-bn"), ("SURGEN", "surgeon")],
)
def test_unknown_methods_suggest_the_nearest(given, meant):
    with pytest.raises(UnknownMethodError, match=f"did you mean '{meant}'"):
        neotta.create(given, model())


@pytest.mark.parametrize("wrong", [None, 3, b"neo", [None], [1, 2], {"neo": 1}])
def test_a_method_is_a_name(wrong):
    with pytest.raises(OptionError, match="a method is given by its name"):
        neotta.create(wrong, model())


@pytest.mark.parametrize("wrong", [None, 3, "vit"])
def test_a_model_is_a_module(wrong):
    with pytest.raises(InputError, match=f"Module, got {type(wrong).__name__}"):
        neotta.create("neo", wrong)
