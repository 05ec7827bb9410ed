"""CCC as published: tar files such as `serial_00000.tar`, with `<key>.input.jpg` and `<key>.output.cls`."""

from __future__ import annotations

import re
import tarfile
from functools import partial
from pathlib import Path

import numpy as np

from neotta.data.layouts.files import EncodedDataset, subfolders
from neotta.data.layouts.imagenet import imagenet_wnids
from neotta.data.source import DataSource, full_name
from neotta.errors import DataError

_STREAM = re.compile(r"baseline_\d+_transition\+speed_\d+_seed_\d+")
_SHARDS = "serial_*.tar"
NOTE = "CCC is a stream: to see its samples in the order in which they lie, say --order stored"


class TarDataset(EncodedDataset):
    """Images inside uncompressed tar files; only where each lies is kept in memory.

    Args:
        shards: The tar files, in their order.
        domain: The name of the domain.
        classes: Names of the classes.
    """

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


def _members(shard: Path) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Where the images of a tar file lie, and their labels, by key."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                key, _, kind = member.name.rpartition("/")[2].partition(".")
                if kind == "input.jpg":
                    images[key] = (member.offset_data, member.size)
                elif kind == "output.cls" and (content := archive.extractfile(member)) is not None:
                    labels[key] = int(content.read(32))
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{str(shard)!r} is not a readable tar file of CCC: {error}") from error
    return images, labels


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
    shards = sorted(streams[domain].glob(_SHARDS))
    return TarDataset(shards, domain=full_name("ccc", domain), classes=imagenet_wnids())
