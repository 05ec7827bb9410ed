"""A library of known domains: named centroids on disk, in the format of `neotta.save`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateError, StateFileError, StateMismatchError, UnknownNameError
from neotta.neo.centroid import Centroid
from neotta.neo.state import save
from neotta.neo.statefile import read_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import head, need_stream

SUFFIX = ".safetensors"


@runtime_checkable
class Savable(Protocol):
    """What can write its centroid as a state file: a NEO adapter, or a monitor."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state."""


@dataclass(frozen=True, eq=False)
class Domain:
    """A known domain.

    Attributes:
        name: Its name.
        centroid: The mean of its embeddings, (d,) float64.
        count: How many samples stand behind it.
        variance: The total variance of its embeddings; None where it was not tracked.
        fingerprint: A hash of the weights of the head it belongs to.
    """

    name: str
    centroid: Tensor
    count: int
    variance: float | None
    fingerprint: str


@dataclass(frozen=True)
class Proximity:
    """How near a centroid is to another.

    Attributes:
        domain: The name of the other, `"origin"` for zero.
        distance: |c - c'|.
        cosine: Of the angle between them; NaN with the origin.
        noise: How large the distance would be, typically, if both were samples of the same domain: the square root of
            s²/n + s'²/n'. NaN where no variance is known.
    """

    domain: str
    distance: float
    cosine: float
    noise: float

    @property
    def ratio(self) -> float:
        """The distance in units of the noise: about 1 within a domain."""
        return self.distance / self.noise if self.noise > 0 else math.nan if math.isnan(self.noise) else math.inf


class DomainLibrary:
    """Named domains in a folder, one state file each.

    Every file that `neotta.save` (or `save` of a NEO adapter) wrote into the folder is an entry, and every entry can be
    given to a model with `neotta.load`. Files may come and go while the library is in use.

    Args:
        folder: Where the files are; it need not exist before the first `add`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError(f"a library is a folder, and {os.fspath(folder)!r} is a file")
        self._read: dict[Path, tuple[tuple[int, int], Domain | StateError]] = {}

    def add(self, name: str, source: nn.Module | Savable, *, stream: StreamId | None = None) -> Domain:
        """Save what a model has learnt as a domain of this name; an older one is replaced.

        Args:
            name: The name of the domain, which becomes the name of the file.
            source: An adapted model, a NEO adapter, or a monitor: its centroid since the last change.
            stream: Which stream of the model, if it keeps one centroid for each.
        """
        path = self._path(name)
        if stream is not None and not isinstance(source, nn.Module):
            raise OptionError(f"stream is for a model with many: a {type(source).__name__} has one centroid")
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
            UnknownNameError: There is none of this name.
            StateError: Its file is damaged, or holds something else.
        """
        path = self._path(name)
        if not path.is_file():
            raise UnknownNameError("domain", name, self._stems())
        found = self._load(path)
        if isinstance(found, StateError):
            raise found
        return found

    def __iter__(self) -> Iterator[Domain]:
        """All domains that can be read, by name; the other files are warned of and left out."""
        for name in self._stems():
            found = self._load(self._path(name))
            if isinstance(found, StateError):
                warnings.warn(f"left out of the library: {found}", RuntimeWarning, stacklevel=2)
            else:
                yield found

    def names(self) -> list[str]:
        """The names of all domains that can be read."""
        return [domain.name for domain in self]

    def __len__(self) -> int:
        """Count the domains that can be read."""
        return len(self.names())

    def __contains__(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return name in self._stems()

    def nearest(self, centroid: Tensor, *, fingerprint: str | None = None) -> Proximity | None:
        """The domain whose centroid is nearest to this one, (d,), or None where there is none.

        Args:
            centroid: Compared by distance.
            fingerprint: Only domains of the head with this fingerprint count.
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
            raise OptionError(f"{name!r} cannot be the name of a domain: it becomes the name of a file")
        return self.folder / f"{name}{SUFFIX}"

    def _load(self, path: Path) -> Domain | StateError:
        """Read a file, or remember what is wrong with it, unless it is known and has not changed."""
        try:
            about = path.stat()
            stamp = (about.st_mtime_ns, about.st_size)
            known = self._read.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            found: Domain | StateError = _domain(path)
        except StateError as error:
            found = error
        except OSError as error:  # it was deleted in this moment, or may not be read
            return StateFileError(f"cannot read {os.fspath(path)!r}: {error.strerror}")
        self._read[path] = (stamp, found)
        return found


def rank(centroid: Tensor, domains: Iterable[Domain], count: int = 0, variance: float = math.nan) -> list[Proximity]:
    """How near a centroid, (d,), is to each domain, the nearest first.

    Args:
        centroid: The mean of `count` embeddings of this total `variance`.
        domains: Those to compare it with.
        count: See above; 0 where it is not known.
        variance: See above; also stands in for a domain whose own is not known.
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
        raise StateMismatchError(f"{os.fspath(path)!r} holds {about.get('kind')!r}, and no centroid")
    heads = (
        {f"{name}.": key for name, key in about["heads"].items()} if about["kind"] == "model" else {"": about["head"]}
    )
    if len(heads) != 1:
        raise StateMismatchError(f"{os.fspath(path)!r} has {len(heads)} heads: a domain has one centroid")
    (prefix, fingerprint), *_ = heads.items()
    try:
        state = {part: tensors[f"{prefix}{part}"] for part in ("mean", "count", "batches", "rejected", "scatter")}
    except KeyError as error:
        raise StateMismatchError(f"{os.fspath(path)!r} holds no centroid: {error} is missing") from error
    if about.get("streams"):
        raise StateMismatchError(
            f"{os.fspath(path)!r} holds many streams, and a domain has one centroid: save one of them, "
            "neotta.save(model, path, stream=...)"
        )
    if state["mean"].dim() != 1 or not bool(torch.isfinite(state["mean"]).all()):
        raise StateMismatchError(f"the centroid of {os.fspath(path)!r} is not a vector of finite numbers")
    count, scatter = int(state["count"]), float(state["scatter"])
    variance = scatter / (count - 1) if count > 1 and scatter > 0 else None
    return Domain(path.stem, _centroid(state, about.get("options", {})), count, variance, fingerprint)


def _centroid(state: dict[str, Tensor], options: Mapping[str, Any]) -> Tensor:
    """What a model with this state subtracts, before any shrinkage, (d,) float64."""
    debias = str(options.get("debias")) == "True"  # an adapter's options are saved as text
    centroid = Centroid(len(state["mean"]), alpha=float(options["alpha"]) if debias else None, debias=debias)
    centroid.load_state(state)
    return centroid.value()
