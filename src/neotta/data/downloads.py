"""`download("cifar10-c", "data")`: fetch, check and unpack a dataset of the paper, from where its appendix says."""

from __future__ import annotations

import os
import tarfile
import tempfile
import urllib.parse
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from neotta.errors import DataError, OptionError, UnknownNameError

LARGEST_RATIO = 200  # archives of images hardly shrink; one that grows more is rejected
SMALL = 100 * 2**20  # bytes to which any archive may grow


@dataclass(frozen=True)
class Archive:
    """One file to download."""

    file: str  # its name, on a mirror and on disk
    url: str
    checksum: str  # "md5:..." or "sha256:...", from its publisher or from TensorFlow Datasets
    folders: tuple[str, ...] = ()  # in a part of a dataset; a whole dataset lies in one folder of any name


def _zenodo(record: int, file: str, md5: str, folders: tuple[str, ...] = ()) -> Archive:
    return Archive(file, f"https://zenodo.org/records/{record}/files/{file}?download=1", f"md5:{md5}", folders)


WHOLE = "all"
DATASETS: Mapping[str, Mapping[str, Archive]] = {
    "imagenet-c": {
        "noise": _zenodo(2235448, "noise.tar", "e80562d7f6c3f8834afb1ecf27252745", CORRUPTIONS[:3]),
        "blur": _zenodo(2235448, "blur.tar", "2d8e81fdd8e07fef67b9334fa635e45c", CORRUPTIONS[3:7]),
        "weather": _zenodo(2235448, "weather.tar", "33ffea4db4d93fe4a428c40a6ce0c25d", CORRUPTIONS[7:11]),
        "digital": _zenodo(2235448, "digital.tar", "89157860d7b10d5797849337ca2e5c03", CORRUPTIONS[11:]),
        "extra": _zenodo(2235448, "extra.tar", "d492dfba5fc162d8ec2c3cd8ee672984", EXTRA_CORRUPTIONS),
    },
    "cifar10-c": {WHOLE: _zenodo(2535967, "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499")},
    "imagenet-r": {
        WHOLE: Archive(
            "imagenet-r.tar",
            "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
            "sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
        )
    },
    "imagenet-sketch": {
        WHOLE: Archive(  # the authors' file, without the page that asks for a click
            "ImageNet-Sketch.zip",
            "https://drive.usercontent.google.com/download?id=1Mj0i5HBthqH1p_yeXzsg22gZduvgoNeA&export=download&confirm=t",
            "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
        )
    },
    "cifar-10": {
        WHOLE: Archive(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        )
    },
}
"""The archives of each dataset by part; a dataset in one piece has the one part `"all"`."""


def download(
    name: str,
    dest: str | os.PathLike[str],
    *,
    mirror: str | None = None,
    parts: Sequence[str] | None = None,
    progress: bool = False,
) -> Path:
    """Download a dataset, check it, and unpack it into a folder of its name, unless that was done before.

    An archive that is in `dest` under its published name is used, and kept.

    Args:
        name: `cifar10-c`, `imagenet-c`, `imagenet-r`, `imagenet-sketch` or `cifar-10`.
        dest: The folder to make the dataset's folder in.
        mirror: Address of a folder that holds the same archives under their published names.
        parts: For `imagenet-c`: some of `noise`, `blur`, `weather`, `digital`, `extra`. By default all.
        progress: Show a bar on standard error.

    Returns:
        The dataset's folder, for `open_data`.

    Raises:
        DataError: The server fails, the checksum is wrong, or the archive is unsafe or unreadable.
        UnknownNameError: No such dataset or part.
        OptionError: Parts of a dataset in one piece.
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset to download", name, DATASETS)
    target = Path(dest).expanduser() / name
    for archive in _chosen(name, parts):
        if _is_unpacked(target, archive.folders):
            continue
        path = target.with_name(archive.file)
        by_hand = path.is_file()
        url = archive.url if mirror is None else f"{mirror.rstrip('/')}/{urllib.parse.quote(archive.file)}"
        fetch(url, path, archive.checksum, progress=progress)
        install(path, target, archive.folders)
        if not by_hand:
            path.unlink()
    return target


def _chosen(name: str, parts: Sequence[str] | None) -> list[Archive]:
    archives = DATASETS[name]
    if parts is None:
        return list(archives.values())
    if WHOLE in archives:
        raise OptionError(f"{name} comes in one piece: omit the parts {', '.join(parts)}")
    for part in parts:
        if part not in archives:
            raise UnknownNameError(f"part of {name}", part, archives)
    return [archives[part] for part in dict.fromkeys(parts)]


def _is_unpacked(target: Path, folders: tuple[str, ...]) -> bool:
    return target.is_dir() and any(target.iterdir()) and all((target / folder).is_dir() for folder in folders)


def fetch(url: str, path: Path, checksum: str | None = None, *, progress: bool = False) -> None:
    """Download a file, which appears only when it is complete; one that is there and has the checksum is kept."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(progressbar=progress)
    try:
        pooch.retrieve(url, checksum, path.name, path.parent, downloader=downloader)
    except (OSError, ValueError) as error:
        raise DataError(f"{url} cannot be downloaded: {error}") from error


def install(archive: Path, target: Path, folders: tuple[str, ...] = ()) -> None:
    """Unpack an archive, a tar or a zip, beside `target` and move it there once it is complete.

    Of a part of a dataset these folders are taken, unless they are there already. Otherwise the content of the archive
    becomes `target`, without the one folder that may hold everything.
    """
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
        content = Path(temporary) / "content"
        try:
            _unpack(archive, content)
            if folders:
                target.mkdir(exist_ok=True)
                for folder in folders:
                    if not (target / folder).exists():
                        (content / folder).rename(target / folder)
            else:
                inner = list(content.iterdir())
                (inner[0] if len(inner) == 1 and inner[0].is_dir() else content).replace(target)
        except Exception as error:  # a damaged archive may raise nearly every error there is
            raise DataError(f"archive {str(archive)!r} cannot be unpacked: {error}") from error


def _unpack(archive: Path, folder: Path) -> None:
    if not hasattr(tarfile, "data_filter"):
        raise DataError("unpacking archives safely needs Python 3.10.12, 3.11.4 or newer: update Python")
    limit, total, left = max(LARGEST_RATIO * archive.stat().st_size, SMALL), 0, 1000 + archive.stat().st_size // 128
    too_large, too_many = f"it would grow to more than {limit:,} bytes", f"it holds more than {left:,} files"
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            if len(zipped.infolist()) > left:
                raise DataError(too_many)
            if sum(member.file_size for member in zipped.infolist()) > limit:
                raise DataError(too_large)
            zipped.extractall(folder)
        return
    with tarfile.open(archive) as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # a million of them would fill the memory
            total, left = total + member.size, left - 1
            if total > limit or left < 0:
                raise DataError(too_large if left >= 0 else too_many)
            tar.extract(member, folder, filter="data")
