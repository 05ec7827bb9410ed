"""The domains an order is made of: datasets, or only their labels, or only their lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from neotta.data import drawing
from neotta.data._numbers import whole
from neotta.data.base import DataSource, ImageDataset
from neotta.data.drawing import Indices, Skew
from neotta.errors import DataError

SEED = 2020  # the default of the published experiments
EVEN = Skew()

Source: TypeAlias = "ImageDataset | NDArray[Any] | Sequence[int] | int"
"""What is known of a domain: the dataset itself, the labels of its samples, or only how many there are."""

Data: TypeAlias = "Mapping[str, Source] | ImageDataset | Iterable[ImageDataset] | DataSource"
"""One or more domains: sources by name, datasets that know the names of their domains, or what `open_data` gave."""


@dataclass(frozen=True)
class DomainSamples:
    """What an order has to know of a domain; `ids` is None where only labels or a length were given."""

    name: str
    size: int
    labels: NDArray[np.int64] | None
    ids: Sequence[str] | None

    @classmethod
    def of(cls, name: str, source: Source) -> DomainSamples:
        """Read a domain off its source."""
        if isinstance(source, ImageDataset):
            return cls(name, len(source), source.labels, source.ids)
        if isinstance(source, (int, np.integer)):
            return cls(name, whole(f"the number of samples of domain {name!r}", source, 0), None, None)
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
        """Return the labels, (size,), for an order that is drawn by them."""
        if self.labels is None:
            raise DataError(f"this order is drawn by labels, but domain {self.name!r} has none")
        return self.labels

    def draw(self, skew: Skew, samples: int, seed: int, visit: int = 0) -> Indices:
        """Draw samples in order, (samples,); a later visit to the domain draws again."""
        name = self.name if visit == 0 else f"{self.name}, visit {visit}"
        if skew == EVEN:
            return drawing.shuffled(self.size, seed, name)[: drawing.take(self.size, samples)]
        return skew.order(self.known_labels(), seed, name, samples)


def sequence(all_domains: list[DomainSamples], shuffle: bool, seed: int) -> list[DomainSamples]:
    """Domains as given, or by the hash of seed and name: one more leaves the others in their order."""
    if not shuffle:
        return all_domains
    return sorted(all_domains, key=lambda domain: drawing.digest(seed, domain.name, "sequence"))


def named(data: Data) -> dict[str, Source]:
    """Give every domain its name."""
    if isinstance(data, Mapping):
        return dict(data)
    datasets = _datasets(data)
    result: dict[str, Source] = {dataset.domain: dataset for dataset in datasets}
    if len(result) < len(datasets):
        raise DataError("two datasets have the same domain: give them as a mapping from different names")
    return result


def _datasets(data: ImageDataset | Iterable[ImageDataset] | DataSource) -> list[ImageDataset]:
    if isinstance(data, DataSource):
        return [data.dataset(name) for name in data.domains]
    if isinstance(data, ImageDataset):
        return [data]
    if isinstance(data, (str, os.PathLike)):
        raise DataError(f"expected datasets, got {str(data)!r}: open it with open_data({str(data)!r})")
    datasets = list(data) if isinstance(data, Iterable) else [data]
    strange = [dataset for dataset in datasets if not isinstance(dataset, ImageDataset)]
    if strange:
        raise DataError(
            f"expected datasets (or labels or lengths by name), got {strange[0]!r} of type {type(strange[0]).__name__}"
        )
    return datasets


def domains(data: Data) -> list[DomainSamples]:
    """Read the domains off whatever was given."""
    all_domains = [DomainSamples.of(name, source) for name, source in named(data).items()]
    if not all_domains:
        raise DataError("an order needs at least one domain, got none")
    return all_domains


def only(data: Data) -> DomainSamples:
    """Read the one domain of an order that takes no more."""
    if isinstance(data, DataSource):
        data = data.dataset()  # opens no others, and names them if there are any
    all_domains = domains(data)
    if len(all_domains) > 1:
        names = [domain.name for domain in all_domains]
        raise DataError(f"this order takes one domain, got {names}: choose one, or use continual or mixed")
    return all_domains[0]
