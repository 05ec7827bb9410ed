"""CCC as published: tar files such as `serial_00000.tar`, with `<key>.input.jpg` and `<key>.output.cls`.

They lie in a folder, or are fetched from an address. Nothing in them is unpacked or unpickled: images are read where
they lie, labels are numbers in plain text.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import urllib.parse
from functools import partial
from pathlib import Path

import numpy as np

from neotta.data.base import DataSource, full_name
from neotta.data.downloads import fetch
from neotta.data.layouts.files import EncodedDataset, subfolders
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.errors import DataError

_STREAM = re.compile(r"baseline_\d+_transition\+speed_\d+_seed_\d+")
_SHARDS, FIRST = "serial_*.tar", "serial_00000.tar"
_FILES = re.compile(r"serial_(?:(\d+)|\{(\d+)\.\.(\d+)\})\.tar")
IMAGES = ("input.jpg", "jpg", "jpeg")
LABELS = ("output.cls", "cls", "txt")
"""Endings of labels; the first of a sample counts."""
LONGEST_LABEL = 32
NOTE = "CCC is a stream: to see its samples in the order in which they lie, say --order stored"


class TarDataset(EncodedDataset):
    """Images inside uncompressed tar files, in their order; only where each lies is kept in memory."""

    def __init__(self, shards: list[Path], *, domain: str, classes: tuple[str, ...]) -> None:
        self.domain, self.classes = domain, classes
        self.ids: list[str] = []
        self._places: list[tuple[Path, int, int]] = []
        labels: list[int] = []
        for shard in shards:
            images, known = _members(shard)
            missing = images.keys() ^ known.keys()
            if missing:
                raise DataError(
                    f"{str(shard)!r} holds an image without a label, or the reverse: {sorted(missing)[0]!r}"
                )
            for key, place in images.items():
                self.ids.append(f"{shard.stem}/{key}")
                self._places.append((shard, *place))
                labels.append(known[key])
        self.labels = np.array(labels, dtype=np.int64)
        if len(labels) and not 0 <= self.labels.min() <= self.labels.max() < len(classes):
            raise DataError(f"labels of {domain!r} go from {self.labels.min()} to {self.labels.max()}, not 0 to 999")

    def encoded(self, index: int) -> bytes:
        """The bytes of one image file."""
        shard, start, size = self._places[index]
        with shard.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def stamp(self, index: int) -> str:
        """Size and time of the tar file, and where the image lies in it."""
        shard, start, _ = self._places[index]
        facts = shard.stat()
        return f"{facts.st_size}-{facts.st_mtime_ns}-{start}"


def _members(shard: Path) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Where the images of a tar file lie, and their labels, by key."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                key, kind = _key(member.name)
                if kind in IMAGES and member.isfile():
                    images[key] = (member.offset_data, member.size)
                elif kind in LABELS and (content := archive.extractfile(member)) is not None:
                    labels.setdefault(key, {})[kind] = content.read(LONGEST_LABEL)
        return images, {
            key: int(next(contents[kind] for kind in LABELS if kind in contents)) for key, contents in labels.items()
        }
    except (tarfile.TarError, OSError, ValueError, OverflowError, MemoryError) as error:
        why = str(error) or type(error).__name__
        raise DataError(f"{str(shard)!r} is not a readable tar file of CCC: {why}") from error


def _key(name: str) -> tuple[str, str]:
    """`a/0001.input.jpg` is the `input.jpg` of the sample `a/0001`, as WebDataset has it."""
    folder, slash, file = name.rpartition("/")
    stem, _, kind = file.partition(".")
    return f"{folder}{slash}{stem}", kind.lower()


def _streams(root: Path) -> dict[str, Path]:
    if not root.is_dir():
        return {}
    if any(root.glob(_SHARDS)):
        return {root.resolve().name: root}
    return {
        name: root / name for name in subfolders(root) if _STREAM.fullmatch(name) and any((root / name).glob(_SHARDS))
    }


def looks_like_ccc(root: Path) -> bool:
    """Tar files of one stream, or folders of several."""
    return bool(_streams(root))


def open_ccc(root: Path) -> DataSource:
    """`baseline_20_transition+speed_1000_seed_43/serial_00000.tar`, one domain for each stream, or one stream alone."""
    streams = _streams(root)
    if not streams:
        raise DataError(f"{str(root)!r} holds no tar files of CCC, such as serial_00000.tar")
    return DataSource("ccc", root, tuple(streams), partial(_open, streams), imagenet_wnids(), notes=(NOTE,))


def _open(streams: dict[str, Path], domain: str) -> TarDataset:
    return _dataset(sorted(streams[domain].glob(_SHARDS)), domain)


def is_address(text: str) -> bool:
    """Whether this is an http or https address."""
    return text.lower().startswith(("http://", "https://"))


def open_ccc_address(address: str, progress: bool = False) -> DataSource:
    """A stream on a server: `https://HOST/.../baseline_20_transition+speed_1000_seed_43/serial_{00000..00004}.tar`.

    The files are fetched when the stream is opened, one after the other, and kept in the user's cache. The address of
    the folder alone is its first file.

    Args:
        address: Address of the folder, of one file in it, or of several files.
        progress: Show a bar on standard error.

    Raises:
        DataError: This is not an address of CCC.
    """
    place = urllib.parse.urlsplit(address)
    folder, _, file = address.rstrip("/").rpartition("/")
    if not file.endswith(".tar"):
        folder, file = address.rstrip("/"), FIRST
    stream = urllib.parse.unquote(folder.rpartition("/")[2])
    numbers = _FILES.fullmatch(file)
    if place.query or place.fragment or not _STREAM.fullmatch(stream) or numbers is None:
        raise DataError(
            f"{address!r} is not the address of a stream of CCC, such as https://HOST/baseline_20_transition+speed_1000_"
            "seed_43/serial_{00000..00004}.tar; other datasets are read from disk"
        )
    first, last = numbers[1] or numbers[2], numbers[1] or numbers[3]
    names = [f"serial_{number:0{len(first)}d}.tar" for number in range(int(first), int(last) + 1)]
    if not names:
        raise DataError(f"{file!r} runs backwards: write the smaller number first")
    only = f"of this stream only its first file: for ten of them say {folder}/serial_{{00000..00009}}.tar"
    notes = (NOTE,) if address.endswith(".tar") else (NOTE, only)

    def opened(domain: str) -> TarDataset:
        shards = [_cache_folder(folder) / name for name in names]
        for shard in shards:
            fetch(f"{folder}/{shard.name}", shard, progress=progress)
        try:
            return _dataset(shards, domain)
        except DataError as error:
            raise DataError(f"{error}; remove the file to have it fetched again") from error

    return DataSource("ccc", address, (stream,), opened, imagenet_wnids(), notes=notes)


def _cache_folder(address: str) -> Path:
    """Where the files of a stream on a server are kept: one folder for each address."""
    from platformdirs import user_cache_path

    stream, digest = address.rpartition("/")[2], hashlib.sha256(address.encode()).hexdigest()[:12]
    return user_cache_path("neotta", appauthor=False) / "shards" / f"{urllib.parse.unquote(stream)}-{digest}"


def _dataset(shards: list[Path], stream: str) -> TarDataset:
    return TarDataset(shards, domain=full_name("ccc", stream), classes=imagenet_wnids())
