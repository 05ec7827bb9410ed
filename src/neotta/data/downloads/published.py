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
        checksum: `"md5:..."` or `"sha256:..."`; None where none is known: then only the length is checked.
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


def _zenodo(record: int, file: str) -> str:
    return f"https://zenodo.org/records/{record}/files/{file}?download=1"


def _imagenet_c(part: str, md5: str) -> Archive:
    return Archive(f"{part}.tar", _zenodo(2235448, f"{part}.tar"), f"md5:{md5}")


_ALL = (
    Published(
        "cifar10-c",
        {
            "all": Archive(
                "CIFAR-10-C.tar",
                _zenodo(2535967, "CIFAR-10-C.tar"),
                "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
            )
        },
    ),
    Published(
        "imagenet-c",
        {
            "noise": _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745"),
            "blur": _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c"),
            "weather": _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d"),
            "digital": _imagenet_c("digital", "89157860d7b10d5797849337ca2e5c03"),
            "extra": _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984"),
        },
        inside_folder=False,
    ),
    Published(
        "imagenet-r",
        {"all": Archive("imagenet-r.tar", "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar")},
    ),
    Published(
        "imagenet-sketch",
        {
            "all": Archive(  # the authors' file, without the page that asks for a click
                "ImageNet-Sketch.zip",
                "https://drive.usercontent.google.com/download"
                "?id=1Mj0i5HBthqH1p_yeXzsg22gZduvgoNeA&export=download&confirm=t",
            )
        },
    ),
    Published(
        "cifar-10",
        {
            "all": Archive(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            )
        },
    ),
)
CATALOG: Mapping[str, Published] = {published.name: published for published in _ALL}


def find(name: str) -> Published:
    """A dataset by its name; `cifar-10-c` and `CIFAR10-C` are one."""
    keys = {_key(known): known for known in CATALOG}
    if _key(name) not in keys:
        raise UnknownNameError("dataset to download", name, CATALOG)
    return CATALOG[keys[_key(name)]]


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
