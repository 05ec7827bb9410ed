"""What cannot work says so in one line, before anything changes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import neotta
from neotta.deploy import export
from neotta.errors import InputError, OptionError, StateError, UnsupportedModelError

BATCH = torch.ones(4, 8)


def network():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize("wrong", [{"pixel_values": [BATCH]}, [BATCH], "batch", 3])
@pytest.mark.parametrize(
    "use",
    [
        lambda wrong, path: neotta.adapt(network(), "neo", example=wrong),
        lambda wrong, path: neotta.adapt(network(), "neo", head="2", example=wrong),
        lambda wrong, path: neotta.create("t3a", network(), example=wrong),
        lambda wrong, path: neotta.split(network(), example=wrong),
        lambda wrong, path: export(network(), path, example=wrong),
    ],
)
def test_an_example_of_the_wrong_kind(use, wrong, tmp_path):
    with pytest.raises(InputError, match=f"example must be a tensor, .*, got {type(wrong).__name__}"):
        use(wrong, tmp_path / "x.onnx")


def test_an_exported_model_takes_images_alone(tmp_path):
    with pytest.raises(InputError, match=r"pass example=batch\['pixel_values'\]"):
        export(network(), tmp_path / "x.onnx", example={"pixel_values": BATCH})


def test_states_and_models_of_the_wrong_kind():
    with pytest.raises(StateError, match=r"a file of neotta.save .* got dict"):
        neotta.load(network(), {"mean": BATCH})
    with pytest.raises(OptionError, match=r"expected the name of a model, .* got int"):
        neotta.load_model(3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("method", ["neo", "neo-stream", "neo-continual"])
@pytest.mark.parametrize(
    ("use", "words"),
    [
        (torch.jit.script, "TorchScript cannot run a head that adapts: neotta.fold"),
        (lambda model: torch.jit.trace(model, BATCH), "torch.jit.trace cannot run a head that adapts: neotta.fold"),
        (torch.fx.symbolic_trace, "torch.fx cannot run a head that adapts: neotta.fold"),
        (lambda model: torch.vmap(model)(BATCH), "call the model on whole batches"),
        (lambda model: torch.vmap(model)(BATCH.expand(3, 4, 8)), "call the model on whole batches"),
        (lambda model: torch.func.grad(lambda rows: model(rows).sum())(BATCH), "call the model on whole batches"),
    ],
    ids=["script", "trace", "fx", "vmap", "vmap of batches", "grad"],
)
def test_transforms_of_a_head_that_adapts(method, use, words):
    model = neotta.adapt(network(), method, head="2")
    before = neotta.head(model).streams.state()
    with pytest.raises(UnsupportedModelError, match=words):
        use(model)
    assert torch.equal(before, neotta.head(model).streams.state())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_transforms_of_a_head_that_is_folded():
    model = neotta.adapt(network(), "neo", head="2")
    model(BATCH)
    neotta.head(model).freeze()
    expected = model(BATCH)
    neotta.fold(model)
    torch.testing.assert_close(torch.vmap(model)(BATCH), expected)
    for used in (torch.jit.script(model), torch.jit.trace(model, BATCH), torch.fx.symbolic_trace(model)):
        torch.testing.assert_close(used(BATCH), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model():
    with pytest.raises(UnsupportedModelError, match="a TorchScript module cannot be changed: adapt the model before"):
        neotta.adapt(torch.jit.script(network()), "neo")


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich", "click"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = ["neotta", *sys.argv[1:]]
from neotta.cli import main
main()
"""


@pytest.mark.parametrize("words", [[], ["run"], ["--help"]])
def test_the_command_without_its_extra(words):
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "neotta: the command line needs the package 'typer', which is not installed: pip install 'neotta[lab]'"
    ]
