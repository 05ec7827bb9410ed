"""Each case needs a process of its own: what was imported before is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
GUARD = "from neotta.models._timm import _declared, guard_torchvision as guard\n"
pytestmark = pytest.mark.slow


def run(code: str, *paths: Path) -> str:
    """Run `code` in a new interpreter in which warnings are errors; return what it prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), str(SRC)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_timm_and_image_processors_import_after_it_from_many_threads():
    out = run(
        GUARD + "import threading\n"
        "threads = [threading.Thread(target=guard) for _ in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "guard()\n"
        "import timm, torchvision\n"
        "from transformers import ViTImageProcessor\n"
        "ViTImageProcessor(); assert guard() is bool(_declared)\n"
        # what it did is right for this machine's torchvision, whichever that is
        "print(torchvision.extension._has_ops() is (not _declared))"
    )
    assert out == "True"


def test_helps_after_an_import_that_failed():
    out = run(
        "try:\n    import torchvision\nexcept RuntimeError as error:\n    assert 'nms' in str(error)\n"
        + GUARD
        + "guard()\nimport timm; print('ok')"
    )
    assert out == "ok"


@pytest.mark.parametrize("code", ["", "raise ModuleNotFoundError('torchvision')"])
def test_does_nothing_where_torchvision_is_whole_or_missing(code, tmp_path: Path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(code)
    assert run(GUARD + "print(guard(), _declared)", tmp_path) == "False []"


def test_an_error_of_another_kind_is_not_hidden(tmp_path: Path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('a broken disk')")
    out = run(GUARD + "try:\n    guard()\nexcept RuntimeError as error:\n    print(error)", tmp_path)
    assert out == "a broken disk"
