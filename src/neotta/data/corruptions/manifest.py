"""What a corrupted folder was made with, so that a second run can only complete it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from neotta._files import atomic
from neotta._version import __version__
from neotta.data._numbers import whole
from neotta.data.corruptions.frost import Textures
from neotta.errors import DataError, OptionError

NAME = "neotta-corruptions.json"
FORMAT = 1

FileKind = Literal["jpeg", "png"]


@dataclass(frozen=True)
class FileOptions:
    """All that decides the content of a corrupted file, but its source, corruption and severity.

    Attributes:
        preset: Whose parameters, and whose image size.
        seed: Of the noise.
        keep_size: Corrupt the images in the size they have.
        file_kind: "jpeg" or "png".
        quality: Of JPEG files.
        textures: A folder of frost pictures, or None.
    """

    preset: str
    seed: int
    keep_size: bool
    file_kind: FileKind
    quality: int
    textures: str | None

    def check(self) -> None:
        """Raise the error that says which option is wrong and what it takes."""
        if self.file_kind not in get_args(FileKind):
            raise OptionError(f"file_kind is 'jpeg' or 'png', got {self.file_kind!r}")
        whole("quality", self.quality, 1, 100)

    def suffix(self) -> str:
        """The ending of the files: ImageNet-C's, or PNG's."""
        return ".JPEG" if self.file_kind == "jpeg" else ".png"


def claim(dst: Path, options: FileOptions, src: Path, images: Sequence[str]) -> None:
    """Make `dst` the folder of these options and source images, or check that it is.

    Raises:
        DataError: The folder holds something else, or its manifest cannot be read.
        OptionError: The folder was started with other options or other images.
    """
    manifest = _describe(options, src, images)
    file = dst / NAME
    if file.exists():
        _compare(dst, _read(file), manifest)
    elif dst.exists() and (not dst.is_dir() or any(dst.iterdir())):
        raise DataError(f"{str(dst)!r} already holds something else (there is no {NAME}): choose a new folder")
    else:
        with atomic(file) as temporary:
            temporary.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _describe(options: FileOptions, src: Path, images: Sequence[str]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **dataclasses.asdict(options),
        "quality": options.quality if options.file_kind == "jpeg" else None,
        "textures": Textures.of_folder(options.textures).digest() if options.textures else None,
        "images": len(images),
        # Names and sizes: enough to notice another source, and quick for a million files.
        "source": _digest([f"{image} {(src / image).stat().st_size}" for image in images]),
        "versions": {"neotta": __version__, **{name: version(name) for name in ("numpy", "scipy", "pillow")}},
    }


def _digest(lines: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(hashlib.sha256(line.encode()).digest())
    return digest.hexdigest()


def _read(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(file)!r} cannot be read ({error}): choose a new folder") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{str(file)!r} is of another version of neotta: choose a new folder")
    return manifest


def _listed(versions: object) -> str:
    return ", ".join(f"{name} {value}" for name, value in versions.items()) if isinstance(versions, dict) else "others"


def _compare(dst: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    if old.get("versions", new["versions"]) != new["versions"]:
        warnings.warn(
            f"{str(dst)!r} was started with {_listed(old['versions'])}, now these are {_listed(new['versions'])}: "
            "the pictures to come may differ a little from what these would have been",
            stacklevel=4,
        )
    differences = [name for name in new if name != "versions" and old.get(name) != new[name]]
    if not differences:
        return
    if set(differences) <= {"images", "source"}:
        raise OptionError(
            f"{str(dst)!r} was started from {old.get('images')} other images (now {new['images']}): "
            "choose a new folder, or give the same source"
        )
    listed = ", ".join(f"{name} {old.get(name)!r} (now {new[name]!r})" for name in differences if name != "source")
    raise OptionError(f"{str(dst)!r} was started with {listed}: choose a new folder, or give the same options")
