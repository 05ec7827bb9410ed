"""Compares the public interface with that of the last release, by griffe.

    python scripts/check_interface.py                    # with the newest tag v*
    python scripts/check_interface.py --against 1a2b3c4  # with any commit, branch or tag

Public is what the site's reference shows: the names in `__all__` of the packages below (docs/policy.md). Exits with 1
if one of them was removed or changed incompatibly and the version is a patch release of the one compared with; a minor
version may change them, and what changed is listed. Needs `pip install griffe` and a clone with its tags.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("", "adapters", "testing", "monitoring", "deploy", "data", "evaluate.statistics", "errors")


def last_release() -> str | None:
    """The newest tag of a release that this commit contains."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or None


def public(package: Any) -> dict[str, str]:
    """The public names of a package, each with the path where it is defined."""
    names: dict[str, str] = {}
    for inner in PACKAGES:
        module = package[inner] if inner else package
        exported = module.exports or [name for name, member in module.members.items() if defined_here(name, member)]
        for name in map(str, exported):
            names[f"{module.path}.{name}"] = module[name].canonical_path if name in module.members else ""
    return names


def defined_here(name: str, member: Any) -> bool:
    """Whether a module without `__all__` defines this name for others."""
    return not name.startswith("_") and not member.is_alias and (member.is_class or member.is_function)


def breakages(old: Any, new: Any) -> Iterator[str]:
    """Public names that are gone, and incompatible changes to those that stay."""
    before, after = public(old), public(new)
    for name in sorted(set(before) - set(after)):
        yield f"{name}: removed"
    watched = {path: name for name, path in before.items() if name in after and path}
    for breakage in griffe.find_breaking_changes(old, new):
        path = breakage.obj.canonical_path
        owner = next((known for known in watched if path == known or path.startswith(f"{known}.")), None)
        if owner is not None and after[watched[owner]] == owner:  # a definition that moved is still there
            yield f"{watched[owner]}: {breakage.kind.value} ({path})"


def version(package: Any) -> tuple[str, ...]:
    """The version of a package, without its patch number."""
    return tuple(str(package["_version"]["__version__"].value).strip("\"'").split(".")[:2])


def main() -> None:
    """Compare, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REF", help="a commit, branch or tag; by default the last release")
    against = parser.parse_args().against or last_release()
    if against is None:
        print("there is no release yet (no tag v*): nothing to compare with; --against REF names a commit")
        return
    old = griffe.load_git("neotta", ref=against, repo=ROOT, search_paths=["src"])
    new = griffe.load("neotta", search_paths=[str(ROOT / "src")], try_relative_path=False)
    found = list(breakages(old, new))
    print("\n".join(found) or f"the public interface is compatible with {against}")
    if found and version(old) == version(new):
        sys.exit(f"{len(found)} incompatible changes since {against}: a patch release must have none")


if __name__ == "__main__":
    main()
