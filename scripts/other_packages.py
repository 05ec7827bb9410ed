"""Prints what can be checked about other packages for test-time adaptation: the table of docs/other-tools.md.

    python scripts/other_packages.py                  # the packages of that page, in the versions opened for it
    python scripts/other_packages.py torch-ttt==0.0.2  # others

Downloads source distributions and wheels from PyPI and lists their files. Nothing is installed, imported or run.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import urllib.request
import zipfile

OPENED = (
    "torch-ttt==0.0.2",
    "test-time-adapters==1.0.0",
    "torch-uncertainty==0.13.0",
    "skada==0.6.0",
    "dg-tta==1.0.18",
)
TEST = re.compile(r"(^|/)tests?/.*\.py$|(^|/)test_[^/]*\.py$")
WRITES = re.compile(rb"torch\.save\(|save_file\(")
METHOD_NAMED_TEST = re.compile(r"/teacher/test/")


def main() -> None:
    """Print one block of facts for each package."""
    for wanted in sys.argv[1:] or OPENED:
        name, _, version = wanted.partition("==")
        about = json.loads(fetch(f"https://pypi.org/pypi/{name}/json"))
        print(f"{name} {version} (newest: {about['info']['version']})")
        for file in about["releases"][version]:
            content = fetch(file["url"])
            texts = files_of(file["filename"], content)
            print(f"  {file['filename']}, uploaded {file['upload_time'][:10]}, sha256 {file['digests']['sha256'][:16]}")
            for title, fact in facts(texts).items():
                print(f"    {title}: {fact}")


def fetch(address: str) -> bytes:
    """The content behind an address."""
    with urllib.request.urlopen(address, timeout=120) as answer:
        content: bytes = answer.read()
    return content


def files_of(name: str, content: bytes) -> dict[str, bytes]:
    """The files of a wheel or source distribution."""
    if name.endswith(".whl"):
        wheel = zipfile.ZipFile(io.BytesIO(content))
        return {path: wheel.read(path) for path in wheel.namelist() if not path.endswith("/")}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive if member.isfile()]
        return {path: file.read() for path, file in members if file is not None}


def facts(texts: dict[str, bytes]) -> dict[str, object]:
    """What the list of files and a search in them say."""
    code = {path: text for path, text in texts.items() if path.endswith(".py")}
    tests = [path for path in code if TEST.search(path) and not METHOD_NAMED_TEST.search(path)]
    metadata = next((text for path, text in texts.items() if path.endswith(("PKG-INFO", "/METADATA"))), b"")
    licence = re.findall(rb"^(?:License-Expression: |License: |Classifier: License :: )(.+)$", metadata, re.M)
    return {
        "licence in the metadata": ", ".join(text.decode() for text in licence) or "none",
        "test files": len(tests),
        "py.typed": any(path.endswith("py.typed") for path in texts),
        "files that mention ONNX": sum(b"onnx" in text.lower() for text in code.values()),
        "files that write tensors": sorted(path for path, text in code.items() if WRITES.search(text)),
        "empty modules": sorted(path for path, text in code.items() if not text and "__init__" not in path),
    }


if __name__ == "__main__":
    main()
