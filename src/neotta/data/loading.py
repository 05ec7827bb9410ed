"""From an order to batches of images, exactly in that order, decoded and resized in worker processes.

Workers send 8-bit pixels and the main process normalises them: a quarter of the shared memory, and less time
in all than sending floating-point numbers. Each worker uses one thread and leaves the other cores to the
encoder.
"""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from neotta._processes import usable_cores
from neotta.data._numbers import whole
from neotta.data.base import DataSource, Image, ImageDataset
from neotta.data.domain_samples import named
from neotta.data.order import Order
from neotta.errors import DataError, InputError

MAX_WORKERS = 8
Datasets: TypeAlias = "Mapping[str, ImageDataset] | ImageDataset | Iterable[ImageDataset] | DataSource"
Transform = Callable[[Image], Tensor]
"""From an image, (H, W, 3) uint8, to what the model takes, (3, H', W') floating."""


@runtime_checkable
class InTwoSteps(Protocol):
    """A preprocessing in two steps: pixels are made in the workers, and normalised in the main process.

    `normalize(pixels(image) / 255)`, channels first, has to be the same as calling it with the image, and
    `normalize` has to treat every pixel of a colour alike.
    """

    def pixels(self, image: Image) -> Image:
        """Resize and crop: (H, W, 3) uint8 to the (H', W', 3) uint8 that the model takes."""

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise (..., 3, H', W') in 0..1."""


class WorkerBatch(NamedTuple):
    """What a worker sends: images of the entries that could be read, and why others could not."""

    images: Tensor
    entries: list[int]
    failed: list[tuple[int, str]]


class Reader(Dataset[WorkerBatch]):
    """Reads and preprocesses a slice of an order; this is what goes to the workers.

    Images are (B, 3, H', W'): uint8, not yet normalised, if the preprocessing is `InTwoSteps`, else float32.
    """

    def __init__(self, datasets: list[ImageDataset], order: Order, preprocess: Transform) -> None:
        self.datasets = datasets
        self.domain, self.index = order.domain, order.index
        self.preprocess = preprocess
        self.dtype = np.uint8 if isinstance(preprocess, InTwoSteps) else np.float32

    def __getitem__(self, part: slice) -> WorkerBatch:
        """Read and preprocess these entries of the order."""
        entries: list[int] = []
        failed: list[tuple[int, str]] = []
        images = np.empty(0, dtype=self.dtype)
        for entry in range(part.start, part.stop):
            try:
                image = self.datasets[self.domain[entry]].read(int(self.index[entry]))
            except DataError as error:
                failed.append((entry, str(error)))
                continue
            ready = self._prepared(image)
            if not entries:
                images = np.empty((part.stop - entry, *ready.shape), dtype=self.dtype)
            if ready.shape != images.shape[1:]:
                raise InputError(
                    f"images of one batch have to come out of the preprocessing equally large, got "
                    f"{images.shape[1:]} and {ready.shape}: set its size"
                )
            images[len(entries)] = ready
            entries.append(entry)
        return WorkerBatch(torch.from_numpy(images[: len(entries)]), entries, failed)

    def _prepared(self, image: Image) -> NDArray[Any]:
        if isinstance(self.preprocess, InTwoSteps):
            return self.preprocess.pixels(image).transpose(2, 0, 1)
        return self.preprocess(image).numpy()


def normalized(pixels: Tensor, normalize: Callable[[Tensor], Tensor]) -> Tensor:
    """Normalise pixels, (B, 3, H, W) uint8, to float32.

    There are only 256 values in each of three colours. On a CPU they are looked up, in one pass and one
    thread: faster than arithmetic on all pixels, and no competition to the encoder's threads.
    """
    if pixels.device.type != "cpu":
        return normalize(pixels.float().div_(255))
    table = normalize(torch.arange(256.0).div_(255).expand(3, 1, 256)).float().numpy()
    images = np.empty(pixels.shape, dtype=np.float32)
    for image, source in zip(images, pixels.numpy(), strict=True):
        for colour, plane in enumerate(source):
            np.take(table[colour, 0], plane, out=image[colour], mode="clip")  # the mode that needs no buffer
    return torch.from_numpy(images)


@dataclass(frozen=True)
class Batch:
    """What came of one batch of an order; smaller where samples could not be read.

    Attributes:
        images: Ready for the model, (B, 3, H, W) float32.
        labels: Class index of each sample, (B,) int64, or None if it is not known of all of them.
        ids: Id of each sample.
        domains: Name of each sample's domain.
        cameras: Each sample's camera as a position in the order's `cameras`, (B,) int64, or None.
    """

    images: Tensor
    labels: Tensor | None
    ids: tuple[str, ...]
    domains: tuple[str, ...]
    cameras: Tensor | None

    def __len__(self) -> int:
        return len(self.ids)


class Loader:
    """Iterates over the batches of an order.

    A sample that cannot be read (`DataError`) is left out: the first of them is warned of, all are listed in
    `skipped`. Everything else that goes wrong is raised.

    Attributes:
        order: The order, with the batch size in use.
        skipped: Ids of the samples that could not be read since the iteration began.
        workers: Number of worker processes; 0: everything happens in this process.
    """

    def __init__(
        self,
        datasets: Datasets,
        order: Order,
        preprocess: Transform,
        batch_size: int | None = None,
        workers: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Check that the datasets hold what the order asks for.

        Args:
            datasets: The order's domains, by name, or knowing their names.
            order: What to load.
            preprocess: From image to tensor. Pixels travel in 8 bits if it is `InTwoSteps`.
            batch_size: Instead of the order's.
            workers: Number of worker processes. None: none if all images are in memory (datasets say so by an
                attribute `in_memory`) or there is only one batch, else half of the cores, at least one.
            device: Where images, labels and cameras are wanted. For a GPU images are pinned in memory by a
                thread and copied without waiting, as 8-bit pixels.
        """
        self.order = order if batch_size is None else replace(order, batch_size=batch_size)
        self._datasets = _matched(datasets, order)
        self._preprocess = preprocess
        self.workers = whole("workers", workers, 0) if workers is not None else self._choose_workers()
        self._device = torch.device(device)
        self._warned = False
        self.skipped: list[str] = []

    def __len__(self) -> int:
        """Count the batches; one of which no sample can be read is left out when it comes to it."""
        return len(self.order.batches())

    def __iter__(self) -> Iterator[Batch]:
        self.skipped = []
        with _deaths_explained():
            for part in self._parts():
                self._report(part.failed)
                if part.entries:
                    yield self._batch(part)

    def _parts(self) -> Iterable[WorkerBatch]:
        reader = Reader(self._datasets, self.order, self._preprocess)
        batches = self.order.batches()
        if self.workers == 0:
            return (reader[batch] for batch in batches)
        return DataLoader(
            reader,
            batch_size=None,
            sampler=cast(Any, batches),
            num_workers=self.workers,
            collate_fn=cast(Any, _unchanged),
            pin_memory=self._device.type == "cuda",
            worker_init_fn=_leave_inherited,
            generator=torch.Generator(),  # the global generator belongs to the methods under test
        )

    def _batch(self, part: WorkerBatch) -> Batch:
        order, entries = self.order, part.entries
        domains = [int(order.domain[entry]) for entry in entries]
        labels = [
            None if known is None else int(known[order.index[entry]])
            for entry, known in ((e, self._datasets[d].labels) for e, d in zip(entries, domains, strict=True))
        ]
        cameras = None if order.camera is None else torch.from_numpy(order.camera[entries])
        images = part.images.to(self._device, non_blocking=True)
        if isinstance(self._preprocess, InTwoSteps):
            images = normalized(images, self._preprocess.normalize)
        return Batch(
            images=images,
            labels=None if None in labels else torch.tensor(labels, device=self._device),
            ids=tuple(order.ids[entry] for entry in entries),
            domains=tuple(order.domains[domain] for domain in domains),
            cameras=None if cameras is None else cameras.to(self._device),
        )

    def _report(self, failed: list[tuple[int, str]]) -> None:
        self.skipped += [self.order.ids[entry] for entry, _ in failed]
        if failed and not self._warned:
            self._warned = True
            entry, reason = failed[0]
            domain = self.order.domains[self.order.domain[entry]]
            warnings.warn(
                f"sample {self.order.ids[entry]!r} of {domain!r} is skipped: {reason} "
                "(any others are skipped in silence; all are listed in the loader's 'skipped')",
                stacklevel=3,
            )

    def _choose_workers(self) -> int:
        in_memory = all(getattr(dataset, "in_memory", False) for dataset in self._datasets)
        if in_memory or len(self) < 2:
            return 0
        return max(1, min(usable_cores() // 2, MAX_WORKERS))


@contextlib.contextmanager
def _deaths_explained() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:  # torch says it, or the pipe to the worker ends
        if isinstance(error, RuntimeError) and not str(error).startswith("DataLoader worker"):
            raise
        raise DataError(
            f"a process that loads images died: {str(error).strip()} "
            "Perhaps memory ran out; with workers=0 everything happens in this process"
        ) from error


def _unchanged(part: WorkerBatch) -> WorkerBatch:
    return part


def _leave_inherited(worker: int) -> None:
    """Let a forked worker not collect what its parent left: some destructors wait for threads that it does not have."""
    gc.freeze()


def _matched(datasets: Datasets, order: Order) -> list[ImageDataset]:
    known = cast(dict[str, ImageDataset], named(datasets))
    missing = [name for name in order.domains if name not in known]
    if missing:
        raise DataError(f"the order needs the domain {missing[0]!r}, but there are only {list(known)}")
    matches = [known[name] for name in order.domains]
    for domain, index, id in zip(order.domain.tolist(), order.index.tolist(), order.ids, strict=True):
        dataset = matches[domain]
        if index >= len(dataset) or dataset.ids[index] != id:
            here = f"{dataset.ids[index]!r}" if index < len(dataset) else f"only {len(dataset)} samples"
            raise DataError(
                f"the order has sample {id!r} at {index} of {order.domains[domain]!r}, the dataset has "
                f"{here}: make the order from this dataset, or replay its manifest on it"
            )
    return matches
