"""`open_data("imagenet-c=PATH")`: from a name or a path to a source of datasets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from neotta.data.base import DataSource
from neotta.data.handwritten import digits
from neotta.data.layouts import LAYOUTS, recognise
from neotta.data.layouts.ccc import is_address, open_ccc_address
from neotta.errors import CodeError, DataError

BUNDLED = {"digits": "test", "digits-all": "all"}
"""Names of the data that comes with neotta, and the part of the digits that each is."""


def open_data(
    spec: str | os.PathLike[str],
    *,
    domains: Sequence[str] | None = None,
    layout: str | None = None,
    progress: bool = False,
) -> DataSource:
    """Open a dataset.

    Args:
        spec: `"LAYOUT=PATH"`, such as `"imagenet-c=data/imagenet-c"`; a bare path, whose layout is recognised; or
            `"digits"`, the dataset that comes with neotta (`"digits-all"`: with its training images). A layout may also
            be a function of yours: `"py:path/to/file.py:function=PATH"`. Streams of CCC are also read from an
            http address, see `neotta.data.layouts.ccc.open_ccc_address`.
        domains: Keep only these: names (`"fog/5"`), corruptions (`"fog"`), or patterns (`"*/5"`).
        layout: The layout, instead of its name before the `=`.
        progress: Show a bar on standard error while data is fetched from an address.

    Raises:
        DataError: Nothing is there, it is not in this layout, or a domain does not exist.
        UnknownNameError: There is no such layout.
    """
    source = _open(spec, layout, progress)
    return source if domains is None else source.only(domains)


def layout_of(spec: str | os.PathLike[str]) -> str | None:
    """The name of the layout that `open_data` would read this with, named or recognised; None if neither."""
    if isinstance(spec, str) and spec in BUNDLED:
        return spec
    name, path = _parse(os.fspath(spec))
    if name is not None:
        return _by_key().get(_key(name), name)
    if is_address(path):
        return "ccc"
    root = Path(path).expanduser()
    return recognise(root) if root.exists() else None


def _open(spec: str | os.PathLike[str], layout: str | None, progress: bool) -> DataSource:
    if layout in (None, spec) and isinstance(spec, str) and spec in BUNDLED:
        return DataSource(spec, None, (BUNDLED[spec],), digits, tuple("0123456789"))  # type: ignore[arg-type]
    name, path = _parse(os.fspath(spec)) if layout is None else (layout, os.fspath(spec))
    if is_address(path):
        if name is not None and _key(name) != "ccc":
            raise DataError(f"{name} cannot be read from an address, only ccc can: download it, and give its folder")
        source = open_ccc_address(path, progress)
        return source if name is not None else _with_notes(source)
    root = Path(path).expanduser()
    if not root.exists():
        raise DataError(f"there is no file or folder {str(root)!r}")
    if name is not None:
        source = LAYOUTS.find(_by_key().get(_key(name), name))(root)
        if not isinstance(source, DataSource):
            raise CodeError(f"the layout {name!r} returned a {type(source).__name__}, not a DataSource")
        return source
    recognised = recognise(root)
    if recognised is None:
        what = "is empty or holds no images" if root.is_dir() else "is a file, and none with a dataset in it"
        raise DataError(f"{str(root)!r} {what}; layouts known: {', '.join(LAYOUTS)}")
    return _with_notes(LAYOUTS.find(recognised)(root))


def _with_notes(source: DataSource) -> DataSource:
    """Warn of how a bare path was understood; who named the layout knows."""
    for note in source.notes:
        warnings.warn(note, stacklevel=4)
    return source


def _parse(spec: str) -> tuple[str | None, str]:
    """Split `LAYOUT=PATH`; an `=` that belongs to an existing path separates nothing."""
    name, equals, path = spec.partition("=")
    if equals and name.startswith("py:"):
        return name, path
    if not equals or os.sep in name or (_key(name) not in _by_key() and Path(spec).exists()):
        return None, spec
    return name, path


def _by_key() -> dict[str, str]:
    return {_key(name): name for name in LAYOUTS}


def _key(name: str) -> str:
    """`cifar10-c`, `CIFAR-10-C` and `cifar_10_c` are one."""
    return name.lower().replace("-", "").replace("_", "")
