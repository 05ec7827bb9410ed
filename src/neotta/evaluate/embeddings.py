"""A cache of embeddings: the encoder sees each image once, however many runs ask for it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from neotta.data.base import ImageDataset
from neotta.data.drawing import Indices
from neotta.data.loading import Loader
from neotta.data.order import reorder
from neotta.data.orders import stored
from neotta.errors import StateFileError, StorageError
from neotta.evaluate.records import content_key
from neotta.models.preprocess import Preprocess
from neotta.neo.model_inputs import evaluating
from neotta.neo.split import Encoder
from neotta.neo.statefile import read_state, write_state

Progress = Callable[[int], None]
Contents = dict[str, tuple[list[str], list[str], bytes]]
"""For each domain the ids of the samples encoded, those of the unreadable ones, and the embeddings as safetensors."""
_Stamped = tuple[dict[int, str], Tensor]
"""What samples looked like, by their position, and their embeddings."""
UNSEEN, UNREADABLE = -1, -2
BATCH_SIZE = 64
SAVE_EVERY = 60.0
"""Seconds of encoding that are lost, at most, when the process is killed; an interruption loses nothing."""


class EmbeddingCache:
    """Embeddings of samples, by domain and sample id, in memory and, if a folder is given, on disk.

    A file holds what one pass of the encoder added. It belongs to certain weights, preprocessing and domain, carries a
    checksum, and notes for each sample what it looked like (`ImageDataset.stamp`): a damaged file is deleted, a
    sample that changed is encoded again; both are warned of.
    """

    def __init__(
        self,
        encoder: Encoder,
        preprocess: Preprocess,
        weights: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        workers: int | None = None,
    ) -> None:
        self._encoder, self._preprocess, self._weights = encoder, preprocess, weights
        self._folder = None if folder is None else Path(folder)
        self._workers = workers
        self._domains: dict[int, _DomainEmbeddings] = {}
        self._contents: Contents = {}
        self.encoded = 0

    def missing(self, dataset: ImageDataset, indices: Sequence[int] | Indices) -> Indices:
        """Which of these samples the encoder has yet to see, each once, in their order."""
        indices = np.asarray(indices, dtype=np.int64)
        unseen: Indices = indices[self._domain(dataset).rows[indices] == UNSEEN]
        first: Indices = np.unique(unseen, return_index=True)[1]
        return unseen[np.sort(first)]

    def fill(self, dataset: ImageDataset, indices: Sequence[int] | Indices, progress: Progress | None = None) -> None:
        """Encode what is missing, and keep it: also what is encoded before an interruption."""
        missing = self.missing(dataset, indices)
        if len(missing) == 0:
            return
        weight = self._encoder.head.weight
        order = reorder(stored(dataset, batch_size=BATCH_SIZE), missing)
        loader = Loader(dataset, order, self._preprocess, workers=self._workers, device=weight.device)
        positions = {dataset.ids[index]: int(index) for index in missing}
        fresh: list[_Stamped] = []
        since = time.monotonic()
        try:
            with torch.inference_mode(), evaluating(list(self._encoder.model.modules())):
                for batch in loader:
                    embeddings = self._encoder(batch.images.to(weight.dtype)).cpu()
                    read = [positions[name] for name in batch.ids]
                    stamps = {index: "" if self._folder is None else dataset.stamp(index) for index in read}
                    fresh.append((stamps, embeddings))  # in one step, as an interruption may come between two
                    self.encoded += len(batch)
                    if progress is not None:
                        progress(len(batch))
                    if time.monotonic() - since > SAVE_EVERY:
                        ready, fresh, since = fresh, [], time.monotonic()
                        self._keep(dataset, ready)
        finally:
            self._keep(dataset, fresh)
        self._domain(dataset).rows[[positions[name] for name in loader.skipped]] = UNREADABLE

    def get(self, dataset: ImageDataset, indices: Sequence[int] | Indices) -> tuple[Tensor, Indices]:
        """Embeddings of samples, (n, d), and which of the indices they are: unreadable samples are left out."""
        self.fill(dataset, indices)
        domain = self._domain(dataset)
        rows = domain.rows[np.asarray(indices, dtype=np.int64)]
        readable = np.flatnonzero(rows >= 0)
        return domain.embeddings()[torch.from_numpy(rows[readable])], readable

    def contents(self) -> Contents:
        """All embeddings in memory, to be sent elsewhere."""
        from safetensors.torch import save

        return {
            domain.dataset.domain: (*domain.ids(), save({"embeddings": domain.embeddings()}))
            for domain in self._domains.values()
        }

    def take(self, contents: Contents) -> None:
        """Take over what `contents` gave, before anything is asked for."""
        self._contents = contents

    def _keep(self, dataset: ImageDataset, fresh: list[_Stamped]) -> None:
        if not fresh:
            return
        stamps = {index: stamp for part, _ in fresh for index, stamp in part.items()}
        embeddings = torch.cat([part for _, part in fresh])
        self._domain(dataset).add(list(stamps), embeddings)
        if self._folder is not None:
            self._write(self._folder, dataset, stamps, embeddings)

    # ---- files

    def saved_in(self, folder: str | os.PathLike[str]) -> Path:
        """Where another process finds the embeddings: in the cache's own folder, or saved in this one."""
        if self._folder is not None:
            return self._folder
        for domain in self._domains.values():
            indices = domain.encoded()
            if len(indices):
                stamps = {index: domain.dataset.stamp(index) for index in indices.tolist()}
                self._write(Path(folder), domain.dataset, stamps, domain.embeddings())
        return Path(folder)

    def _write(self, folder: Path, dataset: ImageDataset, stamps: dict[int, str], embeddings: Tensor) -> None:
        content = {"ids": [dataset.ids[index] for index in stamps], "stamps": list(stamps.values())}
        about = {"kind": "embeddings", "domain": dataset.domain, **content}
        try:
            path = self._place(folder, dataset) / f"{content_key(content)}.safetensors"
            write_state(path, {"embeddings": embeddings}, about)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"embeddings cannot be kept in {str(folder)!r}: {error}") from error

    def _place(self, folder: Path, dataset: ImageDataset) -> Path:
        key = content_key(
            {"weights": self._weights, "preprocess": self._preprocess.to_dict(), "domain": dataset.domain}
        )
        return folder / key

    def _domain(self, dataset: ImageDataset) -> _DomainEmbeddings:
        embeddings = self._domains.get(id(dataset))
        if embeddings is None:
            embeddings = self._domains[id(dataset)] = _DomainEmbeddings(dataset, self._encoder.head.in_features)
            positions = {name: index for index, name in enumerate(dataset.ids)}
            if dataset.domain in self._contents:
                embeddings.take(positions, *self._contents[dataset.domain])
            if self._folder is not None:
                changed: set[int] = set()
                for path in sorted(self._place(self._folder, dataset).glob("*.safetensors")):
                    changed |= self._read(path, positions, embeddings)
                if again := [index for index in changed if embeddings.rows[index] == UNSEEN]:
                    warnings.warn(
                        f"{len(again)} images of {dataset.domain!r} changed since they were encoded: they are encoded "
                        "again",
                        RuntimeWarning,
                        stacklevel=4,
                    )
        return embeddings

    def _read(self, path: Path, positions: dict[str, int], domain: _DomainEmbeddings) -> set[int]:
        dataset = domain.dataset
        try:
            tensors, about = read_state(path)
            ids, stamps = about["ids"], about["stamps"]
            embeddings = tensors["embeddings"]
            if not len(ids) == len(stamps) == len(embeddings):
                raise StateFileError("its parts differ in length")
        except (StateFileError, KeyError) as error:
            path.unlink(missing_ok=True)
            warnings.warn(f"cached embeddings are damaged and computed again ({error})", RuntimeWarning, stacklevel=5)
            return set()
        known = [(row, positions[name]) for row, name in enumerate(ids) if name in positions]
        same = [(row, index) for row, index in known if dataset.stamp(index) == stamps[row]]
        domain.add([index for _, index in same], embeddings[[row for row, _ in same]])
        return {index for _, index in known} - {index for _, index in same}


class _DomainEmbeddings:
    """The embeddings of one domain; parts are joined when they are first asked for.

    Attributes:
        rows: For each sample of the dataset its row in the embeddings, or UNSEEN, or UNREADABLE; (N,).
    """

    def __init__(self, dataset: ImageDataset, width: int) -> None:
        self.dataset = dataset
        self.rows = np.full(len(dataset), UNSEEN, dtype=np.int64)
        self._parts = [torch.empty(0, width)]

    def add(self, indices: list[int], embeddings: Tensor) -> None:
        start = sum(len(part) for part in self._parts)
        self.rows[indices] = np.arange(start, start + len(indices))
        self._parts.append(embeddings)

    def encoded(self) -> Indices:
        present: Indices = np.flatnonzero(self.rows >= 0)
        return present[np.argsort(self.rows[present])]

    def ids(self) -> tuple[list[str], list[str]]:
        absent = np.flatnonzero(self.rows == UNREADABLE)
        ids = self.dataset.ids
        return [ids[int(index)] for index in self.encoded()], [ids[int(index)] for index in absent]

    def take(self, positions: dict[str, int], ids: list[str], unreadable: list[str], embeddings: bytes) -> None:
        from safetensors.torch import load

        self.add([positions[name] for name in ids], load(embeddings)["embeddings"])
        self.rows[[positions[name] for name in unreadable]] = UNREADABLE

    def embeddings(self) -> Tensor:
        if len(self._parts) > 1:
            self._parts = [torch.cat([part for part in self._parts if len(part)] or self._parts[:1])]
        return self._parts[0]
