"""Write a corrupted copy of a folder of images, in the layout of ImageNet-C.

`<corruption>/<severity>/<class>/<file>.JPEG`. Every file is a function of the source image, its path and the
options, for one version of NumPy, SciPy and Pillow: neither the number of workers nor an interruption can be
seen in the result.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path, PurePosixPath

from neotta._processes import begin_worker, interrupts_held, usable_cores
from neotta.data._numbers import checked_seed, whole
from neotta.data.base import Image
from neotta.data.corrupted import prepare
from neotta.data.corruptions.manifest import FileKind, FileOptions, claim
from neotta.data.corruptions.registry import CORRUPTIONS, SEVERITIES, check_choice, corrupt, label
from neotta.data.decode import decode
from neotta.data.layouts.files import list_images
from neotta.errors import DataError, OptionError

Progress = Callable[[int, int], None]
"""Called with the number of pictures that are done, and of all."""


@dataclass(frozen=True)
class CorruptedFolder:
    """What `corrupt_folder` did.

    Attributes:
        written: Files written by this call.
        kept: Files that an earlier call had written.
        unreadable: Source images that were skipped, by their path below the source folder, and why.
    """

    written: int
    kept: int
    unreadable: dict[str, str]


def corrupt_folder(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    preset: str = "imagenet",
    seed: int = 0,
    *,
    keep_size: bool = False,
    file_kind: FileKind | None = None,
    quality: int = 85,
    textures: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> CorruptedFolder:
    """Corrupt every image below `src` and write the results below `dst`.

    A call that was interrupted is completed by the same call again: whole files are kept. A call may add
    corruptions and severities to a folder, but not change another option: the files would not fit together.

    With several workers the rule of multiprocessing holds: a script calls this under
    `if __name__ == "__main__":`.

    Args:
        src: A folder of images, usually with one subfolder per class.
        dst: A new or empty folder, or one that an earlier call has started.
        names: Which corruptions, as `corrupt` takes them.
        severities: Which severities, 1 to 5.
        preset: "imagenet" (shorter side to 256, middle 224), "tiny" (64 x 64) or "cifar" (32 x 32).
        seed: Another seed gives other noise.
        keep_size: Corrupt the images in the size they have.
        file_kind: "jpeg" or "png". By default as the preset was published: lossless for "cifar", else JPEG.
        quality: Of JPEG files, 1 to 100.
        textures: A folder of frost pictures; by default they are generated.
        workers: Processes; by default one per core. With 1 everything happens in this process.
        progress: Called after each source image.

    Raises:
        DataError: There are no images in `src`, `dst` holds something else, or a file cannot be written.
        OptionError: An option is out of range, or differs from that of an earlier call on `dst`.
        UnknownNameError: There is no such corruption or preset.
    """
    src, dst = Path(src), Path(dst)
    domains = _domains(names, severities, preset)
    kind = file_kind or ("png" if preset == "cifar" else "jpeg")
    options = FileOptions(
        preset, checked_seed(seed), keep_size, kind, quality, os.fspath(textures) if textures else None
    )
    options.check()
    workers = usable_cores() if workers is None else whole("workers", workers, 1)
    images = _images(src, dst)
    claim(dst, options, src, images)

    written, kept, unreadable = 0, 0, {}
    job = _Job(src, dst, domains, options)
    with closing(in_order(job, images, workers, chunk=max(1, 32 // len(domains)))) as results:
        for done in results:
            written, kept = written + done.written, kept + done.kept
            if done.problem:
                unreadable[done.image] = done.problem
                warnings.warn(f"image {done.image!r} is skipped: {done.problem}", stacklevel=2)
            if progress:
                progress(written + kept + len(unreadable) * len(domains), len(images) * len(domains))
    return CorruptedFolder(written, kept, unreadable)


@dataclass(frozen=True)
class _Done:
    """What became of one source image."""

    image: str
    written: int = 0
    kept: int = 0
    problem: str = ""


@dataclass(frozen=True)
class _Job:
    """What is done with each source image; travels to the workers."""

    src: Path
    dst: Path
    domains: tuple[tuple[str, int], ...]
    options: FileOptions

    def __call__(self, image: str) -> _Done:
        """Write all that is missing of one source image."""
        files = {domain: self._target(image, *domain) for domain in self.domains}
        missing = {domain: file for domain, file in files.items() if not _whole(file)}
        if not missing:
            return _Done(image, kept=len(files))
        options = self.options
        try:
            clean = decode(self.src / image)
        except DataError as error:
            return _Done(image, problem=str(error))
        if not options.keep_size:
            clean = prepare(clean, options.preset)
        for (name, severity), file in missing.items():
            corrupted = corrupt(
                clean,
                name,
                severity,
                options.preset,
                options.seed,
                image_id=image,
                textures=options.textures,
            )
            _write(file, encode(corrupted, options))
        return _Done(image, written=len(missing), kept=len(files) - len(missing))

    def _target(self, image: str, name: str, severity: int) -> Path:
        return (self.dst / label(name) / str(severity) / image).with_suffix(self.options.suffix())


def _whole(file: Path) -> bool:
    """Whether a file has been written; an empty one is what a crash of the machine may leave."""
    try:
        return file.stat().st_size > 0
    except OSError:  # not there, or in the way of it: writing will say
        return False


def encode(image: Image, options: FileOptions) -> bytes:
    """The bytes of an image file."""
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    if options.file_kind == "jpeg":
        Pillow.fromarray(image).save(buffer, "JPEG", quality=options.quality, optimize=True)
    else:
        Pillow.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _write(file: Path, content: bytes) -> None:
    """Write a file in one step; if it is interrupted, the next run overwrites the temporary file.

    Not `neotta._files.atomic`: to wait for the disk after each of millions of small files would take hours.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(file)
    except OSError as error:
        raise DataError(f"{str(file)!r} cannot be written: {error.strerror}; run again to continue") from error


def _domains(names: Sequence[str], severities: Sequence[int], preset: str) -> tuple[tuple[str, int], ...]:
    """All pairs, without repetitions."""
    if isinstance(names, str) or not isinstance(severities, Sequence):
        raise OptionError(f"names and severities are lists, got {names!r} and {severities!r}")
    pairs = tuple(dict.fromkeys((name, severity) for name in names for severity in severities))
    if not pairs:
        raise OptionError("nothing to do: name at least one corruption and one severity")
    for name, severity in pairs:
        check_choice(name, severity, preset)
    names = tuple(dict.fromkeys(names))
    if len({label(name) for name in names}) < len(names):
        raise OptionError(f"two of the corruptions {', '.join(names)} share a folder: rename a function")
    return pairs


def _images(src: Path, dst: Path) -> list[str]:
    """The source images, once it is sure that each has a place of its own to go to."""
    if not src.is_dir():
        raise DataError(f"source {str(src)!r} is not a folder")
    if src.resolve() in (dst.resolve(), *dst.resolve().parents):
        raise OptionError(f"the target {str(dst)!r} lies inside the source: its files would be corrupted again")
    images = list_images(src)
    if not images:
        raise DataError(f"no images below {str(src)!r}")
    stems = Counter(PurePosixPath(image).with_suffix("") for image in images)
    stem, count = stems.most_common(1)[0]
    if count > 1:
        raise DataError(f"{count} images in {str(src)!r} are called {str(stem)!r} but for the ending: rename them")
    return images


def in_order(job: _Job, images: Sequence[str], workers: int, chunk: int = 1) -> Generator[_Done, None, None]:
    """What became of each image, in order; closing the generator lets workers finish the images they are at.

    Args:
        job: What is done with each image.
        images: The source images.
        workers: Processes; 1 means this one.
        chunk: Images that travel together.
    """
    workers = min(workers, len(images))
    if workers <= 1:
        yield from map(job, images)
        return
    # Fresh processes: a fork of a process that has threads may hang.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin_worker)
    try:
        with interrupts_held():  # the workers start here, and would die noisily of a Ctrl-C while they do
            results = pool.map(job, images, chunksize=chunk)
        yield from results
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process died (out of memory?): run again with fewer workers; what is written is kept"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
