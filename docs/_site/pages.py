"""Generates the pages that follow from the code: one for each method, and the reference."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
from pathlib import Path
from typing import Any

from measured import measured
from method_pages import method_page, methods_index, sources_page

from neotta.adapters.registry import methods

PACKAGES = {
    "neotta": "The names that most programs need.",
    "neotta.adapters": "The base classes of methods, for methods of your own.",
    "neotta.testing": "The contract that every method keeps, to run on your own.",
    "neotta.monitoring": "Detect changes; what health and accuracy return.",
    "neotta.deploy": "ONNX files, logits behind any runtime, Ray.",
    "neotta.data": "Datasets, corruptions and orders.",
    "neotta.evaluate.statistics": "The comparison behind every verdict.",
    "neotta.errors": "Everything that neotta raises.",
}

GROUPS = {
    "Adapt": ("adapt", "restore", "fold", "reset", "save", "load", "merge", "sync", "head", "heads", "NEOHead"),
    "Single calls": ("streams", "paused", "rows"),
    "Before and while it runs": ("judge", "Judgement", "reference", "Reference", "health", "accuracy"),
    "Methods": ("create", "methods", "register", "Adapter", "split", "zero_shot"),
    "Models and evaluation": ("load_model", "available_models", "LoadedModel", "Preprocess", "evaluate", "results"),
}
"""The names of `neotta` in the order in which one meets them; names in no group come last."""

OUTSIDE = "Module, Linear, Exception, BaseException, BaseModel, BaseEstimator, Estimator, tuple, Protocol"
"""Classes whose members are not repeated."""


def write(folder: Path, *records: Path) -> None:
    """Write all generated pages, and remove those of methods and packages that are gone.

    Args:
        folder: Where to write them.
        *records: The files of records that the pages of methods show.
    """
    tables = measured(*records)
    texts = {f"methods/{name}.md": method_page(name, kind, tables.get(name)) for name, kind in methods().items()}
    texts |= {"methods/index.md": methods_index(), "methods/sources.md": sources_page()}
    shown: dict[int, str] = {}
    texts |= {f"reference/{package}.md": reference_page(package, shown) for package in PACKAGES}
    texts["reference/index.md"] = reference_index()
    for old in folder.rglob("*.md"):
        if old.relative_to(folder).as_posix() not in texts:
            old.unlink()
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:  # Sphinx reads again what is newer
            path.write_text(text, encoding="utf-8")


def reference_index() -> str:
    """The packages with public names."""
    rows = "\n".join(f"| [`{package}`]({package}.md) | {about} |" for package, about in PACKAGES.items())
    names = "\n".join(PACKAGES)
    return (
        "# Reference\n\nEvery public name, from its docstring.\n\n"
        f"| package | what it is for |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def reference_page(package: str, shown: dict[int, str]) -> str:
    """The public names of a package.

    Args:
        package: Its name.
        shown: The package whose page has an object, by `id`; a name that is shown there is only linked to.

    Raises:
        ValueError: One of them has no docstring.
    """
    module = importlib.import_module(package)
    parts = [f"# `{package}`", "", PACKAGES[package], "", f"```{{eval-rst}}\n.. py:module:: {package}\n```", ""]
    parts += [START, ""] if package == "neotta" else []
    for group, names in grouped(package, public_names(module)).items():
        parts += [f"## {group}", ""] if group else []
        for name in names:
            parts += [f"{'###' if group else '##'} {name}", "", *described(module, package, name, shown), ""]
    return "\n".join(parts)


START = """Examples on these pages begin with:

```python
import neotta
import torch

model = neotta.load_model("digits").model  # any classifier
images = torch.randn(8, 3, 32, 32)
```"""


def grouped(package: str, names: list[str]) -> dict[str, list[str]]:
    """The names of `neotta` by group, `adapt` first; those of other packages in one group without a title."""
    if package != "neotta":
        return {"": names}
    groups = {title: [name for name in members if name in names] for title, members in GROUPS.items()}
    rest = [name for name in names if not any(name in members for members in GROUPS.values())]
    return {**groups, "More": rest} if rest else groups


def described(module: Any, package: str, name: str, shown: dict[int, str]) -> list[str]:
    """What the page says of a name: its docstring and its example, or a link to where they are."""
    thing = getattr(module, name)
    if not is_data(thing) and not inspect.getdoc(thing):
        raise ValueError(f"{package}.{name} has no docstring")
    first = shown.setdefault(id(thing), package)
    if first != package:
        return [f"See [`{first}.{name}`]({first}.md#{name.lower()})."]
    example = examples().get(f"{package}.{name}", "")
    if is_data(thing):
        return [constant_docstring(module, name), "", example]
    members = ["   :members:", "   :exclude-members: Options", f"   :inherited-members: {OUTSIDE}"]
    lines = ["```{eval-rst}", f".. {directive(thing)}:: {package}.{name}"]
    return [*lines, *(members if inspect.isclass(thing) else []), "```", "", example]


@functools.cache
def examples() -> dict[str, str]:
    """The examples by name, as code blocks."""
    text = (Path(__file__).parent / "examples.md").read_text(encoding="utf-8")
    return {
        name: code
        for names, code in re.findall(r"^## (.+?)\n\n(```py.*?```)", text, re.M | re.S)
        for name in names.split()
    }


def public_names(module: Any) -> list[str]:
    """The names of `__all__`, or the classes and functions that a module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    found = [(name, thing) for name, thing in vars(module).items() if not name.startswith("_")]
    return [name for name, thing in found if getattr(thing, "__module__", None) == module.__name__]


def is_data(thing: Any) -> bool:
    """Whether this is a constant or a module, which have no docstring that autodoc finds under another name."""
    return not callable(thing) and not inspect.isclass(thing)


def constant_docstring(module: Any, name: str) -> str:
    """The string below the assignment of a constant, wherever in the package it is defined.

    Raises:
        ValueError: There is none.
    """
    thing = getattr(module, name)
    if inspect.ismodule(thing):
        return inspect.getdoc(thing) or ""
    for path in sorted(Path(str(module.__file__)).parent.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for statement, following in itertools.pairwise(body):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
            named = isinstance(target, ast.Name) and target.id == name
            if named and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                return str(following.value.value)
    raise ValueError(f"{module.__name__}.{name} has no docstring below its assignment")


def directive(thing: Any) -> str:
    """The directive of autodoc for an object."""
    if inspect.isclass(thing):
        return "autoexception" if issubclass(thing, BaseException) else "autoclass"
    return "autofunction"
