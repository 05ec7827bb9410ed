"""ImageNet's validation set and its relatives: V2, ImageNet-R, ImageNet-A, ImageNet-Sketch and Tiny-ImageNet."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np

from neotta.data.base import DataSource, ImageDataset, full_name
from neotta.data.layouts.files import (
    FileDataset,
    class_folders,
    folder_source,
    from_class_folders,
    list_images,
    read_classes,
    read_text,
    subfolders,
)
from neotta.data.layouts.folders import SPLITS
from neotta.errors import DataError

# The kinds of rendition, with which the names of ImageNet-R's files begin ("art_12.jpg").
RENDITIONS = frozenset(
    {"art", "cartoon", "deviantart", "embroidery", "graffiti", "graphic", "misc", "origami", "painting"}
    | {"sculpture", "sticker", "tattoo", "toy", "videogame"}
)
V2_FOLDERS = {
    "matched-frequency": "imagenetv2-matched-frequency-format-val",
    "threshold0.7": "imagenetv2-threshold0.7-format-val",
    "top-images": "imagenetv2-top-images-format-val",
}


@functools.cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids; class 0 is `n01440764`."""
    return tuple((files("neotta") / "assets" / "imagenet_wnids.txt").read_text(encoding="utf-8").split())


def mostly_imagenets(names: Sequence[str]) -> bool:
    """Whether more than half of these folders are ImageNet's classes, so that the others are strays among them."""
    return 2 * len(set(names).intersection(imagenet_wnids())) > len(set(names))


def is_wnid(name: str) -> bool:
    """Whether a name is written as a WordNet id, such as `n01440764`."""
    return re.fullmatch(r"n\d{8}", name) is not None


def _has_wnids(folder: Path) -> bool:
    return folder.is_dir() and mostly_imagenets(subfolders(folder))


def _first_names(folder: Path) -> list[str]:
    return list_images(folder / next(filter(is_wnid, subfolders(folder))))


def looks_like_imagenet(root: Path) -> bool:
    """Folders named by ImageNet's WordNet ids, or splits of them."""
    return _has_wnids(root) or any(_has_wnids(root / split) for split in SPLITS)


def open_imagenet(root: Path) -> DataSource:
    """`<wnid>/*`, or `val/<wnid>/*`; labels are the 1000 class numbers even if some classes are absent."""
    splits = {split: root / split for split in SPLITS if _has_wnids(root / split)} or {"val": root}
    if not any(_has_wnids(folder) for folder in splits.values()):
        class_folders(root, imagenet_wnids())  # says what is wrong with these folders
    return folder_source("imagenet", root, splits, imagenet_wnids())


def looks_like_imagenet_r(root: Path) -> bool:
    """At most 200 of the classes, and file names that begin with a kind of rendition."""
    return _has_few_wnids(root) and any(name.partition("_")[0] in RENDITIONS for name in _first_names(root))


def looks_like_imagenet_a(root: Path) -> bool:
    """At most 200 of the classes, and file names that begin with a probability, such as `0.000116_digital clock`."""
    return _has_few_wnids(root) and all(re.match(r"\d\.\d+_", name) for name in _first_names(root))


def _has_few_wnids(root: Path) -> bool:
    return _has_wnids(root) and len([*filter(is_wnid, subfolders(root))]) <= 200


def open_some_classes(layout: str, root: Path) -> DataSource:
    """`<wnid>/*.jpg` for 200 classes of ImageNet-R or ImageNet-A: labels 0..199 in the order of the WordNet ids.

    `class_indices` names the model's output of each, from the folders that are there.
    """
    outputs = tuple(sorted(class_folders(root, imagenet_wnids()).values()))
    classes = tuple(imagenet_wnids()[index] for index in outputs)
    return folder_source(layout, root, {layout: root}, classes, class_indices=outputs)


def looks_like_imagenet_sketch(root: Path) -> bool:
    """ImageNet's classes, and files that are called sketches."""
    inner = _sketch_folder(root)
    if not _has_wnids(inner):
        return False
    return "sketch" in root.name.lower() or all(name.startswith("sketch_") for name in _first_names(inner))


def open_imagenet_sketch(root: Path) -> DataSource:
    """`<wnid>/*.JPEG`, or `sketch/<wnid>/*.JPEG` as it is packed."""
    return folder_source("imagenet-sketch", root, {"imagenet-sketch": _sketch_folder(root)}, imagenet_wnids())


def _sketch_folder(root: Path) -> Path:
    return root / "sketch" if (root / "sketch").is_dir() else root


def _is_v2(folder: Path) -> bool:
    """Folders `0` to `999`; fewer only if the folder's name says what it is."""
    if not folder.is_dir():
        return False
    numbers = set(map(str, range(1000)))
    names = set(subfolders(folder))
    return names >= numbers or ("imagenetv2" in folder.name and bool(names) and names <= numbers)


def looks_like_imagenet_v2(root: Path) -> bool:
    """Numbered class folders, or the three published sets beside each other."""
    return _is_v2(root) or any((root / name).is_dir() for name in V2_FOLDERS.values())


def open_imagenet_v2(root: Path) -> DataSource:
    """`<class number>/*.jpeg`, the numbers being ImageNet's; or a folder with the published sets."""
    sets = {domain: root / name for domain, name in V2_FOLDERS.items() if (root / name).is_dir()}
    if not sets:
        of_name = {name: domain for domain, name in V2_FOLDERS.items()}
        sets = {of_name.get(root.name, "imagenet-v2"): root}
    return DataSource("imagenet-v2", root, tuple(sets), partial(_numbered, sets), imagenet_wnids())


def _numbered(sets: dict[str, Path], domain: str) -> ImageDataset:
    folder, classes = sets[domain], imagenet_wnids()
    names = subfolders(folder)
    strange = [name for name in names if not (name.isascii() and name.isdigit() and int(name) < len(classes))]
    if strange or not names:
        raise DataError(f"{str(folder)!r} must hold class folders 0 to {len(classes) - 1}, not {strange[:5] or 'none'}")
    label_of = {name: int(name) for name in names}
    return from_class_folders(folder, label_of, domain=full_name("imagenet-v2", domain), classes=classes)


_ANNOTATIONS = "val_annotations.txt"


def looks_like_tiny_imagenet(root: Path) -> bool:
    """`wnids.txt` and the annotated validation images."""
    return (root / "wnids.txt").is_file() and (root / "val" / _ANNOTATIONS).is_file()


def open_tiny_imagenet(root: Path) -> DataSource:
    """`val/images/*.JPEG` with `val/val_annotations.txt`, and `train/<wnid>/images/*.JPEG` where it is there.

    Classes are in the order of `wnids.txt`. Models have orders of their own: see `neotta.data.align`.
    """
    classes = read_classes(root / "wnids.txt")
    domains = tuple(split for split in ("val", "train") if (root / split).is_dir())
    if not domains:
        raise DataError(f"{str(root)!r} holds neither val/ nor train/")
    return DataSource("tiny-imagenet", root, domains, partial(_open_tiny, root, classes), classes)


def _open_tiny(root: Path, classes: tuple[str, ...], split: str) -> ImageDataset:
    folder, domain = root / split, full_name("tiny-imagenet", split)
    if (folder / "images").is_dir():
        return _annotated(folder, classes, domain)
    return from_class_folders(folder, class_folders(folder, classes), domain=domain, classes=classes)


def _annotated(folder: Path, classes: tuple[str, ...], domain: str) -> ImageDataset:
    path = folder / _ANNOTATIONS
    wnid_of = _annotations(path)
    names = list_images(folder / "images")
    if set(names) != set(wnid_of):
        example = sorted(set(names) ^ set(wnid_of))[0]
        raise DataError(
            f"{str(path)!r} labels {len(wnid_of):,} images where the folder holds {len(names):,}; "
            f"{example!r} is only in one of them"
        )
    number = {name: index for index, name in enumerate(classes)}
    strange = sorted(set(wnid_of.values()) - set(classes))
    if strange:
        raise DataError(f"{str(path)!r} names classes that wnids.txt does not: {strange[:5]}")
    labels = np.array([number[wnid_of[name]] for name in names], dtype=np.int64)
    return FileDataset(folder / "images", names, domain=domain, labels=labels, classes=classes)


def _annotations(path: Path) -> dict[str, str]:
    """Image name to WordNet id, from lines of `name <tab> wnid <tab> box`."""
    wnid_of = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"line {number} of {str(path)!r} is not `name <tab> class ...`: {line[:80]!r}")
        wnid_of[fields[0]] = fields[1]
    return wnid_of
