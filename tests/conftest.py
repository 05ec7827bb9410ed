"""What every test starts from: no hub, one thread, a path to the shared material where it exists."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

# Read by libraries when they are first imported, and by the processes that tests start.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["OMP_NUM_THREADS"] = "1"  # the cores are shared with other tests
ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from neotta.models._timm import guard_torchvision  # noqa: E402

pytest_plugins = ["support.any_models", "support.missing_extras"]

guard_torchvision()  # timm and transformers work, however broken the torchvision beside them
torch.set_num_threads(1)
hypothesis.settings.register_profile("neotta", deadline=None, derandomize=True)
hypothesis.settings.load_profile("neotta")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the slow tests, too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out if not told otherwise; if told, begin with them, so that no core waits at the end."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = [item for item in items if not item.get_closest_marker("slow")]
    if config.getoption("--all"):
        items[:] = slow + others
    else:
        items[:] = others
        config.hook.pytest_deselected(items=slow)


@pytest.fixture(scope="session")
def small_model() -> str:
    """What `neotta.load_model` takes for a model without timm: processes that load it start in half the time."""
    return f"py:{Path(__file__).with_name('support') / 'small_model.py'}:network"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real models and images; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("NEOTTA_SHARED", ROOT.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip("needs the folder shared/ beside the project (or NEOTTA_SHARED)")
    return folder


@pytest.fixture
def interruptible():
    """Ctrl-C reaches the processes that the test starts, even if the tests run in the background, where it does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, as `playwright.sync_api.Browser`; tests that need it are skipped where it is absent.

    For one module at a time: as long as it is open, `asyncio.run` fails in this process.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs a browser (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=["--disable-gpu"])
