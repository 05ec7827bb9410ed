"""What `pip install neotta` brings is enough for the core: here every optional package is kept from being imported.

`.ci/run` also runs the core's tests in an environment that really has no more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from neotta._extras import EXTRAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
WITHOUT_EXTRAS = """
import sys
from neotta._extras import EXTRAS

class Installed:
    finders = list(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            return None
        return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

sys.meta_path[:] = [Installed()]
"""
CORE = """
import importlib, pkgutil, torch, neotta
from torch import nn

for layer in ("neo", "adapters", "monitoring"):
    package = importlib.import_module(f"neotta.{layer}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

def network():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 5)).eval()

images = torch.randn(6, 3, 16, 16)
model = neotta.adapt(network(), "neo")
model(images)
assert neotta.health(model).samples == 6
assert "too few" in neotta.accuracy(model, images).reason
neotta.save(model, "a.safetensors")
neotta.load(model, "a.safetensors")
neotta.merge(["a.safetensors", "a.safetensors"]).save("b.safetensors")
neotta.fold(model)
many = neotta.adapt(network(), "neo", streams=True)
with neotta.streams(list("abcabc")):
    many(images)
neotta.restore(many)
for name in neotta.methods():
    try:
        neotta.create(name, network())(images)
    except neotta.NeottaError as error:
        print(f"{name}: {error}")
try:
    neotta.load_model("timm:resnet10t")
except neotta.NeottaError as error:
    print(error)
"""


def run(code, folder):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + code], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_core_works_and_other_parts_name_their_extra(tmp_path):
    done = run(CORE, tmp_path)
    assert done.returncode == 0, done.stderr
    eata, foa, timm = done.stdout.splitlines()
    assert eata.startswith("eata: EATA needs clean images")
    assert foa.startswith("foa: ")
    assert timm.endswith("needs the package 'timm', which is not installed: pip install 'neotta[lab]'")


def test_foa_names_its_extra(tmp_path):
    code = "from neotta.adapters._evolution import Evolution\nEvolution(4, 4, 1.0, 0)"
    assert "pip install 'neotta[lab]'" in run(code, tmp_path).stderr


def test_the_command_says_in_one_line_what_is_missing(tmp_path):
    done = run("from neotta.cli import main; main()", tmp_path)
    message = "neotta: the command line needs the package 'typer', which is not installed: pip install 'neotta[lab]'\n"
    assert (done.returncode, done.stderr) == (2, message)


def test_data_names_its_extra(tmp_path):
    done = run("import neotta.data; neotta.data.open_data", tmp_path)
    assert "neotta.data.open_data needs the package 'PIL'" in done.stderr


def test_the_table_of_extras_is_that_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    imported = {"pillow": "PIL"}
    declared = {
        imported.get(name := entry.split(">")[0].split("[")[0], name.replace("-", "_")): extra
        for extra in sorted(
            extras.keys() - {"dev", "docs"}, key=lambda extra: extra == "lab"
        )  # which names a package last
        for entry in extras[extra]
        if not entry.startswith("neotta[")  # another extra
    }
    brought = {"torchvision": "lab", "starlette": "serve"}  # by timm and by fastapi
    assert {**declared, **brought} == EXTRAS
