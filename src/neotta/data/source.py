"""What opening a place gives: its layout, its domains and its classes; images come one domain at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from neotta.data.base import ImageDataset
from neotta.errors import DataError


@dataclass(frozen=True)
class DataSource:
    """A dataset on disk, in the layout its authors publish.

    Attributes:
        layout: The name of the layout, such as `"imagenet-c"`.
        root: The folder or file, the address of data on a server, or None for data that comes with neotta.
        domains: The domains in it, such as `"fog/5"`, in the order of the paper.
        opener: Opens one domain; `dataset` calls it.
        classes: The names of the classes in the order of the labels (WordNet ids for ImageNet's), or None.
        class_indices: For a dataset that by definition has fewer classes than the model (ImageNet-R: 200 of
            1000), the model's output for each class, increasing. None where all outputs take part.
        notes: What a user should know of how the data was understood.
    """

    layout: str
    root: Path | str | None
    domains: tuple[str, ...]
    opener: Callable[[str], ImageDataset] = field(repr=False)
    classes: tuple[str, ...] | None = None
    class_indices: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()

    def dataset(self, domain: str | None = None) -> ImageDataset:
        """Open one domain; its name may be left out where there is only one.

        Raises:
            DataError: There is no such domain (the message says which there are), or no image in it.
        """
        if domain is None:
            if len(self.domains) != 1:
                raise DataError(f"{self} has {len(self.domains)} domains, name one: {self._overview()}")
            domain = self.domains[0]
        if domain not in self.domains:
            raise self._missing(domain)
        dataset = self.opener(domain)
        if len(dataset) == 0:
            raise DataError(f"{self} holds no images in domain {domain!r}")
        return dataset

    def only(self, wanted: Sequence[str]) -> DataSource:
        """Keep some of the domains.

        Args:
            wanted: Names (`"fog/5"`), corruptions with all their severities (`"fog"`), or patterns (`"*/5"`).

        Returns:
            A source with these domains, in the order asked for.
        """
        kept: dict[str, None] = {}
        for pattern in wanted:
            short = pattern.removeprefix(f"{self.layout}/")
            found = [name for name in self.domains if fnmatchcase(name, short) or name.startswith(f"{short}/")]
            if not found:
                raise self._missing(pattern)
            kept.update(dict.fromkeys(found))
        return dataclasses.replace(self, domains=tuple(kept))

    def _missing(self, domain: str) -> DataError:
        name = domain.partition("/")[0]
        near = tuple(other for other in self.domains if other.startswith(f"{name}/"))
        return DataError(f"{self} has no domain {domain!r}; there is {self._overview(near or self.domains)}")

    def _overview(self, domains: Sequence[str] | None = None) -> str:
        """`fog/1,2,5; snow/1`: a short list of many names."""
        groups: dict[str, list[str]] = {}
        for domain in self.domains if domains is None else domains:
            name, _, severity = domain.partition("/")
            groups.setdefault(name, []).append(severity)
        return "; ".join(f"{name}/{','.join(parts)}".rstrip("/") for name, parts in groups.items())

    def __str__(self) -> str:
        return self.layout if self.root is None else f"{self.layout} at {str(self.root)!r}"


def full_name(layout: str, domain: str) -> str:
    """The name a dataset carries: `"imagenet-c/fog/5"`, but `"imagenet-r"` where the layout is the domain."""
    return domain if domain == layout else f"{layout}/{domain}"
