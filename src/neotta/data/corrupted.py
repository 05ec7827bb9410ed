"""Datasets seen through a corruption, or in the size that a set was published for, and corrupted copies of folders."""

from __future__ import annotations

import functools
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from PIL import Image as Pillow

from neotta._processes import begin_worker, usable_cores
from neotta.data._numbers import checked_seed, whole
from neotta.data.base import DatasetView, Image, ImageDataset
from neotta.data.corruptions import registry
from neotta.data.corruptions.frost import Textures
from neotta.data.decode import decode
from neotta.data.layouts.files import list_images
from neotta.errors import DataError, OptionError
from neotta.models.preprocess import Preprocess

SIDE = {"imagenet": 224, "tiny": 64, "cifar": 32}
"""The side of the square pictures each preset was published for."""


class CorruptedDataset(DatasetView):
    """The images of another dataset, each corrupted when it is read.

    Every image draws its own noise, from the seed and its id: the same in every process and in any order.

    Args:
        dataset: Where the clean images come from; ids, labels and classes are passed through.
        name: A corruption, as `corrupt` takes it.
        severity: 1 to 5.
        preset: "imagenet", "tiny" or "cifar": the set that was made for images of about the same size.
        seed: Another seed gives other noise.
        textures: A folder of frost pictures; by default they are generated.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        name: str,
        severity: int = 3,
        preset: str = "imagenet",
        seed: int = 0,
        *,
        textures: str | os.PathLike[str] | None = None,
    ) -> None:
        registry.check_choice(name, severity, preset)
        super().__init__(dataset, f"{dataset.domain}/{registry.label(name)}/{severity}")
        self.name, self.severity = name, severity
        self.preset, self.seed, self.textures = preset, checked_seed(seed), textures
        self.in_memory = False  # corrupting takes time: it is worth worker processes

    def read(self, index: int) -> Image:
        """Read one image and corrupt it."""
        return registry.corrupt(
            self.dataset.read(index),
            self.name,
            self.severity,
            self.preset,
            self.seed,
            image_id=self.ids[index],
            textures=self.textures,
        )

    def _view(self) -> str:
        return f"-{self.name}-{self.severity}-{self.preset}-{self.seed}-{self._material}"

    @functools.cached_property
    def _material(self) -> str:
        """What else the pictures depend on: the pictures of frost in a folder, or the code of an added corruption."""
        if self.textures is None or self.name != "frost":
            return registry.version(self.name)
        return Textures.of_folder(self.textures).digest()[:16]


class PreparedDataset(DatasetView):
    """The images of another dataset, larger ones cut and shrunk as the authors of ImageNet-C did.

    Images of the size of the preset, or smaller, stay as they are.
    """

    def __init__(self, dataset: ImageDataset, preset: str) -> None:
        super().__init__(dataset, f"{dataset.domain}@{preset}")  # other images: a cache keeps them apart
        self.preset = preset

    def read(self, index: int) -> Image:
        """Read one image and resize it."""
        image = self.dataset.read(index)
        return prepare(image, self.preset) if min(image.shape[:2]) > SIDE[self.preset] else image

    def _view(self) -> str:
        return f"-{self.preset}"


def prepare(image: Image, preset: str) -> Image:
    """Resize a picture to what its preset was published for.

    "imagenet": the shorter side becomes 256 pixels, and the middle 224 x 224 are cut out. The others squeeze the whole
    picture into their square.
    """
    square = (SIDE[preset], SIDE[preset])
    cropped = preset == "imagenet"
    return Preprocess(square, resize=256 if cropped else square, crop=cropped).pixels(image)


class CorruptedFolder(NamedTuple):
    """What `corrupt_folder` did: files written, files that were there, and why source images were skipped."""

    written: int
    kept: int
    unreadable: dict[str, str]


def corrupt_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    names: Sequence[str] = registry.CORRUPTIONS,
    severities: Sequence[int] = registry.SEVERITIES,
    preset: str = "imagenet",
    seed: int = 0,
    *,
    keep_size: bool = False,
    textures: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CorruptedFolder:
    """Corrupt every image below `src` and write the results below `dst`, in the layout of ImageNet-C.

    Files that exist are kept as they are: the same call completes one that was interrupted, and other options need
    another folder. A script that uses several processes calls this under `if __name__ == "__main__":`.

    Args:
        src: A folder of images, usually with one subfolder per class.
        dst: The folder to write `<corruption>/<severity>/<class>/<file>.JPEG` to (`.png` for the preset "cifar").
        names: Which corruptions, as `corrupt` takes them.
        severities: Which severities, 1 to 5.
        preset: "imagenet" (shorter side to 256, middle 224), "tiny" (64 x 64) or "cifar" (32 x 32).
        seed: Another seed gives other noise.
        keep_size: Corrupt the images in the size they have.
        textures: A folder of frost pictures; by default they are generated.
        jobs: Number of processes; by default one per core.
        progress: Called after each source image with the number of those done, and of all.

    Raises:
        DataError: There are no images in `src`, or two would be written to the same file.
        OptionError: An option is out of range, or `dst` is inside `src`.
        UnknownNameError: There is no such corruption or preset.
    """
    src, dst = Path(src), Path(dst)
    domains = _checked_domains(names, severities, preset)
    jobs = usable_cores() if jobs is None else whole("jobs", jobs, 1)
    images = _source_images(src, dst)
    copy = _Copy(src, dst, domains, preset, checked_seed(seed), keep_size, textures)
    written, unreadable = 0, {}
    for done, (image, result) in enumerate(zip(images, _results(copy, images, jobs), strict=True), start=1):
        if isinstance(result, str):
            unreadable[image] = result
            warnings.warn(f"image {image!r} is skipped: {result}", stacklevel=2)
        else:
            written += result
        if progress is not None:
            progress(done, len(images))
    return CorruptedFolder(written, (len(images) - len(unreadable)) * len(domains) - written, unreadable)


@dataclass(frozen=True)
class _Copy:
    """Writes the missing files of one source image; travels to the worker processes."""

    src: Path
    dst: Path
    domains: tuple[tuple[str, int], ...]
    preset: str
    seed: int
    keep_size: bool
    textures: str | os.PathLike[str] | None

    def __call__(self, image: str) -> int | str:
        """Return the number of files written, or why the image cannot be read."""
        suffix = ".png" if self.preset == "cifar" else ".JPEG"
        files = {
            (name, severity): (self.dst / registry.label(name) / str(severity) / image).with_suffix(suffix)
            for name, severity in self.domains
        }
        missing = {domain: file for domain, file in files.items() if not file.exists()}
        if not missing:
            return 0
        try:
            clean = decode(self.src / image)
        except DataError as error:
            return str(error)
        if not self.keep_size:
            clean = prepare(clean, self.preset)
        corrupt = functools.partial(registry.corrupt, clean, image_id=image, textures=self.textures)
        for (name, severity), file in missing.items():
            save(corrupt(name, severity, self.preset, self.seed), file)
        return len(missing)


def save(image: Image, file: Path) -> None:
    """Write a picture in one step, as PNG or as JPEG with the published quality, by the file's suffix."""
    buffer = io.BytesIO()  # Pillow itself does not notice a full disk
    if file.suffix == ".png":
        Pillow.fromarray(image).save(buffer, "PNG")
    else:
        Pillow.fromarray(image).save(buffer, "JPEG", quality=85, optimize=True)
    temporary = file.with_name(f".{file.name}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(file)


def _results(copy: _Copy, images: list[str], jobs: int) -> Iterator[int | str]:
    if jobs == 1 or len(images) == 1:
        yield from map(copy, images)
        return
    # Fresh processes: a fork of a process that has threads may hang.
    pool = ProcessPoolExecutor(min(jobs, len(images)), get_context("spawn"), initializer=begin_worker)
    try:
        yield from pool.map(copy, images, chunksize=max(1, 32 // len(copy.domains)))
    finally:
        pool.shutdown(cancel_futures=True)


def _checked_domains(names: Sequence[str], severities: Sequence[int], preset: str) -> tuple[tuple[str, int], ...]:
    if isinstance(names, str) or not isinstance(severities, Sequence):
        raise OptionError(f"names and severities are lists, got {names!r} and {severities!r}")
    pairs = tuple(dict.fromkeys((name, severity) for name in names for severity in severities))
    if not pairs:
        raise OptionError("nothing to do: name at least one corruption and one severity")
    for name, severity in pairs:
        registry.check_choice(name, severity, preset)
    if len({(registry.label(name), severity) for name, severity in pairs}) < len(pairs):
        raise OptionError(f"two of the corruptions {', '.join(names)} share a folder: rename a function")
    return pairs


def _source_images(src: Path, dst: Path) -> list[str]:
    """The source images, each of which has a file of its own to go to."""
    if not src.is_dir():
        raise DataError(f"source {str(src)!r} is not a folder")
    if src.resolve() in (dst.resolve(), *dst.resolve().parents):
        raise OptionError(f"the target {str(dst)!r} lies inside the source: its files would be corrupted again")
    images = list_images(src)
    if not images:
        raise DataError(f"no images below {str(src)!r}")
    stem, count = Counter(PurePosixPath(image).with_suffix("") for image in images).most_common(1)[0]
    if count > 1:
        raise DataError(f"{count} images in {str(src)!r} are called {str(stem)!r} but for the ending: rename them")
    return images
