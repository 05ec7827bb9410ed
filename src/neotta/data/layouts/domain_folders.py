"""`<domain>/<class>/`: PACS, Office-Home, DomainNet and DomainNet-126, VisDA-C, and anybody's folders of this form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neotta.data.layouts.files import (
    FileDataset,
    folder_source,
    read_text,
    sort_names,
    subfolders,
)
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

PACS = ("photo", "art_painting", "cartoon", "sketch")
PACS_CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
OFFICE_HOME = ("Art", "Clipart", "Product", "Real World")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
VISDA_CLASSES = (
    *("aeroplane", "bicycle", "bus", "car", "horse", "knife", "motorcycle", "person", "plant", "skateboard"),
    *("train", "truck"),
)
_SPELLINGS = {"Real World": ("Real World", "RealWorld", "Real_World", "Real")}
_LIST = "image_list.txt"


def _places(root: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """The folders of domains that are there, by the names their authors use."""
    found = ((name, spelt) for name in names for spelt in _SPELLINGS.get(name, (name,)))
    return {name: root / spelt for name, spelt in reversed(list(found)) if (root / spelt).is_dir()}


def _in_order(found: Mapping[str, Path], names: tuple[str, ...]) -> dict[str, Path]:
    return {name: found[name] for name in names if name in found}


def _classes(folders: Mapping[str, Path]) -> tuple[str, ...]:
    return tuple(sort_names({name for folder in folders.values() for name in subfolders(folder)}))


def _open(layout: str, root: Path, names: tuple[str, ...], classes: tuple[str, ...] | None = None) -> DataSource:
    folders = _in_order(_places(root, names), names)
    if not folders:
        raise DataError(f"{str(root)!r} holds none of the folders {', '.join(names)}")
    return folder_source(layout, root, folders, classes or _classes(folders))


def looks_like_pacs(root: Path) -> bool:
    """At least two of PACS's domains, one of them `art_painting` or `cartoon`, with its classes inside."""
    inner = _pacs_root(root)
    found = _places(inner, PACS)
    named = {"art_painting", "cartoon"} & found.keys()
    return len(found) > 1 and bool(named) and set(_classes(found)) <= set(PACS_CLASSES)


def open_pacs(root: Path) -> DataSource:
    """`art_painting/dog/*.jpg`, also below `kfold/` as it is packed; the seven classes in alphabetical order."""
    return _open("pacs", _pacs_root(root), PACS, PACS_CLASSES)


def _pacs_root(root: Path) -> Path:
    return root / "kfold" if (root / "kfold").is_dir() else root


def looks_like_office_home(root: Path) -> bool:
    """At least two of Office-Home's domains, whose names begin with capitals."""
    return root.is_dir() and len(_places(root, OFFICE_HOME)) > 1 and "Art" in subfolders(root)


def open_office_home(root: Path) -> DataSource:
    """`Real World/Alarm_Clock/*.jpg`; the classes in alphabetical order."""
    return _open("office-home", root, OFFICE_HOME)


def looks_like_domainnet(root: Path) -> bool:
    """At least two of DomainNet's six domains."""
    return len(_places(root, DOMAINNET)) > 1


def open_domainnet(root: Path) -> DataSource:
    """`clipart/aircraft_carrier/*.jpg`, divided by `clipart_test.txt` and `clipart_train.txt` where these are there."""
    lists = {
        f"{name}/{part}": root / f"{name}_{part}.txt"
        for name in DOMAINNET
        for part in ("test", "train")
        if (root / f"{name}_{part}.txt").is_file() and (root / name).is_dir()
    }
    return _from_lists("domainnet", root, lists) if lists else _open("domainnet", root, DOMAINNET)


def looks_like_domainnet126(root: Path) -> bool:
    """DomainNet's folders and the lists of the 126 classes, such as `real_list.txt`."""
    return looks_like_domainnet(root) and any((root / f"{name}_list.txt").is_file() for name in DOMAINNET)


def open_domainnet126(root: Path) -> DataSource:
    """`real_list.txt` and others, with lines such as `real/aircraft_carrier/real_001_000001.jpg 0`."""
    found = {name: root / f"{name}_list.txt" for name in DOMAINNET}
    lists = {name: path for name, path in found.items() if path.is_file()}
    if not lists:
        raise DataError(f"{str(root)!r} holds no lists such as real_list.txt")
    return _from_lists("domainnet-126", root, lists)


def looks_like_visda(root: Path) -> bool:
    """`train` or `validation` with the twelve classes."""
    return any(
        (root / part).is_dir() and set(VISDA_CLASSES) <= set(subfolders(root / part))
        for part in ("train", "validation")
    )


def open_visda(root: Path) -> DataSource:
    """`validation/aeroplane/*.jpg`, `train/...`, and `test/trunk*/` with the labels of `test/image_list.txt`."""
    folders = {part: root / part for part in ("validation", "train") if (root / part).is_dir()}
    if not folders:
        raise DataError(f"{str(root)!r} holds neither validation/ nor train/")
    if not (root / "test" / _LIST).is_file():
        return folder_source("visda-c", root, folders, VISDA_CLASSES)
    others = folder_source("visda-c", root, folders, VISDA_CLASSES)

    def opened(domain: str) -> FileDataset:
        if domain != "test":
            return others.dataset(domain)  # type: ignore[return-value]
        return _listed(root / "test", root / "test" / _LIST, full_name("visda-c", "test"), VISDA_CLASSES)

    return DataSource("visda-c", root, (*folders, "test"), opened, VISDA_CLASSES)


def open_domain_folders(root: Path) -> DataSource:
    """`<domain>/<class>/*`; classes are numbered in sorted order over all domains."""
    folders = {name: root / name for name in subfolders(root) if subfolders(root / name)}
    if not folders:
        raise DataError(f"{str(root)!r} holds no <domain>/<class> folders")
    return folder_source("domain-folders", root, folders, _classes(folders))


def _from_lists(layout: str, root: Path, lists: Mapping[str, Path]) -> DataSource:
    """Domains that are lists of files with their labels; folders name the classes."""
    names: dict[int, str] = {}
    for path in lists.values():
        for name, label in _lines(path):
            if names.setdefault(label, Path(name).parent.name) != Path(name).parent.name:
                raise DataError(f"{str(path)!r} gives the label {label} to {names[label]} and to {name}")
    if sorted(names) != list(range(len(names))):
        raise DataError(f"the lists in {str(root)!r} must number classes from 0 on, without gaps")
    classes = tuple(names[label] for label in range(len(names)))

    def opened(domain: str) -> FileDataset:
        return _listed(root, lists[domain], full_name(layout, domain), classes)

    return DataSource(layout, root, tuple(lists), opened, classes)


def _listed(root: Path, path: Path, domain: str, classes: tuple[str, ...]) -> FileDataset:
    lines = _lines(path)
    labels = np.array([label for _, label in lines], dtype=np.int64)
    if len(labels) and labels.max() >= len(classes):
        raise DataError(f"{str(path)!r} has the label {labels.max()}, there are {len(classes)} classes")
    return FileDataset(root, [name for name, _ in lines], domain=domain, labels=labels, classes=classes)


def _lines(path: Path) -> list[tuple[str, int]]:
    """Names and labels; a name may hold spaces."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        name, _, label = line.strip().rpartition(" ")
        if line.strip() and not (name and label.isdecimal()):
            raise DataError(f"line {number} of {str(path)!r} is not a file and its label: {line.strip()!r}")
        if line.strip():
            found.append((name, int(label)))
    return found
