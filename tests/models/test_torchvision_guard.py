"""Each case needs a process of its own: what was imported before is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"


def run(code: str, *paths: Path) -> str:
    """Run `code` in a new interpreter in which warnings are errors; return what it prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(SRC)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


pytestmark = pytest.mark.slow
GUARD = "from neotta.models import _torchvision; from neotta.models._torchvision import guard\n"


def test_timm_and_image_processors_import_after_it_from_many_threads():
    out = run(
        GUARD + "import sys, threading\n"
        "threads = [threading.Thread(target=guard) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "guard(); guard()\n"
        "assert 'torchvision' not in sys.modules\n"
        "import timm, torchvision\n"
        "from transformers import ViTImageProcessor\n"
        "ViTImageProcessor(); guard()\n"
        # what it did is right for this machine's torchvision, whichever that is
        "print(torchvision.extension._has_ops() is (_torchvision._declared is None))"
    )
    assert out == "True"


def test_helps_after_an_import_that_failed():
    out = run(
        "try:\n    import torchvision\nexcept RuntimeError as error:\n    assert 'nms' in str(error)\n"
        + GUARD
        + "guard()\nimport timm; print('ok')"
    )
    assert out == "ok"


def test_leaves_operators_that_exist_as_they_are():
    out = run(
        "import torch\n"
        "library = torch.library.Library('torchvision', 'FRAGMENT')\n"
        "library.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')\n"
        "library.impl('nms', lambda dets, scores, iou_threshold: scores + 1, 'CPU')\n" + GUARD + "guard()\n"
        "assert _torchvision._declared is None and not hasattr(torch.ops.torchvision, 'qnms')\n"
        "print(torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5).item())"
    )
    assert out == "1.0"


def test_does_nothing_without_torchvision_or_after_its_import():
    out = run(
        GUARD + "import sys, torch, types\nfrom importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'torchvision' else find(name, *rest)\n"
        "guard()\n"
        "PathFinder.find_spec = find\n"
        "for module in (None, types.ModuleType('torchvision')):\n"
        "    sys.modules['torchvision'] = module\n"
        "    guard()\n"
        "print(_torchvision._declared, hasattr(torch.ops.torchvision, 'nms'))"
    )
    assert out == "None False"


def test_a_package_without_a_library_counts_as_missing_operators(tmp_path: Path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("")
    out = run(GUARD + "guard()\nimport torch; print(hasattr(torch.ops.torchvision, 'qnms'))", tmp_path)
    assert out == "True"
