"""Streams as real cameras see them: few classes, bursts, a dominant class, repeated and frozen frames, bad frames.

Most kinds (`KINDS`) order the samples of one domain by their labels. A sample may come more than once, as a scene does
in front of a camera. `STARTS` are the first samples of many new cameras, and `CHANGES` go from domain to domain and
come back. All randomness comes from (seed, domain), see `neotta.data.drawing`. Kinds that show one class or two take
other ones with each seed, the same in all domains: with C classes the seeds 0 to C - 1 show each class once, and
0 to C (C - 1) / 2 - 1 each pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from neotta.data.base import Image, ImageDataset
from neotta.data.domain_samples import SEED, Data, DomainSamples, domains, only, sequence
from neotta.data.drawing import Indices, Skew, generator, take
from neotta.data.order import Order, assemble, reorder
from neotta.errors import DataError, UnknownNameError

Labels = NDArray[np.int64]
Members = list[Indices]
"""The shuffled samples of each class."""
Random = np.random.RandomState
Draw = Callable[[Labels, Members, Random, int], Indices]

MIXED = 256  # mixed samples before a stream becomes one-sided
BAD_FRAMES = 0.02  # the share of black, white and noisy frames among others
BAD_FRAMES_DOMAIN = "bad frames"
BAD_FRAMES_COUNT = 48
FROZEN = 100  # times a frozen frame is shown
FEW = 64  # fewer samples of a few classes are shown over and over
TAIL = 100.0  # how much more frequent the first class of a long tail is than the last


def order(kind: str, labels: Labels, seed: int, domain: str, samples: int = -1) -> Indices:
    """Order the samples of a domain by their labels, (N,); some kinds show fewer than are wanted."""
    if kind not in KINDS:
        raise UnknownNameError("kind of stream", kind, KINDS)
    wanted = take(len(labels), samples)
    draw = KINDS[kind]
    if isinstance(draw, Skew):
        return draw.order(labels, seed, domain)[:wanted]
    random = generator(seed, domain, f"real {kind}")
    return np.asarray(draw(labels, _by_class(labels, random, seed), random, wanted)[:wanted], dtype=np.int64)


def _by_class(labels: Labels, random: Random, seed: int) -> Members:
    """The shuffled samples of each class: first a pair of classes that belongs to the seed, then the others."""
    classes = generator(0, "classes", "real").permutation(np.unique(labels))
    count = len(classes)
    apart = 1 + seed // count % max(count // 2, 1)
    pair = list(dict.fromkeys([seed % count, (seed + apart) % count]))
    in_order = np.concatenate([classes[pair], random.permutation(np.delete(classes, pair))])
    return [random.permutation(np.flatnonzero(labels == each)) for each in in_order]


def _sorted(labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    return np.concatenate(members)


def _neighbours(labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    """Classes in the order of their numbers, which puts similar ones side by side in ImageNet."""
    return np.lexsort((random.random_sample(len(labels)), labels))


def _classes(number: int, labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    pool = np.concatenate(members[:number])
    return random.permutation(pool) if len(pool) >= min(FEW, wanted) else random.choice(pool, wanted)


def _in_turn(number: int | None, labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    """Classes take turns: all of them, or the first few."""
    some = members[:number]
    rows = [each[np.arange(wanted // len(some) + 1) % len(each)] for each in some]
    return np.stack(rows, axis=1).ravel()


def _mixed_then_one(labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    first = random.permutation(len(labels))[: min(MIXED, wanted // 2)]
    one = members[0]
    return np.concatenate([first, one[np.arange(wanted - len(first)) % len(one)]])


def _bursts(length: int, labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    chosen = [members[random.randint(len(members))] for _ in range(wanted // length + 1)]
    return np.concatenate([random.choice(each, length) for each in chosen])


def _dominant(share: float, labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    anything = random.permutation(len(labels))[:wanted]
    return np.where(random.random_sample(len(anything)) < share, random.choice(members[0], len(anything)), anything)


def _repeated(times: int, labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    return np.repeat(random.permutation(len(labels)), times)


def _frozen_start(labels: Labels, members: Members, random: Random, wanted: int) -> Indices:
    mixed = random.permutation(len(labels))
    return np.concatenate([np.repeat(mixed[:1], min(FROZEN, wanted // 2)), mixed[1:]])


KINDS: dict[str, Draw | Skew] = {
    "iid": Skew(),
    "dirichlet-0.1": Skew(delta=0.1),
    "dirichlet-0.01": Skew(delta=0.01),
    "sorted": _sorted,
    "neighbours": _neighbours,
    "1-class": partial(_classes, 1),
    "2-classes": partial(_classes, 2),
    "5-classes": partial(_classes, 5),
    "10-classes": partial(_classes, 10),
    "long-tail": Skew(ratio=TAIL),
    "mixed-then-1": _mixed_then_one,
    "bursts-5": partial(_bursts, 5),
    "bursts-100": partial(_bursts, 100),
    "2-in-turn": partial(_in_turn, 2),
    "all-in-turn": partial(_in_turn, None),
    "half-one-class": partial(_dominant, 0.5),
    "mostly-one-class": partial(_dominant, 0.9),
    "repeated-frames": partial(_repeated, 8),
    "frozen-start": _frozen_start,
}
"""Kinds of real streams by name."""

OUTLIERS = "outliers"
"""The kind in which now and then a frame is black, white or noise; these frames are not scored."""

STARTS = {f"first-{number}": number for number in (1, 4, 16, 64)}
"""Kinds that show every new camera's first samples, one by one: number of samples of each camera."""


class Change(NamedTuple):
    """A stream that goes from domain to domain, over and over."""

    every: int  # number of samples after which the domain changes
    delta: float | None = None  # correlation of the labels within each domain (see `Skew`); None: independent
    rounds: int = 1  # how often the samples of each domain come


CHANGES = {
    "changes-64": Change(64),
    "changes-512": Change(512),
    "changes-64-correlated": Change(64, delta=0.1),
    "changes-512-correlated": Change(512, delta=0.1),
    "recurring": Change(256, rounds=2),
}
"""Kinds that go through all domains of a run."""

EVERY_KIND = (*KINDS, OUTLIERS, *STARTS, *CHANGES)


def real(
    data: Data,
    *,
    kind: str,
    samples: int = -1,
    seed: int = SEED,
    batch_size: int = 64,
    bad_frames: ImageDataset | None = None,
) -> Order:
    """Order samples as a real camera may see them.

    Args:
        data: One domain; several for the kinds of `CHANGES`.
        kind: One of `EVERY_KIND`. Those of `STARTS` come in batches of one, and each new camera stands in the order by
            its name, so that a method can restart.
        samples: Number of samples of each domain; -1 for all.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
        bad_frames: The frames that are strewn in by the kind `outliers`.

    Raises:
        UnknownNameError: There is no such kind.
    """
    if kind not in EVERY_KIND:
        raise UnknownNameError("kind of stream", kind, EVERY_KIND)
    if kind in CHANGES:
        return _changes(domains(data), kind, samples, seed, batch_size)
    domain = only(data)
    base = "iid" if kind in STARTS or kind == OUTLIERS else kind
    part = order(base, domain.known_labels(), seed, domain.name, samples)
    about = {"samples": samples, "kind": kind}
    made = assemble("real", [domain], [part], seed, 1 if kind in STARTS else batch_size, about)
    if kind in STARTS:
        camera = np.arange(len(made), dtype=np.int64) // STARTS[kind]
        return replace(made, cameras=tuple(f"camera {n + 1}" for n in range(int(camera[-1]) + 1)), camera=camera)
    return made if kind != OUTLIERS else _with_bad_frames(made, domain, bad_frames)


def _changes(all_domains: list[DomainSamples], kind: str, samples: int, seed: int, batch_size: int) -> Order:
    """Domains take turns."""
    change = CHANGES[kind]
    all_domains = sequence(all_domains, True, seed)
    drawn = [domain.draw(Skew(delta=change.delta), samples, seed) for domain in all_domains]
    turns = [
        (domain, part[start : start + change.every])
        for start in range(0, max(map(len, drawn)), change.every)
        for domain, part in zip(all_domains, drawn, strict=True)
        if start < len(part)
    ] * change.rounds
    about = {"samples": samples, "kind": kind}
    return assemble("real", [each for each, _ in turns], [part for _, part in turns], seed, batch_size, about)


def _with_bad_frames(plain: Order, domain: DomainSamples, frames: ImageDataset | None) -> Order:
    if frames is None:
        raise DataError("the kind 'outliers' needs the bad frames that are strewn in")
    random = generator(plain.seed, domain.name, "bad frames")
    before = np.flatnonzero(random.random_sample(len(plain)) < BAD_FRAMES)
    chosen = generator(plain.seed, domain.name, "which bad frames").randint(0, len(frames), len(before))
    bad = DomainSamples.of(frames.domain, frames)
    both = assemble("real", [domain, bad], [plain.index, chosen.astype(np.int64)], plain.seed, plain.batch_size, {})
    times = np.concatenate([np.arange(len(plain)), before - 0.5])
    return replace(reorder(both, np.argsort(times, kind="stable")), parameters=plain.parameters)


class BadFrames(ImageDataset):
    """Unlabelled frames of a camera that is covered, blinded or broken: a third each black, white and noise."""

    def __init__(self, height: int, width: int) -> None:
        self.domain = f"{BAD_FRAMES_DOMAIN} {height}x{width}"
        self.ids = [f"{number:02d}" for number in range(BAD_FRAMES_COUNT)]
        self._shape = (height, width, 3)
        self.in_memory = True

    def read(self, index: int) -> Image:
        """Make one frame, (H, W, 3) uint8; the same each time."""
        if index % 3 < 2:
            return np.full(self._shape, 255 * (index % 3), dtype=np.uint8)
        return np.random.RandomState(index).randint(0, 256, self._shape).astype(np.uint8)
