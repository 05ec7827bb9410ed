"""A stream: which samples come, in which order and batches; saved as a manifest, hashed and replayed."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from neotta._files import atomic
from neotta._words import counted
from neotta.data._domains import Data, Domain, domains
from neotta.data._numbers import checked_seed, whole
from neotta.data.orders import Indices
from neotta.errors import DataError

FORMAT = "neotta-stream"
VERSION = 1


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """A seeded, ordered sequence of samples of one or more domains, cut into batches.

    Two streams with the same `hash()` show the same samples in the same batches.

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
        return f"<Stream {self.kind!r}, seed {self.seed}: {size}, {counted(len(self.domains), 'domain')} ({names})>"

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

        How the order came about (kind, seed, parameters) and where a dataset keeps the samples do not count.
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
        """Write down the stream as JSON data, sample ids by domain."""
        samples = []
        for number, name in enumerate(self.domains):
            entries = np.flatnonzero(self.domain == number)
            ids = [self.ids[entry] for entry in entries]
            samples.append({"domain": name, "ids": ids, "indices": self.index[entries].tolist()})
        return {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "seed": self.seed,
            "parameters": self.parameters,
            "batch_size": self.batch_size,
            "straddle": self.straddle,
            "hash": self.hash(),
            "samples": samples,
            "order": self.domain.tolist(),
            "cameras": list(self.cameras),
            "camera": None if self.camera is None else self.camera.tolist(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest to a JSON file, all of it or nothing."""
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(self.manifest(), separators=(",", ":")) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Stream:
        """Read a stream from its JSON file.

        Positions of samples are those of the datasets it was made for; `replay` finds them anew by id.

        Raises:
            DataError: The file is missing, is no manifest, or does not agree with its own hash.
        """
        try:
            manifest = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the stream manifest {os.fspath(path)!r}: {error}") from error
        return from_manifest(manifest)


def from_manifest(manifest: Mapping[str, Any]) -> Stream:
    """Build the stream that a manifest describes, and check it against the manifest's hash."""
    if not isinstance(manifest, Mapping) or manifest.get("format") != FORMAT:
        raise DataError(f"this is no stream manifest: its 'format' is not {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise DataError(f"stream manifest of version {manifest.get('version')!r}: this neotta reads {VERSION}")
    try:
        order = np.asarray(manifest["order"], dtype=np.int64)
        index = np.zeros(len(order), dtype=np.int64)
        ids = np.empty(len(order), dtype=object)
        for number, part in enumerate(manifest["samples"]):
            index[order == number] = part["indices"]
            ids[order == number] = part["ids"]
        stream = Stream(
            kind=manifest["kind"],
            seed=manifest["seed"],
            domains=tuple(part["domain"] for part in manifest["samples"]),
            domain=order,
            index=index,
            ids=tuple(ids.tolist()),
            batch_size=manifest["batch_size"],
            cameras=tuple(manifest["cameras"]),
            camera=None if manifest["camera"] is None else np.asarray(manifest["camera"], dtype=np.int64),
            straddle=manifest["straddle"],
            parameters=dict(manifest["parameters"]),
        )
        intact = stream.hash() == manifest["hash"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the stream manifest is damaged: {error!r}") from error
    if not intact:
        raise DataError("the stream manifest is damaged: it does not agree with its own hash")
    return stream


def replay(recorded: Stream | Mapping[str, Any] | str | os.PathLike[str], data: Data) -> Stream:
    """Make a stream again on these datasets: samples are found by id, wherever they stand.

    Args:
        recorded: The stream, its manifest, or the file it was saved to.
        data: Its domains.

    Raises:
        DataError: The manifest is damaged, or a domain or sample is missing; the first one is named.
    """
    if isinstance(recorded, (str, os.PathLike)):
        recorded = Stream.load(recorded)
    stream = recorded if isinstance(recorded, Stream) else from_manifest(recorded)
    found = {domain.name: domain for domain in domains(data)}
    absent = [name for name in stream.domains if name not in found]
    if absent:
        raise DataError(f"the stream needs the domain {absent[0]!r}, but there are only {list(found)}")
    places = [{found[name].id(i): i for i in range(found[name].size)} for name in stream.domains]
    index = [places[d].get(id, -1) for d, id in zip(stream.domain.tolist(), stream.ids, strict=True)]
    if -1 in index:
        entry = index.index(-1)
        name = stream.domains[stream.domain[entry]]
        raise DataError(f"the stream needs sample {stream.ids[entry]!r}, but domain {name!r} has no such id")
    return replace(stream, index=np.asarray(index, dtype=np.int64))


def assemble(
    kind: str,
    found: Sequence[Domain],
    parts: Sequence[Indices],
    seed: int,
    batch_size: int,
    parameters: dict[str, Any],
) -> Stream:
    """Make a stream of parts of domains one after the other; a domain may come more than once."""
    names = tuple(dict.fromkeys(domain.name for domain in found))
    pairs = list(zip(found, parts, strict=True))
    return Stream(
        kind=kind,
        seed=checked_seed(seed),
        domains=names,
        domain=np.concatenate([np.full(len(part), names.index(d.name), np.int64) for d, part in pairs]),
        index=np.concatenate(parts),
        ids=tuple(d.id(index) for d, part in pairs for index in part.tolist()),
        batch_size=batch_size,
        parameters=json.loads(json.dumps(parameters, default=lambda number: number.item())),  # NumPy's
    )


def reorder(stream: Stream, order: Indices) -> Stream:
    """Put the entries of a stream in another order, (N,)."""
    return replace(
        stream,
        domain=stream.domain[order],
        index=stream.index[order],
        ids=tuple(stream.ids[entry] for entry in order),
        camera=None if stream.camera is None else stream.camera[order],
    )


def _entries(stream: Stream, name: str, values: Indices, limit: int | None) -> None:
    """Check one array of a stream and make it read-only."""
    if values.shape != (len(stream.ids),) or values.dtype != np.int64:
        raise DataError(
            f"{name!r} of a stream of {len(stream.ids)} ids must be int64 of shape ({len(stream.ids)},), "
            f"got {values.dtype} of shape {values.shape}"
        )
    if values.size and (values.min() < 0 or (limit is not None and values.max() >= limit)):
        raise DataError(f"{name!r} of a stream holds {values.min()} to {values.max()}, allowed is 0 to {limit}")
    values.flags.writeable = False
