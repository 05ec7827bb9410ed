"""Options are checked when they are given, and what is wrong is said in one line."""

from __future__ import annotations

import math

import pytest

import neotta
from neotta.errors import OptionError

KINDS = neotta.methods()
NUMBERS = [
    (method, name)
    for method, kind in KINDS.items()
    for name, field in kind.Options.model_fields.items()
    if "float" in str(field.annotation)
]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(("method", "name"), NUMBERS)
def test_numbers_are_finite(method, name, value):
    for given in (value, (value, 0.5)):
        with pytest.raises(OptionError, match=f"^option '{name}' of method '{method}' is "):
            KINDS[method].Options.make(method, {name: given})


@pytest.mark.parametrize("method", ["tent", "cotta", "surgeon"])
@pytest.mark.parametrize(
    ("betas", "message"),
    [
        ((2, 3), "is (2, 3): input should be less than 1"),
        ((0.9, -0.1), "is (0.9, -0.1): input should be greater than or equal to 0"),
        ((0.9,), "is (0.9,): two numbers were expected"),
        ([0.1, 0.2, 0.3], "is [0.1, 0.2, 0.3]: two numbers were expected"),
    ],
)
def test_betas(method, betas, message):
    with pytest.raises(OptionError) as caught:
        KINDS[method].Options.make(method, {"betas": betas})
    assert str(caught.value) == f"option 'betas' of method '{method}' {message}"
    assert KINDS[method].Options.make(method, {"betas": [0.8, 0.9]}).betas == (0.8, 0.9)


def test_all_that_is_allowed_is_named():
    with pytest.raises(OptionError, match="is -1: input should be 'reference', or input should be greater than or"):
        KINDS["sar"].Options.make("sar", {"frozen_layers": -1})


def test_presets_of_tent():
    chosen = {preset: KINDS["tent"].Options.make("tent", {}, preset) for preset in ("original", "original-cifar10")}
    assert {preset: (each.optimizer, each.lr) for preset, each in chosen.items()} == {
        "original": ("sgd", 2.5e-4),
        "original-cifar10": ("adam", 1e-3),
    }


@pytest.mark.parametrize(
    ("method", "quirks"),
    [
        ("sar", ("recovery_keeps_ema", "reset_keeps_momentum")),
        ("surgeon", ("positional_alignment", "stale_gradients")),
    ],
)
def test_names_of_quirks(method, quirks):
    make = KINDS[method].Options.make
    for given in (quirks, list(quirks), [f"{method}_{quirk}" for quirk in quirks]):
        assert make(method, {"compat": given}).compat == quirks
    assert make(method, {"compat": quirks[0]}).compat == quirks[:1]
    for wrong in ("nothing", ["nothing"], 3, [3], "other_" + quirks[0]):
        with pytest.raises(OptionError, match=f"option 'compat' of method '{method}' is "):
            make(method, {"compat": wrong})
