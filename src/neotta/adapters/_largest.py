"""The largest entries of a long tensor, stored compactly and restored.

This touches every number that a linear layer sees. Long tensors on a CPU are processed by numpy, in parts that fit
into the cache, which is several times as fast as torch's operations. Threads would make it slower: the calls are
short, and each takes the interpreter's lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

MANY = 2**18
"""Length from which numpy is used. Below, torch decides which of several equal numbers are kept."""
PART = 2**18
"""Number of entries processed at a time."""
SAMPLE = 2**14
"""Number of entries from which the threshold is estimated."""

Array = NDArray[Any]


def take(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Take out the entries of largest magnitude.

    Args:
        values: (n,).
        count: How many, from 1 to n.

    Returns:
        The largest in their order, (count,) or fewer: those of them that are zero may be left out. And one bit for
        each of the n that says whether it is among them, (ceil(n / 8),) bytes.
    """
    if not values.is_cpu or len(values) < MANY:
        where = values.abs().topk(count, sorted=False).indices.sort().values
        return values.index_select(0, where), _pack(
            torch.zeros_like(values, dtype=torch.bool).index_fill_(0, where, True)
        )
    array = _array(values)
    chosen = largest(array, count)
    kept, place = np.empty(np.count_nonzero(chosen), array.dtype), 0
    for part in _parts(len(array)):
        own = np.flatnonzero(chosen[part])
        room = kept[place : place + len(own)]
        np.take(array[part], own, out=room, mode="clip")  # anything else than clip copies
        place += len(own)
    return torch.from_numpy(kept).to(values.dtype), torch.from_numpy(np.packbits(chosen))


def put_back(kept: Tensor, bits: Tensor, count: int, size: int) -> Iterator[Tensor]:
    """What `take` took out, in its place among zeros: (count,) in all.

    On a CPU that comes in pieces of (size,), the last of which may be shorter, and each is valid until the next is
    asked for: memory that was just in use costs less than memory that the system has to find.

    Args:
        kept: From `take`.
        bits: From `take`.
        count: How many numbers there were.
        size: A multiple of 8.
    """
    if not kept.is_cpu:
        where = _unpack(bits, count).nonzero().flatten()
        yield kept.new_zeros(count).index_copy_(0, where, kept)
        return
    array, packed, place = _array(kept), bits.numpy(), 0
    room = np.empty(min(size, count), array.dtype)
    for first in range(0, count, size):
        values = room[: count - first]
        chosen = np.unpackbits(packed[first // 8 : (first + size) // 8], count=len(values))
        own = np.flatnonzero(chosen.view(np.bool_))
        values.fill(0)
        values[own] = array[place : place + len(own)]
        place += len(own)
        yield torch.from_numpy(values).to(kept.dtype)


def largest(values: Array, count: int) -> NDArray[np.bool_]:
    """Which entries have the largest magnitude, (n,); `count` of them, but zeros may be left out."""
    low, high = _guess(values, count)
    chosen = np.empty(len(values), np.bool_)
    missing, places, magnitudes = count, [], []
    for part in _parts(len(values)):  # choose what is surely among the largest, and note what may be
        sizes = np.abs(values[part])
        sure = np.greater(sizes, high, out=chosen[part])
        unsure = np.flatnonzero((sizes >= low) ^ sure)
        missing -= int(np.count_nonzero(sure))
        places.append(unsure + part.start)
        magnitudes.append(sizes[unsure])
    where, sizes = np.concatenate(places), np.concatenate(magnitudes)
    if not 0 <= missing <= len(where):  # the guess was wrong
        chosen[:], missing, where, sizes = False, count, np.arange(len(values)), np.abs(values)
    if missing:
        least = np.partition(sizes, len(sizes) - missing)[len(sizes) - missing]
        chosen[where[sizes > least]] = True
        if least > 0:  # several may be the least: the first of them
            chosen[where[sizes == least][: missing - int(np.count_nonzero(sizes > least))]] = True
    return chosen


def _guess(values: Array, count: int) -> tuple[float, float]:
    """Two magnitudes between which the least of the `count` largest very probably lies."""
    sample = np.sort(np.abs(values[:: max(len(values) // SAMPLE, 1) | 1]))
    place, margin = len(sample) * (1 - count / len(values)), 2 * math.sqrt(len(sample)) + 2
    low, high = int(place - margin), int(place + margin)
    return (float(sample[low]) if low > 0 else 0.0), (float(sample[high]) if high < len(sample) else math.inf)


def _array(values: Tensor) -> Array:
    return (values if values.itemsize >= 4 else values.float()).detach().numpy()


def _parts(count: int) -> list[slice]:
    return [slice(start, min(start + PART, count)) for start in range(0, count, PART)]


def _pack(chosen: Tensor) -> Tensor:
    """Eight booleans to a byte, (n,) to (ceil(n / 8),)."""
    parts = functional.pad(chosen, (0, -len(chosen) % 8)).view(torch.uint8).reshape(-1, 8)
    weights = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=chosen.device)
    return (parts * weights).sum(1, dtype=torch.uint8)


def _unpack(bits: Tensor, count: int) -> Tensor:
    """Back to booleans, (count,)."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(1) >> places & 1).bool().flatten()[:count]
