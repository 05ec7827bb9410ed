"""A hash of the source code that something is made by: its module, and what that imports.

Imports are followed by reading files, so that the hash does not depend on what happens to be loaded.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Tree(NamedTuple):
    """Modules that belong together.

    Attributes:
        root: The folder that holds the top-level package or module.
        inside: Names of the packages and modules that imports are followed into; `""` is all in the folder.
    """

    root: Path
    inside: tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether a module is one of these."""
        return any(not name or module == name or module.startswith(f"{name}.") for name in self.inside)

    def file(self, module: str) -> Path | None:
        """The file of a module; None if it is not in the folder."""
        place = self.root.joinpath(*module.split("."))
        found = (place.with_name(f"{place.name}.py"), place / "__init__.py")
        return next((path for path in found if path.is_file()), None)


def source_hash(modules: Iterable[str], trees: Iterable[Tree]) -> str:
    """A hash of the source of modules and, recursively, of all that they import within the trees.

    Comments and docstrings are not part of it.
    """
    content = hashlib.sha256()
    for name, path in sorted(_reached(modules, tuple(trees)).items()):
        content.update(f"{name}\0{_code(path.read_text(encoding='utf-8'))}\0".encode())
    return content.hexdigest()[:16]


@functools.cache
def _code(source: str) -> str:
    """Source without what changes no result: comments, strings that stand alone, and empty lines."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            inside = range(node.lineno - 1, node.end_lineno or node.lineno)
            if not lines[node.lineno - 1][: node.col_offset].strip():  # else there is code on the same line
                lines[inside.start : inside.stop] = [""] * len(inside)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _reached(modules: Iterable[str], trees: tuple[Tree, ...]) -> dict[str, Path]:
    """The files of modules and of what they import, by name."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = next((path for tree in trees if tree.covers(name) and (path := tree.file(name))), None)
        if name in found or path is None:
            continue
        found[name] = path
        imported = _imports(_package(name, path), path.read_text(encoding="utf-8"))
        waiting += [home for each in imported for home in _homes(*each, trees)]
    return found


def _homes(module: str, name: str, trees: tuple[Tree, ...]) -> Iterator[str]:
    """The modules that define what an import names: a package may only pass on what others define."""
    for tree in trees:
        path = tree.file(module)
        if path is None:
            continue
        if path.name != "__init__.py":
            yield module
        elif name and tree.file(f"{module}.{name}"):
            yield f"{module}.{name}"
        else:
            passed_on = _imports(module, path.read_text(encoding="utf-8"), types=True)
            homes = [home for home, known in passed_on if known == name or not name]
            yield from homes or [module]


def _package(module: str, path: Path) -> str:
    """The package that relative imports of a module start from."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


@functools.cache
def _imports(package: str, source: str, types: bool = False) -> list[tuple[str, str]]:
    """What the source of a module imports: another module, and a name in it or nothing.

    Args:
        package: What relative imports start from.
        source: The text.
        types: Whether imports that only type checkers see count, too.
    """
    parents = package.split(".")
    found: list[tuple[str, str]] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            found += [(home, "" if alias.name == "*" else alias.name) for alias in node.names]
        elif not types and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
    return found
