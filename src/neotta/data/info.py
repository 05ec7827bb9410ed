"""What lies at a path: layout, domains, classes, counts, sizes, and the first problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from neotta.data.base import DataSource, ImageDataset
from neotta.data.layouts.files import EncodedDataset
from neotta.errors import DataError

KEPT = 10
"""How many problems of a domain are described; all are counted."""

Progress = Callable[[str, int, int], None]
"""Called with the domain, the samples done and their total."""


@dataclass
class DomainInfo:
    """One domain as it was found.

    Attributes:
        count: Number of samples.
        per_class: The smallest and the largest number of samples of the classes that occur, or None.
        classes: Number of classes that occur, or None without labels.
        checked: Number of samples that were checked.
        sizes: Number of checked samples of each `width x height`, the most frequent first.
        modes: Number of checked samples of each format and mode, such as `JPEG RGB`, the most frequent first.
        bad: Number of checked samples that cannot be read.
        problems: The first samples that cannot be read, as (id, reason); or why the whole domain cannot be opened.
    """

    name: str
    count: int = 0
    classes: int | None = None
    per_class: tuple[int, int] | None = None
    checked: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    bad: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Info:
    """A source as it was found.

    Attributes:
        full: Whether every sample was decoded, and not only the headers of some.
        notes: How the data was understood, where that is not the only way.
    """

    layout: str
    root: str | None
    classes: int | None
    class_indices: int | None
    full: bool
    notes: tuple[str, ...]
    domains: list[DomainInfo]

    @property
    def count(self) -> int:
        """Samples in all domains."""
        return sum(domain.count for domain in self.domains)

    @property
    def bad(self) -> int:
        """Samples that cannot be read, among those looked at."""
        return sum(domain.bad for domain in self.domains)

    @property
    def checked(self) -> int:
        """Samples that were looked at."""
        return sum(domain.checked for domain in self.domains)


def describe(source: DataSource, *, sample: int = 100, full: bool = False, progress: Progress | None = None) -> Info:
    """Look through a source.

    Args:
        source: What `open_data` gave.
        sample: How many samples of each domain to check by their headers, evenly spaced.
        full: Decode every sample instead: finds truncated files too, and takes as long as reading it all.
        progress: Called while samples are checked.
    """
    domains = []
    for name in source.domains:
        try:
            dataset = source.dataset(name)
        except DataError as error:
            domains.append(DomainInfo(name, problems=[(name, str(error))]))
            continue
        domains.append(_describe(name, dataset, len(dataset) if full else sample, full, progress))
    return Info(
        source.layout,
        None if source.root is None else str(source.root),
        None if source.classes is None else len(source.classes),
        None if source.class_indices is None else len(source.class_indices),
        full,
        source.notes,
        domains,
    )


def _describe(name: str, dataset: ImageDataset, sample: int, full: bool, progress: Progress | None) -> DomainInfo:
    info = DomainInfo(name, len(dataset))
    if dataset.labels is not None:
        counts = np.unique(dataset.labels, return_counts=True)[1]
        info.classes, info.per_class = len(counts), (int(counts.min()), int(counts.max()))
    sizes: Counter[str] = Counter()
    modes: Counter[str] = Counter()
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(sample, len(dataset))).astype(int)).tolist()
    for done, index in enumerate(chosen, start=1):
        try:
            size, mode = _look_at(dataset, index, full)
        except DataError as error:
            info.bad += 1
            info.problems += [(dataset.ids[index], str(error))] if info.bad <= KEPT else []
        else:
            sizes[size] += 1
            modes[mode] += 1
        if progress is not None:
            progress(name, done, len(chosen))
    info.sizes, info.modes = dict(sizes.most_common()), dict(modes.most_common())
    info.checked = len(chosen)
    return info


def _look_at(dataset: ImageDataset, index: int, full: bool) -> tuple[str, str]:
    if full or not isinstance(dataset, EncodedDataset):
        height, width = dataset.read(index).shape[:2]
    if isinstance(dataset, EncodedDataset):
        header = dataset.header(index)
        return f"{header.width} x {header.height}", f"{header.format} {header.mode}"
    return f"{width} x {height}", "array"
