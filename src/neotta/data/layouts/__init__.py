"""The ways datasets lie on disk, in one registry; its order is that in which a bare path is recognised."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from neotta._registry import Registry
from neotta.data.base import DataSource
from neotta.data.layouts import arrays, ccc, cifar, corrupted, folders, imagenet
from neotta.errors import OptionError

Opener = Callable[[Path], DataSource]
Recogniser = Callable[[Path], bool]


def _check(name: str, layout: Any) -> None:
    if not callable(layout):
        raise OptionError(f"a layout is a function from a path to a DataSource, got {layout!r}")
    if not name.startswith("py:") and {*name} & {*"=/\\: "}:
        raise OptionError(f"{name!r} cannot be the name of a layout: use letters, digits and dashes")


LAYOUTS: Registry[Opener] = Registry("layout", group="neotta.layouts", check=_check)
GENERIC = ("folder", "images")
"""What any folder may be; asked last."""
_recognisers: dict[str, Recogniser] = {}


def register_layout(name: str, *, recognises: Recogniser | None = None) -> Callable[[Opener], Opener]:
    """Add a layout: a decorator for a function that opens a path and returns a `DataSource`.

    Args:
        name: The name it is known by, as in `open_data("NAME=PATH")`.
        recognises: Whether a bare path is in this layout. It is asked after neotta's own layouts, but before those for
            folders of any images. None: the layout has to be named.
    """

    def register(opener: Opener) -> Opener:
        LAYOUTS.register(name, opener)
        if recognises is not None:
            _recognisers[name] = recognises
        return opener

    return register


def recognise(path: Path) -> str | None:
    """The layout of a bare path, or None; plug-ins that cannot be loaded are left out with a warning."""
    names = sorted(LAYOUTS.available(), key=lambda name: name in GENERIC)  # in order of registration, these last
    return next((name for name in names if name in _recognisers and _recognisers[name](path)), None)


def _register(name: str, opener: Opener, recognises: Recogniser) -> None:
    register_layout(name, recognises=recognises)(opener)


_register("npz", arrays.open_npz, arrays.looks_like_npz)
for _name in cifar.CORRUPTED:
    _register(_name, partial(cifar.open_corrupted, _name), partial(cifar.looks_like_corrupted, _name))
for _name in cifar.BINARY:
    _register(_name, partial(cifar.open_binary, _name), partial(cifar.looks_like_binary, _name))
_register("ccc", ccc.open_ccc, ccc.looks_like_ccc)
_register("tiny-imagenet", imagenet.open_tiny_imagenet, imagenet.looks_like_tiny_imagenet)
for _name in corrupted.LAYOUTS:
    _register(_name, partial(corrupted.open_corrupted, _name), partial(corrupted.looks_like, _name))
_register("imagenet-r", partial(imagenet.open_some_classes, "imagenet-r"), imagenet.looks_like_imagenet_r)
_register("imagenet-a", partial(imagenet.open_some_classes, "imagenet-a"), imagenet.looks_like_imagenet_a)
_register("imagenet-sketch", imagenet.open_imagenet_sketch, imagenet.looks_like_imagenet_sketch)
_register("imagenet", imagenet.open_imagenet, imagenet.looks_like_imagenet)
_register("imagenet-v2", imagenet.open_imagenet_v2, imagenet.looks_like_imagenet_v2)
_register("folder", folders.open_folder, folders.looks_like_folder)
_register("images", folders.open_images, folders.looks_like_images)
register_layout("domain-folders")(folders.open_domain_folders)  # not to be told from splits or classes
