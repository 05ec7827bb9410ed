"""A cache of embeddings: the encoder sees each image once, however many runs ask for it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from neotta.data._stream import Stream
from neotta.data.base import ImageDataset
from neotta.data.loading import Loader
from neotta.errors import StateFileError
from neotta.evaluate.records import content_key
from neotta.models.preprocess import Preprocess
from neotta.models.split import Encoder, evaluating
from neotta.statefile import read_state, write_state

Progress = Callable[[int], None]


class EmbeddingCache:
    """Embeddings of samples, by domain and sample id, in memory and, if a folder is given, on disk.

    A file holds what one pass of the encoder added. It belongs to certain weights, preprocessing and domain, carries a
    checksum, and notes for each sample what it looked like (`ImageDataset.stamp`): a damaged file is moved aside, a
    sample that changed is encoded again; both are warned of.

    Args:
        encoder: Makes the embeddings.
        preprocess: What belongs in front of it.
        weights: A hash of the model's weights.
        folder: Where to keep files; None keeps everything in memory.
        batch_size: Of the encoder.
        workers: Of the loader; None chooses.
    """

    def __init__(
        self,
        encoder: Encoder,
        preprocess: Preprocess,
        weights: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        batch_size: int = 64,
        workers: int | None = None,
    ) -> None:
        self._encoder, self._preprocess, self._weights = encoder, preprocess, weights
        self._folder = None if folder is None else Path(folder)
        self._batch_size, self._workers = batch_size, workers
        self._domains: dict[str, _Domain] = {}
        self.encoded = 0

    def missing(self, dataset: ImageDataset, indices: Iterable[int]) -> NDArray[np.int64]:
        """Which of these samples the encoder has yet to see."""
        domain = self._domain(dataset)
        known = domain.rows.keys() | domain.bad
        return np.array([index for index in dict.fromkeys(indices) if dataset.ids[index] not in known], dtype=np.int64)

    def fill(self, dataset: ImageDataset, indices: Iterable[int], progress: Progress | None = None) -> None:
        """Encode what is missing, and keep it."""
        missing = self.missing(dataset, indices)
        if len(missing) == 0:
            return
        domain = self._domain(dataset)
        ids: list[str] = []
        stamps: list[str] = []
        parts: list[Tensor] = []
        positions = {dataset.ids[index]: int(index) for index in missing}
        loader = Loader(
            {dataset.domain: dataset}, _as_stream(dataset, missing, self._batch_size), self._preprocess,
            workers=self._workers, device=self._encoder.head.weight.device,
        )  # fmt: skip
        with torch.inference_mode(), evaluating(list(self._encoder.model.modules())):
            for batch in loader:
                parts.append(self._encoder(batch.images.to(self._encoder.head.weight.dtype)).cpu())
                ids += batch.ids
                stamps += [dataset.stamp(positions[name]) for name in batch.ids]
                self.encoded += len(batch)
                if progress is not None:
                    progress(len(batch))
        bad = [name for name in positions if name not in set(ids)]
        width = self._encoder.head.in_features
        embeddings = torch.cat(parts) if parts else torch.empty(0, width)
        domain.add(ids, embeddings)
        domain.bad.update(bad)
        if self._folder is not None and ids:
            about = {"kind": "embeddings", "domain": dataset.domain, "ids": ids, "stamps": stamps}
            key = content_key({"ids": ids, "stamps": stamps})
            write_state(self._place(dataset) / f"{key}.safetensors", {"embeddings": embeddings.clone()}, about)

    def get(self, dataset: ImageDataset, indices: Sequence[int] | NDArray[Any]) -> tuple[Tensor, NDArray[np.int64]]:
        """Embeddings of samples, (n, d), and which of the indices they are: unreadable samples are left out."""
        self.fill(dataset, (int(index) for index in indices))
        domain = self._domain(dataset)
        kept = [position for position, index in enumerate(indices) if dataset.ids[index] not in domain.bad]
        rows = [domain.rows[dataset.ids[int(indices[position])]] for position in kept]
        return domain.embeddings()[rows], np.array(kept, dtype=np.int64)

    # ---- files

    def _place(self, dataset: ImageDataset) -> Path:
        key = content_key(
            {"weights": self._weights, "preprocess": self._preprocess.to_dict(), "domain": dataset.domain}
        )
        return Path(self._folder or ".") / key

    def _domain(self, dataset: ImageDataset) -> _Domain:
        found = self._domains.get(dataset.domain)
        if found is None:
            found = self._domains[dataset.domain] = _Domain()
            if self._folder is not None and self._place(dataset).is_dir():
                positions = {name: index for index, name in enumerate(dataset.ids)}
                for path in sorted(self._place(dataset).glob("*.safetensors")):
                    self._read(path, dataset, positions, found)
        return found

    def _read(self, path: Path, dataset: ImageDataset, positions: dict[str, int], domain: _Domain) -> None:
        try:
            tensors, about = read_state(path)
            ids, stamps = about["ids"], about["stamps"]
            embeddings = tensors["embeddings"]
            if not len(ids) == len(stamps) == len(embeddings):
                raise StateFileError("its parts differ in length")
        except (StateFileError, KeyError) as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            warnings.warn(f"cached embeddings are damaged and made anew ({error})", RuntimeWarning, stacklevel=5)
            return
        same = [
            name in positions and dataset.stamp(positions[name]) == stamp
            for name, stamp in zip(ids, stamps, strict=True)
        ]
        changed = sum(name in positions for name, fine in zip(ids, same, strict=True) if not fine)
        if changed:
            warnings.warn(
                f"{changed} images of {dataset.domain!r} changed since they were encoded: they are encoded again",
                RuntimeWarning,
                stacklevel=5,
            )
        rows = [row for row, fine in enumerate(same) if fine]
        domain.add([ids[row] for row in rows], embeddings[rows])


class _Domain:
    """The embeddings of one domain; parts are joined when they are first asked for."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.bad: set[str] = set()
        self._parts: list[Tensor] = []

    def add(self, ids: list[str], embeddings: Tensor) -> None:
        start = sum(len(part) for part in self._parts)
        self.rows.update({name: start + row for row, name in enumerate(ids)})
        self._parts.append(embeddings)

    def embeddings(self) -> Tensor:
        if len(self._parts) != 1:
            self._parts = [torch.cat(self._parts)]
        return self._parts[0]


def _as_stream(dataset: ImageDataset, indices: NDArray[np.int64], batch_size: int) -> Stream:
    return Stream(
        kind="list",
        seed=0,
        domains=(dataset.domain,),
        domain=np.zeros(len(indices), dtype=np.int64),
        index=indices,
        ids=tuple(dataset.ids[index] for index in indices),
        batch_size=batch_size,
    )
