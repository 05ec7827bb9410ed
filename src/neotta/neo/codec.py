"""The one form in which states are kept: in files, in ONNX cards, in shared stores and on disk. It needs no torch."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from neotta._files import atomic
from neotta.errors import StateError, StateFileError, StateMismatchError
from neotta.neo.reference_file import PREFIX, Reference
from neotta.neo.statefile import Array, content_of, fingerprint, packed, unpacked
from neotta.neo.stream_ids import StreamId, pack, unpack

KIND, VERSION = "states", 1
NAMELESS = "head"  # the head of logits whose model is not known


class Field(NamedTuple):
    """A field of a state."""

    shape: tuple[int, ...] = ()  # shape for one stream
    # What a state that saw both streams holds: `"sum"` the sum of both, `"keep"` the value of the first.
    merge: Literal["sum", "keep"] = "sum"
    start: float = 0.0
    least: float | None = None  # smallest valid value
    most: float | None = None  # largest valid value

    @property
    def size(self) -> int:
        """Number of columns."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class HeadStates:
    """The states of the streams of one head, or only what they are like."""

    owner: dict[str, str]  # a hash of the bias of the head, and of its weight if that is known
    space: Literal["embeddings", "logits"]  # what was learnt from
    size: int  # the length of that
    fields: dict[str, Field]
    ids: list[StreamId] | None  # None if there is one state, of no stream
    table: Array  # (S, width) float64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each field for one stream."""
        return {name: each.shape for name, each in self.fields.items()}

    def arrays(self) -> dict[str, Array]:
        """The states by field, (S, ...) each, and the ids of the streams; without streams, (...)."""
        parts = np.split(self.table, np.cumsum([each.size for each in self.fields.values()])[:-1], 1)
        arrays = {
            name: part.reshape(len(part), *each.shape)
            for (name, each), part in zip(self.fields.items(), parts, strict=True)
        }
        if self.ids is None:
            return {name: np.asarray(array[0]) for name, array in arrays.items()}
        return {**arrays, "ids": pack(self.ids)}

    def filled(self, arrays: Mapping[str, Array], many: bool) -> HeadStates:
        """The same with the states in the entries of a file, checked."""
        shapes = self.shapes
        theirs = {name: tuple(array.shape[many:]) for name, array in arrays.items() if name != "ids"}
        if theirs != shapes or many is not ("ids" in arrays):
            raise StateMismatchError(f"expected the entries {shapes}{' and ids' if many else ''}, got {theirs}")
        ids = unpack(arrays["ids"]) if many else None
        if ids is not None and (len(set(ids)) != len(ids) or {len(arrays[name]) for name in shapes} != {len(ids)}):
            raise StateError("a stream occurs twice, or there are not as many ids as rows")
        for name in shapes:
            if arrays[name].dtype.kind != "f":
                raise StateError(f"the entry {name!r} holds {arrays[name].dtype}, expected real numbers")
        rows = 1 if ids is None else len(ids)
        parts = [arrays[name].reshape(rows, each.size) for name, each in self.fields.items()]
        return replace(self, ids=ids, table=np.concatenate(parts, 1, dtype=np.float64))

    def in_logits(self, weight: Array) -> HeadStates:
        """The states as those of the logits W h without bias, given W, (C, d): sums are multiplied by it."""
        arrays, fields, parts = replace(self, ids=[]).arrays(), dict(self.fields), []
        for name, each in self.fields.items():
            if name == "tallies" or not each.shape:
                parts.append(arrays[name].reshape(len(self.table), each.size))
            else:
                fields[name] = each._replace(shape=(len(weight),))
                parts.append(arrays[name] @ weight.T)
        return replace(self, space="logits", size=len(weight), fields=fields, table=np.concatenate(parts, 1))


@dataclass(frozen=True)
class StateFile:
    """States of all heads of a model, with what they belong to: what `neotta.save` writes and `neotta.merge` returns.

    Attributes:
        method: The variant of NEO.
        options: Its options.
        heads: The states by head.
        moving: The moving statistics of BatchNorm layers (neo-bn).
        reference: Where clean data lies, if the model has a reference.
    """

    method: str
    options: dict[str, Any]
    heads: dict[str, HeadStates]
    moving: dict[str, Array] = field(default_factory=dict)
    reference: Reference | None = None

    @property
    def many(self) -> bool:
        """Whether there is one state per stream."""
        return any(head.ids is not None for head in self.heads.values())

    def about(self) -> dict[str, Any]:
        """What the states belong to, for JSON: states with the same can be merged."""
        heads = {
            name: {
                "owner": head.owner,
                "space": head.space,
                "size": head.size,
                "fields": {name: list(each) for name, each in head.fields.items()},
            }
            for name, head in self.heads.items()
        }
        known = None if self.reference is None else {"digest": self.reference.digest, **self.reference.about()}
        about = {"method": self.method, "options": self.options, "streams": self.many, "heads": heads}
        return {"kind": KIND, "version": VERSION, **about, "reference": known}

    def to_bytes(self) -> bytes:
        """The content of a file."""
        arrays = {f"{name}.{key}": each for name, head in self.heads.items() for key, each in head.arrays().items()}
        if self.reference is not None:
            arrays |= {f"{PREFIX}{name}": array for name, array in self.reference.arrays().items()}
        return packed({**arrays, **self.moving}, self.about())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, atomically."""
        with atomic(path) as temporary:
            temporary.write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> StateFile:
        """Read a file.

        Raises:
            StateFileError: It is missing, damaged, or of another version.
            StateMismatchError: It holds something else.
            StateError: It contains invalid values, such as NaN or a negative count.
        """
        return cls.from_bytes(content_of(path), repr(os.fspath(path)))

    @classmethod
    def from_bytes(cls, content: bytes, source: str) -> StateFile:
        """Same as `load`, from the content of a file; `source` is what messages call it."""
        arrays, about = unpacked(content, source)
        _check_kind(about, source)
        try:
            many, heads = about["streams"], {}
            for name, part in sorted(about["heads"].items(), key=lambda item: -len(item[0])):  # "a.b" before "a"
                fields = {key: Field(tuple(shape), *rest) for key, (shape, *rest) in part["fields"].items()}
                empty = HeadStates(part["owner"], part["space"], part["size"], fields, None, np.empty((0, 0)))
                heads[name] = empty.filled(_taken(arrays, f"{name}."), many)
            if not heads:
                raise ValueError("it names no head")
            known = about["reference"]
            reference = None if known is None else Reference.of(_taken(arrays, PREFIX), known)
            return cls(about["method"], dict(about["options"]), heads, arrays, reference)
        except StateMismatchError as error:
            raise StateMismatchError(f"{source} is incomplete: {error}") from error
        except StateError as error:
            raise StateError(f"{source} cannot be used: {error}") from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateMismatchError(f"{source} does not say what it belongs to: {error}") from error

    def fitted(
        self,
        mine: StateFile,
        source: str,
        *,
        strict: bool = True,
        stream: StreamId | None = None,
        weight: Array | None = None,
    ) -> dict[str, HeadStates]:
        """The states for the heads of a reader.

        Args:
            mine: What the reader's own states belong to.
            source: What messages call this file.
            strict: Reject the states of other weights.
            stream: The stream of the reader that takes the one state.
            weight: The weight of the reader's head, (C, d), if it re-centers logits and knows it.

        Raises:
            StateMismatchError: The states belong to another model, method, reference or kind of reader.
        """
        if (self.method, self.options) != (mine.method, mine.options):
            raise StateMismatchError(
                f"{source} is of {_said(self.method, self.options)}, expected {_said(mine.method, mine.options)}"
            )
        if self.reference != mine.reference:
            raise StateMismatchError(f"{source} was saved with another reference, or one of the two has none")
        if self.many and (stream is not None or not mine.many):
            raise StateMismatchError(
                f"{source} holds many streams, expected one state: save one of them with stream=..."
            )
        if mine.many and not self.many and stream is None:
            raise StateMismatchError(f"{source} holds one state, expected one for each stream: name one, stream=...")
        heads = self.heads
        if len(heads) == len(mine.heads) == 1:
            heads = dict(zip(mine.heads, heads.values(), strict=True))
        if heads.keys() != mine.heads.keys():
            raise StateMismatchError(f"{source} has the heads {', '.join(heads)}, expected {', '.join(mine.heads)}")
        return {name: self._fitted(heads[name], own, source, strict, weight) for name, own in mine.heads.items()}

    def _fitted(self, head: HeadStates, own: HeadStates, source: str, strict: bool, weight: Array | None) -> HeadStates:
        if (head.space, own.space) == ("logits", "embeddings"):
            raise StateMismatchError(
                f"{source} holds a mean of logits, and one of embeddings is needed, which does not follow from it: "
                "save it where the model is adapted at its head"
            )
        if (head.space, own.space) == ("embeddings", "logits"):
            if weight is None:
                raise StateMismatchError(
                    f"{source} holds a mean of embeddings, and one of logits is needed: give the weight of the head"
                )
            if weight.shape != (own.size, head.size):
                raise StateMismatchError(
                    f"{source} belongs to another model: {head.size} features, expected {weight.shape[1]}"
                )
            head = head.in_logits(weight)
        if head.shapes != own.shapes:
            raise StateMismatchError(
                f"{source} belongs to another model: vectors of {head.size} {head.space}, expected {own.size}"
            )
        if strict and any(own.owner[part] != hashed for part, hashed in head.owner.items() if part in own.owner):
            raise StateMismatchError(
                f"{source} was saved with other head weights: it is of another model (or load it with strict=False)"
            )
        try:
            check_values(own.fields, head.table)
        except StateError as error:
            raise StateError(f"{source} cannot be used: {error}") from error
        return replace(head, fields=own.fields)


def check_values(fields: Mapping[str, Field], table: Array) -> None:
    """Check that states, (S, width), hold what their fields may hold."""
    start = 0
    for name, each in fields.items():
        values = table[:, start : start + each.size]
        start += each.size
        valid = np.isfinite(values)
        valid &= True if each.least is None else values >= each.least
        valid &= True if each.most is None else values <= each.most
        if not valid.all():
            raise StateError(f"the entry {name!r} holds NaN, Inf or numbers out of range")


def owner_of(weight: Array | None, bias: Array | None, classes: int, other: str | None = None) -> dict[str, str]:
    """A hash of the bias of a head and of its weight, in any precision; if the weight is not known, `other`."""
    parts = {"bias": np.zeros(classes) if bias is None else bias, **({} if weight is None else {"weight": weight})}
    hashes = {name: fingerprint({name: np.ascontiguousarray(values, np.float32)}) for name, values in parts.items()}
    return hashes if other is None else {"weight": other, **hashes}


def sealed(key: str, row: Array) -> bytes:
    """One state, (width,), with a checksum of it and of what it is kept under."""
    content = np.ascontiguousarray(row, np.float64).tobytes()
    return content + zlib.crc32(content, zlib.crc32(key.encode())).to_bytes(4, "little")


def unsealed(key: str, content: bytes, width: int) -> Array | None:
    """The state, (width,), in the result of `sealed`; None if that is damaged."""
    row = np.frombuffer(content[:-4], np.float64) if len(content) == 8 * width + 4 else None
    return row if row is not None and sealed(key, row) == content else None


def _taken(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """Take the entries out whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): arrays.pop(name) for name in [*arrays] if name.startswith(prefix)}


def _check_kind(about: Mapping[str, Any], source: str) -> None:
    kind = about.get("kind")
    if kind in ("model", "logits", "stream"):
        raise StateFileError(f"{source} was written by neotta 0.3, whose states are not read any more: adapt again")
    if kind == "reference":
        raise StateMismatchError(f"{source} contains a reference, not a state: use neotta.adapt(model, reference=path)")
    if kind != KIND:
        raise StateMismatchError(f"{source} holds the state of an adapter ({about.get('method')}): use adapter.load")
    if about.get("version") != VERSION:
        raise StateFileError(
            f"{source} was written by another version of neotta (states of version {about.get('version')}, this one "
            f"reads {VERSION}): update neotta"
        )


def _said(method: str, options: Mapping[str, Any]) -> str:
    return f"{method} ({', '.join(f'{name}={value!r}' for name, value in options.items())})"
