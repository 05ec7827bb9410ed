"""An order: which samples come, in which sequence and batches; saved as a manifest, hashed and replayed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from neotta._files import atomic
from neotta._words import counted
from neotta.data._numbers import checked_seed, whole
from neotta.data.domain_samples import Data, DomainSamples, domains
from neotta.data.drawing import Indices
from neotta.errors import DataError

FORMAT = "neotta-order"
VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Order:
    """A seeded sequence of samples of one or more domains, cut into batches.

    Two orders with the same `hash()` show the same samples in the same batches.

    Attributes:
        kind: How the order was made, such as `"continual"`.
        seed: The seed it was made with.
        parameters: What else it was made with, as JSON.
        domains: Names of the domains.
        domain: For each entry the position of its domain in `domains`, (N,).
        index: For each entry the position of the sample in its dataset, (N,).
        ids: For each entry the id of the sample; unique within its domain.
        batch_size: Number of samples in a batch; the last may be smaller.
        cameras: Names of the cameras; empty where there are none.
        camera: For each entry the position of its camera in `cameras`, (N,), or None.
        straddle: Whether a batch may hold samples of more than one domain. If not, the last batch before a
            change of domain may be smaller.
    """

    kind: str
    seed: int
    domains: tuple[str, ...]
    domain: Indices
    index: Indices
    ids: tuple[str, ...]
    batch_size: int = 64
    cameras: tuple[str, ...] = ()
    camera: Indices | None = None
    straddle: bool = True
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole("batch_size", self.batch_size, 1))
        _entries(self, "domain", self.domain, len(self.domains))
        _entries(self, "index", self.index, None)
        if self.camera is not None:
            _entries(self, "camera", self.camera, len(self.cameras))

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.ids)

    def __repr__(self) -> str:
        names = ", ".join(self.domains[:3]) + (", ..." if len(self.domains) > 3 else "")
        size = f"{counted(len(self), 'sample')} in batches of {self.batch_size}"
        return f"<Order {self.kind!r}, seed {self.seed}: {size}, {counted(len(self.domains), 'domain')} ({names})>"

    def batches(self) -> list[slice]:
        """Cut the entries into batches."""
        cuts = [0, len(self)]
        if not self.straddle:
            cuts[1:1] = (np.flatnonzero(np.diff(self.domain)) + 1).tolist()
        return [
            slice(start, min(start + self.batch_size, stop))
            for begin, stop in itertools.pairwise(cuts)
            for start in range(begin, stop, self.batch_size)
        ]

    def hash(self) -> str:
        """Hash what is seen: domain, id and camera of every sample in order, and where batches are cut.

        How the order was made (kind, seed, parameters) and where a dataset keeps the samples does not matter.
        """
        cameras = [] if self.camera is None else [self.cameras[c] for c in self.camera.tolist()]
        content = [
            [part.stop - part.start for part in self.batches()],
            [self.domains[d] for d in self.domain.tolist()],
            list(self.ids),
            cameras,
        ]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The order as JSON data."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
        return {"format": FORMAT, "version": VERSION, "hash": self.hash(), **plain}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a JSON file, all of it or nothing."""
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(self.manifest(), separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Order:
        """Read an order from its JSON file.

        Positions of samples are those of the datasets it was made for; `replay` finds them again by id.

        Raises:
            DataError: The file is missing, is not a manifest, or does not match its own hash.
        """
        try:
            manifest = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the order manifest {os.fspath(path)!r}: {error}") from error
        return from_manifest(manifest)


def from_manifest(manifest: Mapping[str, Any]) -> Order:
    """Make the order that a manifest describes, and check it against the manifest's hash."""
    if not isinstance(manifest, Mapping) or manifest.get("format") != FORMAT:
        raise DataError(f"this is not an order manifest: its 'format' is not {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise DataError(f"order manifest of version {manifest.get('version')!r}: this neotta reads {VERSION}")
    try:
        values = {each.name: manifest[each.name] for each in fields(Order)}
        values |= {name: tuple(values[name]) for name in ("domains", "ids", "cameras")}
        arrays = [name for name in ("domain", "index", "camera") if name != "camera" or values[name] is not None]
        values |= {name: np.asarray(values[name], dtype=np.int64) for name in arrays}
        order = Order(**values)
        intact = order.hash() == manifest["hash"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the order manifest is damaged: {error!r}") from error
    if not intact:
        raise DataError("the order manifest is damaged: it does not match its own hash")
    return order


def replay(recorded: Order | Mapping[str, Any] | str | os.PathLike[str], data: Data) -> Order:
    """Recreate an order on these datasets: samples are found by id, whatever their position.

    Args:
        recorded: The order, its manifest, or the file it was saved to.
        data: The datasets of its domains.

    Raises:
        DataError: The manifest is damaged, or a domain or sample is missing; the first one is named.
    """
    if isinstance(recorded, (str, os.PathLike)):
        recorded = Order.load(recorded)
    order = recorded if isinstance(recorded, Order) else from_manifest(recorded)
    by_name = {domain.name: domain for domain in domains(data)}
    absent = [name for name in order.domains if name not in by_name]
    if absent:
        raise DataError(f"the order needs the domain {absent[0]!r}, but there are only {list(by_name)}")
    places = [{by_name[name].id(i): i for i in range(by_name[name].size)} for name in order.domains]
    index = [places[d].get(id, -1) for d, id in zip(order.domain.tolist(), order.ids, strict=True)]
    if -1 in index:
        entry = index.index(-1)
        name = order.domains[order.domain[entry]]
        raise DataError(f"the order needs sample {order.ids[entry]!r}, but domain {name!r} has no such id")
    return replace(order, index=np.asarray(index, dtype=np.int64))


def assemble(visited: Sequence[DomainSamples], parts: Sequence[Indices], seed: int, batch_size: int) -> Order:
    """Make an order of parts of domains one after the other; a domain may come more than once."""
    names = tuple(dict.fromkeys(domain.name for domain in visited))
    pairs = list(zip(visited, parts, strict=True))
    return Order(
        kind="assembled",
        seed=checked_seed(seed),
        domains=names,
        domain=np.concatenate([np.full(len(part), names.index(d.name), np.int64) for d, part in pairs]),
        index=np.concatenate(parts),
        ids=tuple(d.id(index) for d, part in pairs for index in part.tolist()),
        batch_size=batch_size,
    )


def reorder(order: Order, entries: Indices) -> Order:
    """Rearrange the entries of an order, (N,)."""
    return replace(
        order,
        domain=order.domain[entries],
        index=order.index[entries],
        ids=tuple(order.ids[entry] for entry in entries),
        camera=None if order.camera is None else order.camera[entries],
    )


def _entries(order: Order, name: str, values: Indices, limit: int | None) -> None:
    if values.shape != (len(order.ids),) or values.dtype != np.int64:
        raise DataError(
            f"{name!r} of an order of {len(order.ids)} ids must be int64 of shape ({len(order.ids)},), "
            f"got {values.dtype} of shape {values.shape}"
        )
    if values.size and (values.min() < 0 or (limit is not None and values.max() >= limit)):
        raise DataError(f"{name!r} of an order holds {values.min()} to {values.max()}, allowed is 0 to {limit}")
    values.flags.writeable = False
