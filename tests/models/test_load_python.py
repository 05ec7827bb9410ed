"""Models of the user's own: `py:<module or file>:<function>`."""

from __future__ import annotations

import sys

import pytest
import torch
from support.benches import sweep
from torch import nn

from neotta.errors import ModelLoadError, OptionError, UnknownModelError
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.models.load import load_model
from neotta.models.preprocess import Preprocess

CODE = """
import dataclasses

import torch
from torch import nn

from beside import WIDTH
from neotta import LoadedModel, Preprocess
from neotta.errors import DataError


@dataclasses.dataclass
class Shape:
    classes: int


def _network(shape):
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.ReLU(), pool, nn.Flatten(), nn.Linear(WIDTH, shape.classes))


def plain(num_classes=10):
    return _network(Shape(num_classes))


def complete(checkpoint=None, bias=0.0):
    import beside_too  # also while the function runs

    model = _network(Shape(10))
    with torch.no_grad():
        model[-1].bias.fill_(bias)
    if checkpoint is not None:
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
    return LoadedModel(model, Preprocess((8, 8), 9, crop=True), beside_too.LABELS)


def listed():
    return [1]


def half():
    return LoadedModel(_network(Shape(10)), "resize, then crop")


def broken():
    raise RuntimeError("out of luck")


def complains():
    raise DataError("in its own words")


constant = 7
ready = plain()
"""
LABELS = tuple("0123456789")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with functions and modules beside it, in the working directory."""
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "mine.py").write_text(CODE)
    (tmp_path / "nets" / "beside.py").write_text("WIDTH = 6\n")
    (tmp_path / "nets" / "beside_too.py").write_text(f"LABELS = {LABELS}\n")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield "py:nets/mine.py"
    for name in set(sys.modules) - before:
        if name.startswith(("beside", "nets", "neotta_file_")):
            del sys.modules[name]


def test_a_function_that_returns_a_loaded_model(file, tmp_path):
    path = list(sys.path)
    loaded = load_model(f"{file}:complete", bias=2.0)
    assert sys.path == path
    assert loaded.name == f"{file}:complete"
    assert loaded.labels == LABELS
    assert loaded.preprocess == Preprocess((8, 8), 9, crop=True)
    assert not loaded.model.training
    assert torch.equal(loaded.model[-1].bias, torch.full((10,), 2.0))
    absolute = load_model(f"py:{tmp_path / 'nets' / 'mine.py'}:complete", dtype=torch.float64)
    assert {parameter.dtype for parameter in absolute.model.parameters()} == {torch.float64}


def test_the_checkpoint_is_the_functions_business(file, tmp_path):
    torch.manual_seed(1)
    weights = load_model(f"{file}:complete").model.state_dict()
    torch.save(weights, tmp_path / "mine.pt")
    found = load_model(f"{file}:complete", checkpoint="mine.pt").model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in weights.items())
    with pytest.raises(OptionError, match=r"plain cannot be called with checkpoint: .*'checkpoint'"):
        load_model(f"{file}:plain", checkpoint="mine.pt")


def test_a_function_that_returns_a_module_needs_preprocessing(file):
    loaded = load_model(f"{file}:plain", num_classes=4, preprocess={"size": [8, 8], "mean": [0, 0, 0]}, labels="abcd")
    assert loaded.preprocess == Preprocess((8, 8), mean=(0, 0, 0))
    assert loaded.labels == ("a", "b", "c", "d")
    assert loaded.model(torch.zeros(1, 3, 8, 8)).shape == (1, 4)
    with pytest.raises(OptionError, match=r"plain does not say how to preprocess images"):
        load_model(f"{file}:plain")
    with pytest.raises(OptionError, match="'size'"):
        load_model(f"{file}:plain", preprocess={"resize": 8})


def test_values_of_the_preprocessing_can_be_changed_one_by_one(file):
    for name in (f"{file}:complete", "digits"):
        recorded = load_model(name).preprocess
        changed = load_model(name, preprocess={"resize": 12, "interpolation": "box"}).preprocess
        assert changed == Preprocess.from_dict({**recorded.to_dict(), "resize": 12, "interpolation": "box"})
    with pytest.raises(OptionError, match="does not know rezise"):
        load_model("digits", preprocess={"rezise": 12})
    with pytest.raises(OptionError, match="preprocess takes"):
        load_model("digits", preprocess=8)


def test_a_module_by_name(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "nets")
    (tmp_path / "nets" / "nets_inside").mkdir()
    (tmp_path / "nets" / "nets_inside" / "__init__.py").write_text("")
    (tmp_path / "nets" / "nets_inside" / "mine.py").write_text(CODE)
    assert load_model("py:nets_inside.mine:complete").labels == LABELS
    small = load_model("py:torch.nn:Linear", in_features=3, out_features=2, preprocess={"size": (1, 1)})
    assert isinstance(small.model, nn.Linear)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("py:nets/none.py:complete", ModelLoadError, "there is no file 'nets/none.py'"),
        ("py:no_such_module:complete", ModelLoadError, "raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("py:nets/mine.py:complet", UnknownModelError, "did you mean 'py:nets/mine.py:complete'?"),
        ("py:", ModelLoadError, "names no object"),
        ("py:nets/mine.py", ModelLoadError, "(a model of your own is named py:<module or file.py>:<function>)"),
        ("py:nets/beside.py:zzz", UnknownModelError, "unknown model 'py:nets/beside.py:zzz'"),
        ("py:nets/mine.py:constant", ModelLoadError, "py:nets/mine.py:constant is of type int: name a"),
        ("py:nets/mine.py:ready", ModelLoadError, "py:nets/mine.py:ready is of type Sequential: name a"),
        ("py:nets/mine.py:listed", ModelLoadError, "listed returned a list: it has to return an nn.Module"),
        ("py:nets/mine.py:half", ModelLoadError, "half returned a LoadedModel of Sequential, str"),
        ("py:nets/mine.py:broken", ModelLoadError, "broken raised RuntimeError: out of luck"),
    ],
)
def test_what_goes_wrong_is_said(file, name, error, message):
    with pytest.raises(error) as raised:
        load_model(name)
    assert message in str(raised.value)


def test_neottas_own_errors_come_through(file):
    from neotta.errors import DataError

    with pytest.raises(DataError, match=r"^in its own words$"):
        load_model(f"{file}:complains")


@pytest.mark.slow
def test_other_processes_load_it_too(file, tmp_path):
    plan = Plan.make(
        {
            "model": f"{file}:complete",
            "model_options": {"bias": 1.0},
            "corruptions": ["clean"],
            "methods": "none,neo",
            "samples": [16],
            "seeds": 2,
        }
    )
    summary = sweep(plan, tmp_path / "results.jsonl", jobs=2)
    assert (summary.done, summary.failed) == (4, [])
    assert {record.model for record in Records(tmp_path / "results.jsonl").read()} == {f"{file}:complete"}
