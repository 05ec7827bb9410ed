"""Where the paper's datasets are published: the addresses in its appendix, and the archives' checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neotta.errors import OptionError, UnknownNameError


@dataclass(frozen=True)
class Archive:
    """One file to download.

    Attributes:
        file: Its name, on a mirror and on disk.
        url: Its address.
        checksum: `"md5:..."` or `"sha256:..."`, of its publisher or of TensorFlow Datasets; None if none is known.
    """

    file: str
    url: str
    checksum: str | None = None


@dataclass(frozen=True)
class Published:
    """A dataset to download.

    Attributes:
        name: Its name, which is also the name of its folder and of its layout.
        archives: Part to archive; a dataset in one piece has the one part `"all"`.
        inside_folder: Whether the archive wraps everything in one folder, which is then left out.
    """

    name: str
    archives: Mapping[str, Archive]
    inside_folder: bool = True

    def choose(self, parts: list[str] | None) -> list[Archive]:
        """The archives of some parts, or all."""
        if parts is None:
            return list(self.archives.values())
        if "all" in self.archives:
            raise OptionError(f"{self.name} comes in one piece: leave out parts={parts}")
        for part in parts:
            if part not in self.archives:
                raise UnknownNameError(f"part of {self.name}", part, self.archives)
        return [self.archives[part] for part in dict.fromkeys(parts)]


def _zenodo(record: int, file: str, md5: str) -> Archive:
    return Archive(file, f"https://zenodo.org/records/{record}/files/{file}?download=1", f"md5:{md5}")


_IMAGENET_C = {
    "noise": "e80562d7f6c3f8834afb1ecf27252745",
    "blur": "2d8e81fdd8e07fef67b9334fa635e45c",
    "weather": "33ffea4db4d93fe4a428c40a6ce0c25d",
    "digital": "89157860d7b10d5797849337ca2e5c03",
    "extra": "d492dfba5fc162d8ec2c3cd8ee672984",
}
_IN_ONE_PIECE = {
    "cifar10-c": _zenodo(2535967, "CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499"),
    "imagenet-r": Archive(
        "imagenet-r.tar",
        "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        "sha256:18c6bf493b39a0d975d48e587437f562caab9c52ae6327dcfa9dd8eb54aa1b52",
    ),
    "imagenet-sketch": Archive(  # the authors' file, without the page that asks for a click
        "ImageNet-Sketch.zip",
        "https://drive.usercontent.google.com/download?id=1Mj0i5HBthqH1p_yeXzsg22gZduvgoNeA&export=download&confirm=t",
        "sha256:4d3ce6b82a7c48aabf14aeac105eb533e75707f152cc858f55bfc022031a72ed",
    ),
    "cifar-10": Archive(
        "cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5:c32a1d4ab5d03f1284b67883e8d87530",
    ),
}
_PARTS = {part: _zenodo(2235448, f"{part}.tar", md5) for part, md5 in _IMAGENET_C.items()}
DATASETS: Mapping[str, Published] = {
    "imagenet-c": Published("imagenet-c", _PARTS, inside_folder=False),
    **{name: Published(name, {"all": archive}) for name, archive in _IN_ONE_PIECE.items()},
}


def find(name: str) -> Published:
    """A dataset by its name; `cifar-10-c` and `CIFAR10-C` are one."""
    keys = {_key(known): known for known in DATASETS}
    if _key(name) not in keys:
        raise UnknownNameError("dataset to download", name, DATASETS)
    return DATASETS[keys[_key(name)]]


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
