"""Builds the wheel and the source distribution, and checks what a user would get.

    python scripts/check_release.py            # builds into dist/
    python scripts/check_release.py --tag v0.4.0
    python scripts/check_release.py --install  # and installs it into clean environments, where the demo runs

Needs `pip install build twine`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 3_000_000
"""Most bytes of a wheel."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build both distributions in a clean folder."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT))
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def run(*command: str) -> None:
    """Run a command, and stop if it fails."""
    subprocess.run(command, check=True)


def problems(wheel: Path, sdist: Path, tag: str | None) -> list[str]:
    """What is wrong with the distributions."""
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/neotta/_version.py").read_text())
    number = version[1] if version else "?"
    found = []
    if tag is not None and tag != f"v{number}":
        found.append(f"the tag is {tag}, the version {number}")
    if f"## {number}" not in (ROOT / "CHANGELOG.md").read_text():
        found.append(f"CHANGELOG.md has no section {number}")
    if f"version: {number}" not in (ROOT / "CITATION.cff").read_text():
        found.append(f"CITATION.cff has another version than {number}")
    if wheel.stat().st_size > MOST:
        found.append(f"the wheel has {wheel.stat().st_size:,} bytes: at most {MOST:,}")
    names = zipfile.ZipFile(wheel).namelist()
    outside = [name for name in names if not name.startswith(("neotta/", "neotta-"))]
    found += [f"the wheel contains {name}" for name in outside]
    found += [f"the wheel lacks {name}" for name in ("neotta/py.typed", "neotta/__init__.py") if name not in names]
    if not any(name.endswith("licenses/LICENSE") for name in names):
        found.append("the wheel lacks its licence")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("src/neotta/__init__.py", "tests/conftest.py", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt")
    found += [f"the source distribution lacks {name}" for name in wanted if name not in inside]
    return found


SMOKE = """
import torch, neotta
model = neotta.adapt(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval())
assert model(torch.randn(4, 3, 2, 2)).shape == (4, 5)
print(neotta.__version__, neotta.health(model).verdict)
"""
DOWNSTREAM = """
import neotta
from torch import Tensor, nn

def classify(model: nn.Module, images: Tensor) -> Tensor:
    adapted: nn.Module = neotta.adapt(model, "neo", alpha=0.1)
    logits: Tensor = adapted(images)
    count: int = neotta.head(adapted).count
    return logits[:count]
"""


def install(wheel: Path, folder: Path) -> None:
    """Install the wheel into clean environments: the core alone, with `lab`, and beside mypy."""
    for extra in ("", "[lab]"):
        home = folder / (extra.strip("[]") or "core")
        run(sys.executable, "-m", "venv", str(home))
        run(str(home / "bin/pip"), "install", "-q", "-c", str(ROOT / "constraints.txt"), f"{wheel}{extra}")
        run(str(home / "bin/python"), "-c", SMOKE)
    run(str(folder / "lab/bin/neotta"), "demo", "--samples", "100", "--output", str(folder / "demo.html"))
    (folder / "downstream.py").write_text(DOWNSTREAM)
    run(str(folder / "core/bin/pip"), "install", "-q", "-c", str(ROOT / "constraints.txt"), "mypy")
    run(str(folder / "core/bin/python"), "-m", "mypy", "--strict", str(folder / "downstream.py"))


def main() -> None:
    """Build, check and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag of the release, which has to fit the version")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--install", action="store_true", help="also install it into clean environments")
    given = parser.parse_args()
    wheel, sdist = build(given.output)
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    found = problems(wheel, sdist, given.tag)
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {sdist.name}: {sdist.stat().st_size:,} bytes")
    if found:
        sys.exit("\n".join(found))
    if given.install:
        with tempfile.TemporaryDirectory() as folder:
            install(wheel.resolve(), Path(folder))


if __name__ == "__main__":
    main()
