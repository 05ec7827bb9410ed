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

CORRUPTIONS_OF = {
    "imagenet-3dcc": frozenset(
        {"near_focus", "far_focus", "bit_error", "color_quant", "flash", "fog_3d", "h265_abr", "h265_crf", "iso_noise"}
        | {"low_light", "xy_motion_blur", "z_motion_blur"}
    ),
    "imagenet-c-bar": frozenset(
        {"blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves"}
        | {"inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles"}
    ),
}
"""The corruptions of other sets, as they are spelt there."""
LAYOUTS = (*CORRUPTIONS_OF, "imagenet-c", "tiny-imagenet-c", "corrupted")

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
    if folder.name in SPLITS or not any((folder / severity).is_dir() for severity in sorted(_SEVERITIES)):
        return []
    names = subfolders(folder)
    return names if _SEVERITIES.issuperset(names) else []


def looks_like(layout: str, root: Path) -> bool:
    """Whether folders of corruptions are in this layout; of ImageNet's classes, or at least one has a known name."""
    return _layout(root) == layout


def _layout(root: Path) -> str | None:
    folders = corruption_folders(root)
    if not folders:
        return None
    if not mostly_imagenets(_classes_in(next(iter(folders.values())))):  # otherwise the folders could be classes
        return None if folders.keys().isdisjoint(PAPER_ORDER) else "corrupted"
    for layout, corruptions in CORRUPTIONS_OF.items():
        if set(folders) <= corruptions:
            return layout
    return "tiny-imagenet-c" if _is_tiny(next(iter(folders.values()))) else "imagenet-c"


def _is_tiny(corruption: Path) -> bool:
    path = first_image(corruption)
    if path is None:
        return False
    try:
        return probe(path)[2:] == (64, 64)
    except DataError:
        return False


def _classes_in(corruption: Path) -> list[str]:
    return [name for severity in _severities(corruption) for name in subfolders(corruption / severity)]


def open_corrupted(layout: str, root: Path) -> DataSource:
    """`<corruption>/<severity>/<class>/*`; or images in the severity's folder of `corrupted`, then without labels.

    Classes are ImageNet's 1000, or Tiny-ImageNet's 200 in the order of `wnids.txt` if present, or those found.
    """
    folders = corruption_folders(root)
    if not folders:
        raise DataError(f"{str(root)!r} holds no <corruption>/<severity> folders, such as fog/5")
    classes: tuple[str, ...] | None = tuple(
        sort_names({name for folder in folders.values() for name in _classes_in(folder)})
    )
    if layout == "tiny-imagenet-c":
        listed = root / "wnids.txt"
        classes = read_classes(listed) if listed.is_file() else tuple(filter(is_wnid, classes or ())) or classes
    elif layout != "corrupted":
        classes = imagenet_wnids()
    domains = {f"{name}/{s}": folder / s for name, folder in folders.items() for s in _severities(folder)}
    return folder_source(layout, root, domains, classes or None)
