"""`open_data("imagenet-c=PATH")`: from a name or a path to a source of datasets."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from neotta.data.base import ImageDataset
from neotta.data.layouts import LAYOUTS, Layout
from neotta.data.source import DataSource
from neotta.errors import DataError, UnknownNameError

BUNDLED = "digits"


def open_data(
    spec: str | os.PathLike[str], *, domains: Sequence[str] | None = None, layout: str | None = None
) -> DataSource:
    """Open a dataset.

    Args:
        spec: `"LAYOUT=PATH"`, such as `"imagenet-c=data/imagenet-c"`; a bare path, whose layout is found out;
            or `"digits"`, the dataset that comes with neotta.
        domains: Keep only these: names (`"fog/5"`), corruptions (`"fog"`), or patterns (`"*/5"`).
        layout: The layout, instead of its name before the `=`.

    Raises:
        DataError: Nothing is there, it is not in this layout, or a domain does not exist.
        UnknownNameError: There is no such layout.
    """
    source = _open(spec, layout)
    return source if domains is None else source.only(domains)


def _open(spec: str | os.PathLike[str], layout: str | None) -> DataSource:
    if spec == BUNDLED and layout in (None, BUNDLED):
        return DataSource(BUNDLED, None, ("test",), _digits, tuple("0123456789"))
    name, path = _parse(os.fspath(spec)) if layout is None else (layout, os.fspath(spec))
    root = Path(path).expanduser()
    if not root.exists():
        raise DataError(f"there is no file or folder {str(root)!r}")
    if name is not None:
        return _named(name).open(root)
    source = _recognise(root).open(root)
    for note in source.notes:  # who named the layout knows
        warnings.warn(note, stacklevel=3)
    return source


def _parse(spec: str) -> tuple[str | None, str]:
    """Split `LAYOUT=PATH`; an `=` that belongs to an existing path separates nothing."""
    name, equals, path = spec.partition("=")
    if not equals or (os.sep not in name and _key(name) not in _by_key() and Path(spec).exists()):
        return None, spec
    return (None, spec) if os.sep in name else (name, path)


def _named(name: str) -> Layout:
    if _key(name) not in _by_key():
        raise UnknownNameError("layout", name, [layout.name for layout in LAYOUTS])
    return _by_key()[_key(name)]


def _key(name: str) -> str:
    """`cifar10-c`, `CIFAR-10-C` and `cifar_10_c` are one."""
    return name.lower().replace("-", "").replace("_", "")


def _by_key() -> dict[str, Layout]:
    return {_key(layout.name): layout for layout in LAYOUTS}


def _recognise(root: Path) -> Layout:
    for layout in LAYOUTS:
        if layout.looks_like(root):
            return layout
    what = "is empty or holds no images" if root.is_dir() else "is a file, and none with a dataset in it"
    known = ", ".join(layout.name for layout in LAYOUTS)
    raise DataError(f"{str(root)!r} {what}; layouts known: {known}")


def _digits(domain: str) -> ImageDataset:
    digits = importlib.import_module("neotta.data.handwritten")
    dataset: ImageDataset = digits.digits(split=domain)
    return dataset
