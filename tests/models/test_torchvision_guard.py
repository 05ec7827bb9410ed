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
BROKEN = "torchvision::nms does not exist"
GUARD = "from neotta import _torchvision; from neotta._torchvision import guard\n"


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


USE = (
    "from transformers import ViTImageProcessor; ViTImageProcessor(); timm.create_model('resnet10t', channels=(8,)*4)\n"
)


def torchvision_is_broken() -> bool:
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or BROKEN in done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("first", ["timm", "torchvision", "transformers.image_utils"])
def test_other_packages_after_neotta(first):
    out = run(
        f"import neotta, sys\nassert 'torch' not in sys.modules\nimport {first}\nimport timm, torchvision\n"
        + USE
        + "from neotta import _torchvision\n"
        "loader = torchvision.__spec__.loader; assert type(loader).__module__.startswith(('_frozen', 'importlib'))\n"
        "print(torchvision.extension._has_ops() is (_torchvision._declared is None))"
    )
    assert out == "True"


def test_imports_from_many_threads_do_not_wait_for_each_other():
    out = run(
        "import neotta, threading, torch\nfrom neotta._torchvision import guard\n"
        "def use():\n    import torchvision\n"
        "threads = [threading.Thread(target=t, daemon=True) for t in [use, guard] * 4]\n"
        "[t.start() for t in threads]; [t.join(60) for t in threads]; print(any(t.is_alive() for t in threads))"
    )
    assert out == "False"


def fix(folder: Path, *arguments: str) -> str:
    return run(f"from neotta.fix_torchvision import main; main(['--folder', {str(folder)!r}, *{list(arguments)!r}])")


def test_timm_before_neotta_once_the_environment_is_set_up(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "sitecustomize.py").write_text(f"import site; site.addsitedir({str(tmp_path / 'site')!r})")
    said = fix(tmp_path / "site")
    if torchvision_is_broken():
        assert "is written" in said
    else:
        assert "nothing to do" in said
    assert run("import timm\nimport neotta\n" + USE + "print('ok')", tmp_path) == "ok"
    assert "nothing to do" in run("from neotta.fix_torchvision import main; main()", tmp_path)
    assert "removed" in fix(tmp_path / "site", "--undo")
    assert not list((tmp_path / "site").iterdir())


def test_an_error_of_another_kind_is_not_hidden(tmp_path: Path):
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('a broken disk')")
    out = run(
        "import neotta.fix_torchvision as fix, contextlib, io, sys\nsys.stderr = io.StringIO()\n"
        f"print(fix.main(['--folder', {str(tmp_path)!r}]), 'a broken disk' in sys.stderr.getvalue())",
        tmp_path,
    )
    assert out == "1 True"
    assert not list(tmp_path.glob("*.pth"))


def test_without_torch_it_is_torchvision_that_complains(tmp_path: Path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError('no torch')")
    out = run(
        "import neotta\ntry:\n    import torchvision\nexcept ModuleNotFoundError as error:\n    print(error)", tmp_path
    )
    assert out == "no torch"
