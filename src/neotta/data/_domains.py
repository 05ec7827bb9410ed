"""The domains a stream is made of: datasets, or only their labels, or only their lengths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import ImageDataset
from neotta.errors import DataError

Source: TypeAlias = "ImageDataset | NDArray[Any] | Sequence[int] | int"
"""What is known of a domain: the dataset itself, the labels of its samples, or only how many there are."""

Data: TypeAlias = "Mapping[str, Source] | ImageDataset | Iterable[ImageDataset]"
"""One or more domains: sources by name, or datasets that know the names of their domains."""


@dataclass(frozen=True)
class Domain:
    """What a stream has to know of a domain; `ids` is None where only labels or a length were given."""

    name: str
    size: int
    labels: NDArray[np.int64] | None
    ids: Sequence[str] | None

    @classmethod
    def of(cls, name: str, source: Source) -> Domain:
        """Read a domain off its source."""
        if isinstance(source, ImageDataset):
            return cls(name, len(source), source.labels, source.ids)
        if isinstance(source, (int, np.integer)):
            if source < 0:
                raise DataError(f"domain {name!r} cannot have {source} samples")
            return cls(name, int(source), None, None)
        labels = np.asarray(source)
        if labels.ndim != 1 or (labels.size and labels.dtype.kind not in "iu"):
            raise DataError(
                f"labels of domain {name!r} must be whole numbers of shape (N,), "
                f"got {labels.dtype} of shape {labels.shape}"
            )
        return cls(name, len(labels), labels.astype(np.int64), None)

    def id(self, index: int) -> str:
        """Name a sample; the position is its name where the domain has no ids."""
        return str(index) if self.ids is None else self.ids[index]

    def known_labels(self) -> NDArray[np.int64]:
        """Return the labels, (size,), for a stream that is drawn by them."""
        if self.labels is None:
            raise DataError(f"this stream is drawn by labels, but domain {self.name!r} has none")
        return self.labels


def named(data: Data) -> dict[str, Source]:
    """Give every domain its name."""
    if isinstance(data, Mapping):
        return dict(data)
    datasets = [data] if isinstance(data, ImageDataset) else list(data)
    result: dict[str, Source] = {dataset.domain: dataset for dataset in datasets}
    if len(result) < len(datasets):
        raise DataError("two datasets have the same domain: give them as a mapping from different names")
    return result


def domains(data: Data) -> list[Domain]:
    """Read the domains off whatever was given."""
    found = [Domain.of(name, source) for name, source in named(data).items()]
    if not found:
        raise DataError("a stream needs at least one domain, got none")
    return found


def only(data: Data) -> Domain:
    """Read the one domain of a stream that takes no more."""
    found = domains(data)
    if len(found) > 1:
        names = [domain.name for domain in found]
        raise DataError(f"this stream takes one domain, got {names}: choose one, or use continual or mixed")
    return found[0]
