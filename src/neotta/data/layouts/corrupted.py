"""`<corruption>/<severity>/<class>/`: ImageNet-C, Tiny-ImageNet-C, and any folder corrupted in their way."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from neotta.data.base import DataSource
from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from neotta.data.decode import probe
from neotta.data.layouts.files import (
    first_image,
    folder_source,
    read_classes,
    sort_names,
    subfolders,
)
from neotta.data.layouts.folders import SPLITS
from neotta.data.layouts.imagenet import imagenet_wnids, is_wnid, mostly_imagenets
from neotta.errors import DataError

PAPER_ORDER = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
GROUPS = ("noise", "blur", "weather", "digital", "extra")
"""The archives of ImageNet-C, which some people unpack into folders of their own."""

CORRUPTIONS_3D = frozenset(
    {"near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d", "h265_abr", "h265_crf", "iso_noise"}
    | {"low_light", "xy_motion_blur", "z_motion_blur"}
)
"""The corruptions of ImageNet-3DCC."""
CORRUPTIONS_BAR = frozenset(
    {"blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves"}
    | {"inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles"}
)
"""The corruptions of ImageNet-C-bar, as they are spelt there."""

_SEVERITIES = frozenset(map(str, SEVERITIES))


def in_paper_order(names: Iterable[str]) -> list[str]:
    """Sort corruptions: first the 15 of the paper and the 4 extra ones, then others by name."""
    place = {name: index for index, name in enumerate(PAPER_ORDER)}
    return sorted(names, key=lambda name: (place.get(name, len(place)), name))


def corruption_folders(root: Path) -> dict[str, Path]:
    """Corruption to its folder, in the paper's order; archives' folders (`noise/`, ...) are looked into."""
    if not root.is_dir():
        return {}
    places = [root, *(root / group for group in GROUPS if (root / group).is_dir())]
    folders = (place / name for place in places for name in subfolders(place))
    by_name = {folder.name: folder for folder in folders if _severities(folder)}
    return {name: by_name[name] for name in in_paper_order(by_name)}


def _severities(folder: Path) -> list[str]:
    """The severities in a corruption's folder; none if it is something else."""
    if folder.name in SPLITS or not any((folder / severity).is_dir() for severity in sorted(_SEVERITIES)):
        return []
    names = subfolders(folder)
    return names if _SEVERITIES.issuperset(names) else []


def looks_like_imagenet_c(root: Path) -> bool:
    """ImageNet's classes, and images of another size than Tiny-ImageNet's."""
    return _is_imagenets(root) and not _is_tiny(root)


def looks_like_imagenet_3dcc(root: Path) -> bool:
    """ImageNet's classes under corruptions of ImageNet-3DCC only."""
    return set(corruption_folders(root)) <= CORRUPTIONS_3D and _is_imagenets(root)


def looks_like_imagenet_c_bar(root: Path) -> bool:
    """ImageNet's classes under corruptions of ImageNet-C-bar only."""
    return set(corruption_folders(root)) <= CORRUPTIONS_BAR and _is_imagenets(root)


def looks_like_tiny_imagenet_c(root: Path) -> bool:
    """ImageNet's classes, and images of 64 x 64 pixels."""
    return _is_imagenets(root) and _is_tiny(root)


def looks_like_corrupted(root: Path) -> bool:
    """Corruptions of any dataset; at least one has a known name, for else the folders could be classes."""
    return not corruption_folders(root).keys().isdisjoint(PAPER_ORDER)


def _is_imagenets(root: Path) -> bool:
    folders = corruption_folders(root)
    if not folders:
        return False
    return mostly_imagenets(_classes_in(next(iter(folders.values()))))


def _is_tiny(root: Path) -> bool:
    path = first_image(next(iter(corruption_folders(root).values())))
    if path is None:
        return False
    try:
        return probe(path)[2:] == (64, 64)
    except DataError:
        return False


def _classes_in(corruption: Path) -> list[str]:
    return [name for severity in _severities(corruption) for name in subfolders(corruption / severity)]


def _all_classes(corruptions: dict[str, Path]) -> tuple[str, ...]:
    return tuple(sort_names({name for folder in corruptions.values() for name in _classes_in(folder)}))


def open_imagenet_c(root: Path) -> DataSource:
    """`<corruption>/<severity>/<wnid>/*.JPEG`; labels are ImageNet's 1000 class numbers."""
    return _open(root, "imagenet-c", imagenet_wnids())


def open_imagenet_3dcc(root: Path) -> DataSource:
    """ImageNet-C's folders with the corruptions of ImageNet-3DCC, such as `near_focus`."""
    return _open(root, "imagenet-3dcc", imagenet_wnids())


def open_imagenet_c_bar(root: Path) -> DataSource:
    """ImageNet-C's folders with the corruptions of ImageNet-C-bar, such as `plasma_noise`."""
    return _open(root, "imagenet-c-bar", imagenet_wnids())


def open_tiny_imagenet_c(root: Path) -> DataSource:
    """ImageNet-C's folders with Tiny-ImageNet's 200 classes, in the order of `wnids.txt` if present, else sorted."""
    listed = root / "wnids.txt"
    names = _all_classes(corruption_folders(root))
    return _open(root, "tiny-imagenet-c", read_classes(listed) if listed.is_file() else (*filter(is_wnid, names),))


def open_corrupted(root: Path) -> DataSource:
    """ImageNet-C's folders with any classes, or with images in the severity's folder: then without labels."""
    return _open(root, "corrupted", None)


def _open(root: Path, layout: str, classes: tuple[str, ...] | None) -> DataSource:
    folders = corruption_folders(root)
    if not folders:
        raise DataError(f"{str(root)!r} holds no <corruption>/<severity> folders, such as fog/5")
    classes = classes or _all_classes(folders) or None
    domains = {f"{name}/{s}": folder / s for name, folder in folders.items() for s in _severities(folder)}
    return folder_source(layout, root, domains, classes)
