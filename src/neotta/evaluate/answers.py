"""Which samples a run answered rightly: a bit each, with what is needed to know the images behind them.

Positions of samples are not stored if they can be drawn again from the seed; all else is compressed. A run of 512
samples takes about 250 characters of its record.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import ImageDataset
from neotta.data.blended import scored_as
from neotta.data.drawing import Indices, shuffled, split
from neotta.data.order import Order
from neotta.errors import DataError
from neotta.evaluate.predictions import UNKNOWN, RunResult

Bits = NDArray[np.bool_]
LARGEST = 100_000_000
"""Number of samples that a record can speak of: more of them would only fill the memory."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a run, in the order of its samples.

    Attributes:
        right: Whether each sample was right, (N,).
        known: Whether this is known: false for samples that could not be read or have no label, (N,).
        domains: Names of the domains.
        domain: Position of each sample's domain in `domains`, (N,).
        image: The image behind each sample: the same number for the same image, in other runs and domains too, (N,).
        batch: The batch of each sample, counted from 0, (N,).
    """

    right: Bits
    known: Bits
    domains: tuple[str, ...]
    domain: Indices
    image: Indices
    batch: Indices

    def of_domain(self, name: str) -> Answers | None:
        """Those of one domain whose answer is known, or None; blends of the same two corruptions are one domain."""
        numbers = [number for number, domain in enumerate(self.domains) if name in (domain, scored_as(domain))]
        chosen = self.known & np.isin(self.domain, numbers)
        return self._at(chosen) if chosen.any() else None

    def _at(self, chosen: Bits) -> Answers:
        right, known = self.right[chosen], self.known[chosen]
        return Answers(right, known, self.domains, self.domain[chosen], self.image[chosen], self.batch[chosen])

    @cached_property
    def images(self) -> set[int]:
        """The different images."""
        return set(self.image.tolist())


def pack(result: RunResult, order: Order, adapted: int, dataset: Callable[[str], ImageDataset]) -> dict[str, Any]:
    """What a record keeps of the answers of a run; nothing if no sample has a label.

    Args:
        result: What was predicted.
        order: The order that was scored.
        adapted: Number of samples that were adapted to before, if others were scored.
        dataset: Opens a domain.
    """
    entries = _entries(result, order)
    known = np.zeros(len(order), dtype=bool)
    right = known.copy()
    known[entries] = (result.stats.labels != UNKNOWN).numpy()
    right[entries] = (result.stats.labels == result.stats.predicted).numpy()
    if not known.any():
        return {}
    datasets = [dataset(name) for name in order.domains]
    hashes = {key: _hash(ids) for key, ids in {id(each.ids): each.ids for each in datasets}.items()}
    pools = [[name, len(each), hashes[id(each.ids)]] for name, each in zip(order.domains, datasets, strict=True)]
    kept: dict[str, Any] = {
        "samples": len(order),
        "right": _text(np.packbits(right & known)),
        "pools": pools,
        "index": _index(order, [len(found) for found in datasets], adapted),
        "straddle": order.straddle,
    }
    if not known.all():
        kept["known"] = _text(np.packbits(known))
    if len(order.domains) > 1:
        kept["domain"] = _text(order.domain)
    return {"answers": kept}


def unpack(record: Mapping[str, Any]) -> Answers | None:
    """The answers of a recorded run; None if the record does not have them, as those of older versions.

    Raises:
        DataError: They are damaged.
    """
    kept = record.get("answers")
    if not kept:
        return None
    try:
        return _unpacked(kept, int(record["seed"]), int(record["batch_size"]))
    except (LookupError, TypeError, ValueError, OverflowError, zlib.error) as error:
        raise DataError(f"the answers in the record {record.get('key')!r} are damaged: {error!r}") from error


def _unpacked(kept: Mapping[str, Any], seed: int, batch_size: int) -> Answers:
    samples = int(kept["samples"])
    right = _bits(kept["right"], samples)
    known = _bits(kept["known"], samples) if "known" in kept else np.ones(samples, dtype=bool)
    names, sizes, pools = zip(*kept["pools"], strict=True)
    if not all(isinstance(name, str) and type(size) is int and 0 <= size <= LARGEST for name, size, _ in kept["pools"]):
        raise ValueError("'pools' has to hold names and sizes of domains")
    domain = _array(kept["domain"]) if "domain" in kept else np.zeros(samples, dtype=np.int64)
    how, _, text = str(kept["index"]).partition(":")
    if how == "positions":
        index = _array(text)
    elif how == "among":
        index = shuffled(sizes[0], seed, names[0])[_bits(text, sizes[0])]
    else:
        index = _drawn(how, domain, names, sizes, seed)
    bases = np.array([int(pool, 16) << 32 for pool in pools], dtype=np.int64)
    order = Order("recorded", seed, names, domain, index, ("",) * samples, batch_size, straddle=bool(kept["straddle"]))
    batch = np.repeat(np.arange(len(order.batches())), [part.stop - part.start for part in order.batches()])
    return Answers(right, known, names, domain, bases[domain] + index, batch)


def _entries(result: RunResult, order: Order) -> Indices:
    """The entry of the order behind each prediction: all of them in turn, but for those that could not be read."""
    if len(result.ids) == len(order):
        return np.arange(len(order))
    found, place = [], 0
    for name, domain in zip(result.ids, result.domains, strict=True):
        while (order.ids[place], order.domains[order.domain[place]]) != (name, domain):
            place += 1
        found.append(place)
        place += 1
    return np.array(found, dtype=np.int64)


def _index(order: Order, sizes: Sequence[int], adapted: int) -> str:
    """The positions of the samples: how to draw them again, or all of them."""
    for how in ("shuffled", f"split {adapted}"):
        if np.array_equal(order.index, _drawn(how, order.domain, order.domains, sizes, order.seed)):
            return how
    if len(sizes) == 1:  # some samples of the drawn order may have been left out
        places = np.argsort(shuffled(sizes[0], order.seed, order.domains[0]))[order.index]
        if (np.diff(places) > 0).all():
            return f"among:{_text(np.packbits(np.isin(np.arange(sizes[0]), places)))}"
    return f"positions:{_text(order.index)}"


def _drawn(how: str, domain: Indices, names: tuple[str, ...], sizes: Sequence[int], seed: int) -> Indices:
    index = np.full(len(domain), -1, dtype=np.int64)
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        here = domain == number
        if how == "shuffled":
            drawn = shuffled(size, seed, name)
        else:
            drawn = split(size, min(size, max(-1, int(how.removeprefix("split ")))), seed)[1]
        if here.sum() > len(drawn):
            return np.full(len(domain), -1, dtype=np.int64)
        index[here] = drawn[: here.sum()]
    return index


def _hash(ids: Sequence[str]) -> str:
    """Domains with the same ids show the same images."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:7]


def _text(values: NDArray[Any]) -> str:
    small = values.astype(np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<"))
    return f"{small.dtype.itemsize}{base64.b64encode(zlib.compress(small.tobytes(), 9)).decode()}"


def _array(text: str) -> Indices:
    unpacking = zlib.decompressobj()
    content = unpacking.decompress(base64.b64decode(text[1:], validate=True), 8 * LARGEST)
    if not unpacking.eof:
        raise ValueError("a list is cut off, or too long")
    return np.frombuffer(content, dtype=f"<u{text[0]}").astype(np.int64)


def _bits(text: str, count: int) -> Bits:
    packed = _array(text)
    if len(packed) != -(-count // 8):
        raise ValueError(f"there are {len(packed)} bytes for {count} samples")
    return np.unpackbits(packed.astype(np.uint8), count=count).astype(bool)
