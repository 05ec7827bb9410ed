"""A library of known domains: named centroids on disk, in the format of `neotta.save`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateError, StateFileError, StateMismatchError, UnknownNameError
from neotta.neo.centroid import Centroid
from neotta.neo.shift_memory import ShiftMemory
from neotta.neo.state import save
from neotta.neo.statefile import read_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_moments import StreamMoments
from neotta.neo.stream_rule import StreamRule
from neotta.neo.surgery import head, need_stream

SUFFIX = ".safetensors"


@runtime_checkable
class Savable(Protocol):
    """Anything that can save its centroid to a state file: a NEO adapter, or a monitor."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state."""


@dataclass(frozen=True, eq=False)
class Domain:
    """A known domain.

    Attributes:
        name: Name of the domain.
        centroid: Mean of its embeddings, (d,) float64; for NEO-Stream, the shift of its logits, (C,).
        count: Number of samples seen.
        variance: Total variance of its embeddings; None if it was not tracked.
        fingerprint: Hash of the weights of the head.
        space: Whether the centroid is of embeddings or of logits.
        state: The moments of NEO-Stream by name; None for a mean of embeddings.
    """

    name: str
    centroid: Tensor
    count: int
    variance: float | None
    fingerprint: str
    space: Literal["embeddings", "logits"] = "embeddings"
    state: Mapping[str, Tensor] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Proximity:
    """Distance of a centroid from a domain.

    Attributes:
        domain: Name of the domain, `"origin"` for zero.
        distance: |c - c'|.
        cosine: Cosine of the angle between them; NaN for the origin.
        noise: Typical distance between two centroids of the same domain: the square root of s²/n + s'²/n'. NaN if no
            variance is known.
    """

    domain: str
    distance: float
    cosine: float
    noise: float

    @property
    def ratio(self) -> float:
        """Distance in units of the noise: about 1 within a domain."""
        return self.distance / self.noise if self.noise > 0 else math.nan if math.isnan(self.noise) else math.inf


class DomainLibrary:
    """Named domains in a folder, one state file each.

    Every file that `neotta.save` (or `save` of a NEO adapter) wrote into the folder is an entry, and `neotta.load` can
    load every entry. Files may be added and removed at any time.

    Args:
        folder: The folder; created by the first `add`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError(f"expected a folder for the library: {os.fspath(folder)!r} is a file")
        self._read: dict[Path, tuple[tuple[int, int], Domain | StateError]] = {}

    def add(self, name: str, source: nn.Module | Savable, *, stream: StreamId | None = None) -> Domain:
        """Save the centroid of a model as a domain, replacing an existing one.

        Args:
            name: Name of the domain, and of the file.
            source: An adapted model, a NEO adapter, or a monitor (its centroid since the last change).
            stream: The stream, for a model with streams.
        """
        path = self._path(name)
        if stream is not None and not isinstance(source, nn.Module):
            raise OptionError(f"stream needs a model with streams: a {type(source).__name__} has one centroid")
        if isinstance(source, Savable):
            source.save(path)
        else:
            head(source)  # a domain has one centroid
            need_stream(source, stream, "library.add(name, model, stream='gate')")
            save(source, path, stream=stream)
        return self[name]

    def remove(self, name: str) -> None:
        """Delete a domain."""
        path = self._path(name)
        if not path.is_file():
            raise UnknownNameError("domain", name, self._stems())
        path.unlink()

    def __getitem__(self, name: str) -> Domain:
        """Read a domain.

        Raises:
            UnknownNameError: The domain does not exist.
            StateError: Its file is damaged or not a domain.
        """
        path = self._path(name)
        if not path.is_file():
            raise UnknownNameError("domain", name, self._stems())
        found = self._load(path)
        if isinstance(found, StateError):
            raise found
        return found

    def __iter__(self) -> Iterator[Domain]:
        """Iterate over the readable domains by name; other files are skipped with a warning."""
        for name in self._stems():
            found = self._load(self._path(name))
            if isinstance(found, StateError):
                warnings.warn(f"skipped in the library: {found}", RuntimeWarning, stacklevel=2)
            else:
                yield found

    def names(self) -> list[str]:
        """Names of the readable domains."""
        return [domain.name for domain in self]

    def __len__(self) -> int:
        """Number of readable domains."""
        return len(self.names())

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name exists."""
        return name in self._stems()

    def nearest(self, centroid: Tensor, *, fingerprint: str | None = None) -> Proximity | None:
        """Return the nearest domain, or None if the library is empty.

        Args:
            centroid: The centroid to compare with, (d,).
            fingerprint: Only consider domains of the head with this fingerprint.
        """
        found = rank(centroid, (domain for domain in self if fingerprint in (None, domain.fingerprint)))
        return found[0] if found else None

    def __repr__(self) -> str:
        return f"<DomainLibrary {os.fspath(self.folder)!r}>"

    # ---- files

    def _stems(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def _path(self, name: str) -> Path:
        usable = isinstance(name, str) and name and not name.startswith(".") and not {"\\", "\0"} & set(name)
        if not usable or name != Path(name).name:
            raise OptionError(f"{name!r} cannot be the name of a domain: it must be a valid file name")
        return self.folder / f"{name}{SUFFIX}"

    def _load(self, path: Path) -> Domain | StateError:
        """Read a file, or return the error; cached until the file changes."""
        try:
            about = path.stat()
            stamp = (about.st_mtime_ns, about.st_size)
            known = self._read.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            found: Domain | StateError = _domain(path)
        except StateError as error:
            found = error
        except OSError as error:  # it was just deleted, or is not readable
            return StateFileError(f"cannot read {os.fspath(path)!r}: {error.strerror}")
        self._read[path] = (stamp, found)
        return found


def rank(centroid: Tensor, domains: Iterable[Domain], count: int = 0, variance: float = math.nan) -> list[Proximity]:
    """Distance of a centroid from each domain, nearest first.

    Args:
        centroid: The centroid, (d,).
        domains: The domains to compare it with.
        count: Number of samples of the centroid; 0 if unknown.
        variance: Total variance of its embeddings; also used for domains without one.
    """
    mine = torch.as_tensor(centroid).detach().double().cpu()
    found = []
    for domain in domains:
        if domain.centroid.shape != mine.shape:
            raise InputError(
                f"domain {domain.name!r} has {len(domain.centroid)} features, this centroid {tuple(mine.shape)}: "
                "it belongs to another model"
            )
        own = variance if domain.variance is None else domain.variance
        noise = math.sqrt(variance / count + own / max(domain.count, 1)) if count else math.nan
        cosine = float(torch.dot(mine, domain.centroid) / (mine.norm() * domain.centroid.norm()))
        found.append(Proximity(domain.name, float((mine - domain.centroid).norm()), cosine, noise))
    return sorted(found, key=lambda near: near.distance)


def _domain(path: Path) -> Domain:
    tensors, about = read_state(path)
    if about.get("kind") not in ("model", "adapter"):
        raise StateMismatchError(f"{os.fspath(path)!r} contains {about.get('kind')!r}, not a centroid")
    heads = (
        {f"{name}.": key for name, key in about["heads"].items()} if about["kind"] == "model" else {"": about["head"]}
    )
    if len(heads) != 1:
        raise StateMismatchError(f"{os.fspath(path)!r} has {len(heads)} heads: a domain has one centroid")
    (prefix, fingerprint), *_ = heads.items()
    if about.get("method") == "neo-stream" and not about.get("streams"):
        state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        return _shifted(path, state, fingerprint)
    try:
        state = {part: tensors[f"{prefix}{part}"] for part in ("mean", "count", "batches", "rejected", "scatter")}
        state |= {part: tensors[f"{prefix}{part}"] for part in ("discount",) if f"{prefix}{part}" in tensors}
    except KeyError as error:
        raise StateMismatchError(f"{os.fspath(path)!r} contains no centroid: {error} is missing") from error
    if about.get("streams"):
        raise StateMismatchError(
            f"{os.fspath(path)!r} contains many streams, but a domain has one centroid: save one of "
            "them with neotta.save(model, path, stream=...)"
        )
    if state["mean"].dim() != 1 or not bool(torch.isfinite(state["mean"]).all()):
        raise StateMismatchError(f"the centroid of {os.fspath(path)!r} is not a vector of finite numbers")
    count, scatter = int(state["count"]), float(state["scatter"])
    variance = scatter / (count - 1) if count > 1 and scatter > 0 else None
    return Domain(path.stem, _centroid(state, about.get("options", {})), count, variance, fingerprint)


def _shifted(path: Path, state: dict[str, Tensor], fingerprint: str) -> Domain:
    """A domain of NEO-Stream."""
    shift, kept = (
        state.get("shift", torch.empty(0)),
        {name: state[name] for name in StreamMoments._fields if name in state},
    )
    if shift.dim() != 1 or len(shift) == 0:
        raise StateMismatchError(f"{os.fspath(path)!r} contains no shift of logits")
    memory = ShiftMemory(len(shift), StreamRule())
    memory.load_state(kept)
    count, weight = memory.total(), float(memory.moments().weight[0])
    variance = float(memory.moments().second[0].sum()) / weight if count > 1 and weight > 0 else None
    return Domain(path.stem, memory.value(), count, variance, fingerprint, "logits", memory.state())


def _centroid(state: dict[str, Tensor], options: Mapping[str, Any]) -> Tensor:
    """The vector that a model with this state subtracts, before shrinkage, (d,) float64."""
    debias = str(options.get("debias")) == "True"  # an adapter's options are saved as text
    centroid = Centroid(len(state["mean"]), alpha=float(options["alpha"]) if debias else None, debias=debias)
    centroid.load_state(state)
    return centroid.value()
