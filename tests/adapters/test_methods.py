"""Methods from outside: named by their file, checked when they are met."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import neotta
from neotta.adapters.declaration import DataFacts, Declaration
from neotta.adapters.none import NoAdapt
from neotta.adapters.registry import data_options, find, names, register, revision_of
from neotta.errors import CodeError
from neotta.evaluate.plan import MethodPlan, split_methods
from neotta.options import Options

SHARP = """
import neotta
from neotta.adapters.none import NoAdapt
from neotta.options import Options

class SharpOptions(Options):
    factor: float = 2.0

@neotta.register
class Sharp(NoAdapt):
    '''Sharper answers.'''
    name = "sharp"
    title = "Sharp"
    Options = SharpOptions

    def _embeddings(self, embeddings, adapt):
        return super()._embeddings(embeddings, adapt) * self.options.factor

number = 3
"""


@pytest.fixture
def sharp(tmp_path):
    (tmp_path / "a+b").mkdir()
    file = tmp_path / "a+b" / "sharp.py"
    file.write_text(SHARP)
    yield f"py:{file}:Sharp"
    neotta.adapters.registry.METHODS._things.pop("sharp", None)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def test_a_method_of_a_file(sharp):
    model, images = network(), torch.randn(2, 3, 8, 8)
    plain = neotta.create("none", model)(images)
    torch.testing.assert_close(neotta.create(sharp, model, factor=3.0)(images), 3 * plain)
    torch.testing.assert_close(neotta.create("sharp", model)(images), 2 * plain)
    stacked = neotta.create(f"neo+{sharp}", model)
    torch.testing.assert_close(stacked(images), 2 * neotta.create("neo", model)(images))
    assert find(["neo", sharp]) is find(f"neo+{sharp}")
    assert (revision_of(sharp), revision_of(f"neo+{sharp}")) == ("1", "1+1")


def test_a_method_of_a_file_in_a_plan(sharp):
    for text in (sharp, f"neo+{sharp}", "py:my.module:Sharp", r"py:C:\my\file.py:Sharp"):
        assert MethodPlan.parse(text) == MethodPlan(method=text)
        assert MethodPlan.parse(f"{text}@original") == MethodPlan(method=text, preset="original")
        wanted = MethodPlan(method=text, preset="original", options={"factor": [2, 3], "more": 1})
        assert MethodPlan.parse(f"{text}@original:factor=2|3,more=1") == wanted
        assert split_methods(f"neo,{text}:factor=2,more=1,lame") == ["neo", f"{text}:factor=2,more=1", "lame"]


def test_names_of_stacks():
    assert names("neo") == names(["neo"]) == ["neo"]
    assert names("neo+lame") == ["neo", "lame"]
    assert names("neo+py:a+b.py:C") == ["neo", "py:a+b.py:C"]
    assert names("py:a+b.py:C") == ["py:a+b.py:C"]


def test_what_is_not_a_method_is_refused(sharp):
    with pytest.raises(CodeError, match="is 3: expected a subclass of"):
        find(sharp.replace(":Sharp", ":number"))


class Seeded(Options):
    seed: int = 0


def method(**attributes):
    return type("Mine", (NoAdapt,), {"name": "mine", "title": "Mine", **attributes})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"declaration": (True, "images")}, "its declaration is .* write Declaration"),
        ({"declaration": Declaration(needs="images")}, "declares needs='images'"),
        ({"declaration": Declaration(needs="embeddings", source_images=4)}, "asks for an option 'source'"),
        ({"declaration": Declaration(needs="embeddings", normalisation=True)}, "asks for an option 'mean'"),
        ({"declaration": Declaration(needs="embeddings", random=True)}, "asks for an option 'seed'"),
        ({"Options": Seeded}, "declare random=True"),
        ({"Options": dict}, "expected a subclass of neotta.adapters.Options"),
        ({"name": "Mine"}, "not in lower case"),
        ({"name": "a+b"}, "plus"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(attributes, message):
    with pytest.raises(CodeError, match=message):
        register(method(**attributes))


def test_options_that_follow_from_the_data():
    asked = []

    def source(count):
        asked.append(count)
        return torch.zeros(count, 3, 8, 8)

    facts = DataFacts(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), source=source)
    assert data_options("neo+lame", facts) == {}
    assert data_options("cotta", facts, ["mean"]) == {"std": (0.4, 0.5, 0.6)}
    assert asked == []
    assert data_options("foa", facts)["source"].shape == (32, 3, 8, 8)
    seeded = replace(facts, seed=5)
    assert data_options("cotta", seeded, ["mean", "std"]) == data_options("foa", seeded, ["source"]) == {"seed": 5}
    assert data_options("surgeon", seeded, ["mean", "std", "seed"]) == data_options("neo+lame", seeded) == {}
    assert data_options("foa", facts, ["source"]) == {}
    more = Declaration(needs="images", options_from_data=lambda facts: {"dark": facts.mean[0], "light": 1})
    assert more.data_options(facts, {"light": 2}) == {"dark": 0.1}


def test_public_names():
    for name in neotta.adapters.__all__:
        assert getattr(neotta.adapters, name) is not None
        assert name in dir(neotta.adapters)


def test_imports_are_cheap():
    """Importing the package imports no torch, and listing the methods nothing that only some of them use."""
    code = """
import sys, neotta.adapters
assert "torch" not in sys.modules
import neotta
neotta.methods()
print(sorted({"timm", "transformers", "torchvision", "cma", "scipy", "pandas", "PIL"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_gradient_method_sees_its_own_tensors():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    ).eval()
    adapter = neotta.create("tent", model, classes=[0, 2, 3])
    with torch.enable_grad():
        logits = adapter.forward(torch.randn(6, 3, 8, 8))
        grads = adapter.gradients(logits.square().sum())
    assert logits.shape == (6, 3)
    assert all(grad.abs().sum() > 0 for grad in grads)
    assert all(parameter.requires_grad for parameter in model.parameters())
