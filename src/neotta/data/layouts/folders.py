"""Anybody's images: a folder for each class, also below one for each domain, or images without labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from neotta.data.base import DataSource
from neotta.data.class_groups import read_class_groups
from neotta.data.decode import SUFFIXES
from neotta.data.layouts.files import first_image, folder_source, sort_names, subfolders
from neotta.errors import DataError

SPLITS = ("val", "valid", "validation", "test", "train")
"""Names that divide a dataset and are no classes; a subfolder called so is a domain."""


def looks_like_folder(root: Path) -> bool:
    """Images in subfolders, and beside them none, or fewer than there are such folders: then they are strays."""
    if not root.is_dir():
        return False
    strays = len(_images_at_the_top(root))
    return len(list(islice(_folders_with_images(root), strays + 1))) > strays


def open_folder(root: Path) -> DataSource:
    """`<class>/*`, or `<split>/<class>/*`; classes are numbered in sorted order of their folders."""
    splits = {name: root / name for name in SPLITS if _split(root / name)}
    if set(subfolders(root)) != set(splits):
        splits = {root.resolve().name: root}
    groups = read_class_groups(root)
    classes = tuple(groups or _classes(splits))
    if not classes:
        raise DataError(f"{str(root)!r} holds no class folders; for images without labels say images={root}")
    notes = tuple(filter(None, (_about_strays(folder) for folder in splits.values())))
    return folder_source("folder", root, splits, classes, class_groups=groups, notes=notes)


def _about_strays(folder: Path) -> str:
    strays = _images_at_the_top(folder)
    if not strays:
        return ""
    which = f"{len(strays)} images ({strays[0]}, ...)" if len(strays) > 1 else f"the image {strays[0]}"
    return (
        f"{which} in {str(folder)!r} beside the class folders has no class and is left out; "
        f"for all images without labels say images={folder}"
    )


def _split(folder: Path) -> bool:
    return folder.is_dir() and len(subfolders(folder)) > len(_images_at_the_top(folder))


def _images_at_the_top(folder: Path) -> list[str]:
    names = (path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(name for name in names if name[0] != ".")


def _folders_with_images(folder: Path) -> Iterator[str]:
    return (name for name in subfolders(folder) if first_image(folder / name))


def open_domain_folders(root: Path) -> DataSource:
    """`<domain>/<class>/*`; classes are numbered in sorted order over all domains."""
    domains = {name: root / name for name in subfolders(root) if subfolders(root / name)}
    if not domains:
        raise DataError(f"{str(root)!r} holds no <domain>/<class> folders")
    groups = read_class_groups(root)
    return folder_source("domain-folders", root, domains, tuple(groups or _classes(domains)), class_groups=groups)


def _classes(folders: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(sort_names({name for folder in folders.values() for name in subfolders(folder)}))


def looks_like_images(root: Path) -> bool:
    """Any folder with an image in it."""
    return root.is_dir() and first_image(root) is not None


def open_images(root: Path) -> DataSource:
    """All images in the folder and below it; nothing is known of their classes."""
    inside = next(_folders_with_images(root), None)
    note = (
        f"images of {str(root)!r} have no labels: there are images beside folders of images such as {inside!r}; "
        f"if these are classes say folder={root}, else images={root}"
    )
    notes = (note,) if inside else ()
    groups = read_class_groups(root)
    return folder_source("images", root, {root.resolve().name: root}, None, class_groups=groups, notes=notes)
