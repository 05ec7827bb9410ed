"""A library of known domains: named states on disk, in the format of `neotta.save`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neotta.errors import InputError, OptionError, StateError, StateFileError, StateMismatchError, UnknownNameError
from neotta.neo.files import check_about, reference_in, save, states_in
from neotta.neo.mean import MeanRule, MovingMeanRule
from neotta.neo.state import Rule
from neotta.neo.statefile import read_state
from neotta.neo.stream import Moments, StreamRule
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import check_stream, head

SUFFIX = ".safetensors"


@dataclass(frozen=True, eq=False)
class Domain:
    """A known domain.

    Attributes:
        name: Name of the domain.
        offset: Mean of its embeddings, (d,) float64; for NEO-Stream, the shift of its logits, (C,).
        count: Number of samples seen.
        variance: Total variance of its embeddings or logits; NaN if it was not tracked.
        fingerprint: Hash of the weights of the head.
        space: Whether the offset is one of embeddings or of logits.
        state: The state that it was read from, (1, width).
    """

    name: str
    offset: Tensor
    count: int
    variance: float
    fingerprint: str
    space: Literal["embeddings", "logits"] = "embeddings"
    state: Tensor | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Proximity:
    """Distance of an offset from that of a domain.

    Attributes:
        domain: Name of the domain, `"origin"` for zero.
        distance: |c - c'|.
        cosine: Cosine of the angle between them; NaN for the origin.
        noise: Typical distance between two means of the same domain: the square root of s²/n + s'²/n'. NaN if no
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

    def add(self, name: str, source: Any, *, stream: StreamId | None = None) -> Domain:
        """Save what a model has learnt as a domain, replacing an existing one.

        Args:
            name: Name of the domain, and of the file.
            source: An adapted model, a NEO adapter, or a monitor (the samples since the last change).
            stream: The stream, for a model with streams.
        """
        path = self._path(name)
        if stream is not None and not isinstance(source, nn.Module):
            raise OptionError(f"stream needs a model with streams: a {type(source).__name__} has one state")
        if not isinstance(source, nn.Module) and hasattr(source, "save"):
            source.save(path)
        else:
            head(source)  # a domain has one state
            check_stream(source, stream)
            save(source, path, stream=stream)
        return self[name]

    def remove(self, name: str) -> None:
        """Delete a domain."""
        self._existing(name).unlink()

    def __getitem__(self, name: str) -> Domain:
        """Read a domain.

        Raises:
            UnknownNameError: The domain does not exist.
            StateError: Its file is damaged or not a domain.
        """
        domain = self._load(self._existing(name))
        if isinstance(domain, StateError):
            raise domain
        return domain

    def __iter__(self) -> Iterator[Domain]:
        """Iterate over the readable domains by name; other files are skipped with a warning."""
        for name in self._stems():
            domain = self._load(self._path(name))
            if isinstance(domain, StateError):
                warnings.warn(f"skipped in the library: {domain}", RuntimeWarning, stacklevel=2)
            else:
                yield domain

    def names(self) -> list[str]:
        """Names of the readable domains."""
        return [domain.name for domain in self]

    def __len__(self) -> int:
        """Number of readable domains."""
        return len(self.names())

    def __contains__(self, name: str) -> bool:
        """Whether a file of this name exists."""
        return name in self._stems()

    def nearest(self, offset: Tensor, *, fingerprint: str | None = None) -> Proximity | None:
        """Return the nearest domain, or None if the library is empty.

        Args:
            offset: The offset to compare with, (d,) or (C,).
            fingerprint: Only consider domains of the head with this fingerprint.
        """
        ranked = rank(offset, (domain for domain in self if fingerprint in (None, domain.fingerprint)))
        return ranked[0] if ranked else None

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

    def _existing(self, name: str) -> Path:
        path = self._path(name)
        if not path.is_file():
            raise UnknownNameError("domain", name, self._stems())
        return path

    def _load(self, path: Path) -> Domain | StateError:
        try:
            about = path.stat()
            stamp = (about.st_mtime_ns, about.st_size)
            known = self._read.get(path)
            if known is not None and known[0] == stamp:
                return known[1]
            result: Domain | StateError = _domain(path)
        except StateError as error:
            result = error
        except OSError as error:  # it was just deleted, or is not readable
            return StateFileError(f"cannot read {os.fspath(path)!r}: {error.strerror}")
        self._read[path] = (stamp, result)
        return result


def rank(offset: Tensor, domains: Iterable[Domain], count: int = 0, variance: float = math.nan) -> list[Proximity]:
    """Distance of an offset, (d,) or (C,), from that of each domain, nearest first.

    It was learnt from `count` samples (0 if unknown) of this total variance, also used for domains without one.
    """
    mine = torch.as_tensor(offset).detach().cpu().double()
    proximities = []
    for domain in domains:
        if domain.offset.shape != mine.shape:
            raise InputError(
                f"domain {domain.name!r} has {len(domain.offset)} numbers, expected {tuple(mine.shape)}: it belongs to "
                "another model"
            )
        own = variance if math.isnan(domain.variance) else domain.variance
        noise = math.sqrt(variance / count + own / max(domain.count, 1)) if count else math.nan
        cosine = float(torch.dot(mine, domain.offset) / (mine.norm() * domain.offset.norm()))
        proximities.append(Proximity(domain.name, float((mine - domain.offset).norm()), cosine, noise))
    return sorted(proximities, key=lambda near: near.distance)


def mean_of(rule: Rule, state: Tensor) -> Tensor:
    """What is subtracted after a state, (1, width), before shrinkage: a mean, (d,), or a shift, (C,)."""
    rule = MeanRule(weighting=rule.weighting) if isinstance(rule, MeanRule) else rule
    return rule.offset(state)[0].cpu().double().clone()


def variance_of(rule: Rule, state: Tensor) -> float:
    """Total variance of the samples of a state, (1, width); NaN for fewer than two, or if it was not tracked."""
    if isinstance(rule, StreamRule):
        moments = Moments.of(rule.state(state).ever[0])
        weight, total, square = float(moments.weight), moments.sum1, float(moments.sum2.sum())
    else:
        fields = MeanRule().state(state)
        weight, total, square = float(fields.weight), fields.total[0], float(fields.square)
    if state[0, 0] < 2 or weight <= 1 or square == 0:
        return math.nan
    return max(square - float(total @ total) / weight, 0.0) / (weight - 1)


def _domain(path: Path) -> Domain:
    tensors, about = read_state(path)
    if about.get("kind") not in ("model", "adapter"):
        raise StateMismatchError(f"{os.fspath(path)!r} contains {about.get('kind')!r}, not a domain")
    if about["kind"] == "adapter":
        heads = {"": str(about.get("head"))}
    else:
        check_about(about, repr(os.fspath(path)))
        heads = {f"{name}.": key for name, key in about["heads"].items()}
    if len(heads) != 1 or about.get("streams"):
        raise StateMismatchError(
            f"{os.fspath(path)!r} has {len(heads)} heads, or many streams, but a domain has one state: save one of "
            "them with neotta.save(model, path, stream=...)"
        )
    (prefix, fingerprint), *_ = heads.items()
    options = about.get("options", {})
    moving = "alpha" in options  # its value changes nothing here; the options of an adapter are text
    mean = MovingMeanRule(debias=str(options.get("debias")) == "True") if moving else MeanRule()
    rule = StreamRule() if about.get("method") == "neo-stream" else mean
    largest = tensors.get(f"{prefix}{'shift' if rule.space == 'logits' else 'total'}", torch.empty(()))
    if largest.dim() != 1:
        raise StateMismatchError(f"{os.fspath(path)!r} contains nothing that a model subtracts")
    layout = rule.layout(len(largest))
    part = {name: tensors[f"{prefix}{name}"] for name in layout.fields if f"{prefix}{name}" in tensors}
    try:
        state = states_in(layout, rule, part, many=False)[1]
    except StateError as error:
        raise StateMismatchError(f"{os.fspath(path)!r} cannot be used: {error}") from error
    offset = mean_of(rule, state)
    known = reference_in(tensors, about, repr(os.fspath(path)))
    if known is not None and rule.space == "embeddings":
        offset = offset + torch.as_tensor(known.heads[prefix[:-1]].embedding).double()
    return Domain(path.stem, offset, int(state[0, 0]), variance_of(rule, state), fingerprint, rule.space, state)
