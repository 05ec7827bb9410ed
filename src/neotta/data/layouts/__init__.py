"""The ways datasets lie on disk, in one registry; its order is that in which a bare path is recognised."""

from __future__ import annotations

from collections.abc import Callable
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


_OURS: tuple[tuple[str, Opener, Recogniser], ...] = (
    ("npz", arrays.open_npz, arrays.looks_like_npz),
    ("cifar10-c", cifar.open_cifar10_c, cifar.looks_like_cifar10_c),
    ("cifar100-c", cifar.open_cifar100_c, cifar.looks_like_cifar100_c),
    ("cifar-10", cifar.open_cifar10, cifar.looks_like_cifar10),
    ("cifar-100", cifar.open_cifar100, cifar.looks_like_cifar100),
    ("ccc", ccc.open_ccc, ccc.looks_like_ccc),
    ("tiny-imagenet", imagenet.open_tiny_imagenet, imagenet.looks_like_tiny_imagenet),
    ("imagenet-3dcc", corrupted.open_imagenet_3dcc, corrupted.looks_like_imagenet_3dcc),
    ("imagenet-c-bar", corrupted.open_imagenet_c_bar, corrupted.looks_like_imagenet_c_bar),
    ("imagenet-c", corrupted.open_imagenet_c, corrupted.looks_like_imagenet_c),
    ("tiny-imagenet-c", corrupted.open_tiny_imagenet_c, corrupted.looks_like_tiny_imagenet_c),
    ("corrupted", corrupted.open_corrupted, corrupted.looks_like_corrupted),
    ("imagenet-r", imagenet.open_imagenet_r, imagenet.looks_like_imagenet_r),
    ("imagenet-a", imagenet.open_imagenet_a, imagenet.looks_like_imagenet_a),
    ("imagenet-sketch", imagenet.open_imagenet_sketch, imagenet.looks_like_imagenet_sketch),
    ("imagenet", imagenet.open_imagenet, imagenet.looks_like_imagenet),
    ("imagenet-v2", imagenet.open_imagenet_v2, imagenet.looks_like_imagenet_v2),
    ("folder", folders.open_folder, folders.looks_like_folder),
    ("images", folders.open_images, folders.looks_like_images),
)
for _name, _opener, _recognises in _OURS:
    register_layout(_name, recognises=_recognises)(_opener)
register_layout("domain-folders")(folders.open_domain_folders)  # not to be told from splits or classes
