"""Kinds of orders: one domain, domains in sequence or mixed, few samples or classes, skewed labels, cameras.

Only indices are handled, no images: an order can be made from lengths and labels as well as from datasets.
Orders come from (seed, domain) alone, see `neotta.data.drawing`. Everywhere `samples=-1` means all of them, `seed` is
the seed of all that is drawn, `batch_size` the number of samples in a batch, and `skew` how the labels are distributed
within each domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from neotta.data import drawing
from neotta.data._numbers import whole
from neotta.data.domain_samples import EVEN, SEED, Data, DomainSamples, Source, domains, only, sequence
from neotta.data.drawing import Indices, Skew, split
from neotta.data.order import Order, assemble, reorder, replay
from neotta.data.real_streams import real
from neotta.errors import DataError

__all__ = [
    "Data",
    "Holdout",
    "Order",
    "Skew",
    "Source",
    "cameras",
    "continual",
    "correlated",
    "few_classes",
    "few_samples",
    "gradual",
    "iid",
    "imbalanced",
    "mixed",
    "real",
    "recurring",
    "replay",
    "split",
    "stored",
]


class Holdout(NamedTuple):
    """Samples to adapt on, and others to measure on with `adapt=False`."""

    adapt: Order
    validate: Order


def iid(data: Data, *, samples: int = -1, seed: int = SEED, batch_size: int = 64) -> Order:
    """Order the samples of one domain at random."""
    return _one_domain("iid", data, EVEN, samples, seed, batch_size)


def stored(data: Data, *, samples: int = -1, seed: int = SEED, batch_size: int = 64) -> Order:
    """Take the samples of one domain in the order in which the dataset has them, as a stream that was recorded."""
    domain = only(data)
    part = np.arange(drawing.take(domain.size, samples), dtype=np.int64)
    return assemble("stored", [domain], [part], seed, batch_size, {"samples": samples})


def imbalanced(data: Data, *, ratio: float, samples: int = -1, seed: int = SEED, batch_size: int = 64) -> Order:
    """Order one domain at random with a long tail of classes, first to last `ratio` to 1 (see `Skew`)."""
    return _one_domain("imbalanced", data, Skew(ratio=ratio), samples, seed, batch_size)


def correlated(
    data: Data,
    *,
    delta: float = 0.1,
    slots: int | None = None,
    ratio: float = 1.0,
    samples: int = -1,
    seed: int = SEED,
    batch_size: int = 64,
) -> Order:
    """Order one domain so that labels come in bursts, the more so the smaller `delta` (see `Skew`)."""
    return _one_domain("correlated", data, Skew(ratio, delta, slots), samples, seed, batch_size)


def continual(
    data: Data,
    *,
    samples: int = 512,
    shuffle: bool = True,
    straddle: bool = False,
    skew: Skew = EVEN,
    seed: int = SEED,
    batch_size: int = 64,
) -> Order:
    """Let domain follow domain without notice.

    Args:
        data: The domains.
        samples: How many of each domain.
        shuffle: Order the domains at random: by the hash of seed and name, so that it does not matter how
            they are given, and one more leaves the others as they were. If not: as given.
        straddle: Whether a batch may hold the end of one domain and the beginning of the next.
        skew: How labels are distributed within each domain.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
    """
    visits = [(domain, 0) for domain in sequence(domains(data), shuffle, seed)]
    return _visited("continual", visits, {"samples": samples, "shuffle": shuffle}, skew, seed, batch_size, straddle)


def recurring(
    data: Data,
    *,
    rounds: int = 3,
    redraw: bool = False,
    samples: int = 512,
    shuffle: bool = True,
    straddle: bool = False,
    skew: Skew = EVEN,
    seed: int = SEED,
    batch_size: int = 64,
) -> Order:
    """Let the sequence of `continual` come several times over.

    Args:
        data: The domains.
        rounds: How often the sequence comes.
        redraw: Draw new samples of a domain in every round; otherwise the same ones come again.
        samples: How many of each domain in a round.
        shuffle: Order the domains at random, the same way in every round. If not: as given.
        straddle: Whether a batch may hold the end of one domain and the beginning of the next.
        skew: How labels are distributed within each visit to a domain.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
    """
    rounds = whole("rounds", rounds, 1)
    all_domains = sequence(domains(data), shuffle, seed)
    visits = [(domain, number if redraw else 0) for number in range(rounds) for domain in all_domains]
    parameters = {"rounds": rounds, "redraw": redraw, "samples": samples, "shuffle": shuffle}
    return _visited("recurring", visits, parameters, skew, seed, batch_size, straddle)


def gradual(
    data: Data,
    *,
    samples: int = 512,
    shuffle: bool = True,
    straddle: bool = False,
    skew: Skew = EVEN,
    seed: int = SEED,
    batch_size: int = 64,
) -> Order:
    """Let the severity of each corruption rise from its lowest to its highest and fall again, then take the next.

    On the way down, the samples of a severity are drawn again.

    Args:
        data: Domains whose names end in a severity, such as `"fog/1"` to `"fog/5"`.
        samples: How many of each severity, on the way up and on the way down.
        shuffle: Order the corruptions at random. If not: as given.
        straddle: Whether a batch may hold the end of one severity and the beginning of the next.
        skew: How labels are distributed within each visit to a severity.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.

    Raises:
        DataError: A name has no severity, or a corruption has only one.
    """
    ladders = _ladders(domains(data))
    kinds = list(ladders)
    if shuffle:
        kinds.sort(key=lambda kind: drawing.digest(seed, kind, "sequence"))
    visits: list[tuple[DomainSamples, int]] = []
    for ladder in (ladders[kind] for kind in kinds):
        visits += [*((domain, 0) for domain in ladder), *((domain, 1) for domain in reversed(ladder[:-1]))]
    parameters = {"samples": samples, "shuffle": shuffle}
    return _visited("gradual", visits, parameters, skew, seed, batch_size, straddle)


def mixed(data: Data, *, samples: int = -1, skew: Skew = EVEN, seed: int = SEED, batch_size: int = 64) -> Order:
    """Mix the samples of all domains at random, `samples` of each.

    The long tail of `skew` is within each domain; its bursts are of the whole mixture, so that a burst of one class
    holds samples of several domains.
    """
    all_domains = domains(data)
    parts = [domain.draw(replace(skew, delta=None, slots=None), samples, seed) for domain in all_domains]
    times = [drawing.arrivals(len(part), seed, domain.name) for domain, part in zip(all_domains, parts, strict=True)]
    order = assemble("mixed", all_domains, parts, seed, batch_size, {"samples": samples, "skew": asdict(skew)})
    order = reorder(order, np.lexsort((order.domain, np.concatenate(times))))
    if skew.delta is None:
        return order
    labels = np.zeros(len(order), dtype=np.int64)
    for number, name in enumerate(order.domains):
        here = order.domain == number
        labels[here] = next(each for each in all_domains if each.name == name).known_labels()[order.index[here]]
    return reorder(order, skew.burst(labels, seed, "mixed"))


def cameras(
    data: Data,
    watch: Mapping[str, str] | None = None,
    *,
    samples: int = -1,
    in_turn: bool = False,
    skew: Skew = EVEN,
    seed: int = SEED,
    batch_size: int = 64,
) -> Order:
    """Interleave several cameras, each in its own domain; every entry carries its camera.

    Args:
        data: The domains.
        watch: Name of each camera to the domain it stands in; None: one camera a domain, of the same name.
            Cameras that share a domain share its samples: these are dealt out to them in turn.
        samples: How many of each camera.
        in_turn: The cameras take strict turns, rather than that samples arrive at random.
        skew: How labels are distributed within each domain.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
    """
    by_name = {domain.name: domain for domain in domains(data)}
    watch = dict(watch) if watch is not None else {name: name for name in by_name}
    missing = [name for name in watch.values() if name not in by_name]
    if missing or not watch:
        raise DataError(f"cameras watch the domains {list(watch.values())}, but there are {list(by_name)}")
    used = [by_name[name] for name in watch.values()]
    parts, times = [], []
    for camera, name in watch.items():
        together = [other for other in watch if watch[other] == name]
        mine = by_name[name].draw(skew, -1, seed)[together.index(camera) :: len(together)]
        mine = mine[: drawing.take(len(mine), samples, f"samples of camera {camera!r}")]
        parts.append(mine)
        times.append(np.arange(len(mine)) if in_turn else drawing.arrivals(len(mine), seed, camera))
    parameters = {"watch": watch, "samples": samples, "in_turn": in_turn, "skew": asdict(skew)}
    order = assemble("cameras", used, parts, seed, batch_size, parameters)
    camera_of = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])
    order = replace(order, cameras=tuple(watch), camera=camera_of)
    return reorder(order, np.lexsort((camera_of, np.concatenate(times))))


def few_samples(data: Data, samples: int, *, seed: int = SEED, batch_size: int = 64) -> Holdout:
    """Adapt on a few samples of one domain and validate on the rest, by the published `split`."""
    domain = only(data)
    adapt, validate = split(domain.size, samples, seed)
    return _holdout("few-samples", domain, adapt, validate, seed, batch_size, {"samples": samples})


def few_classes(
    data: Data,
    classes: int,
    *,
    samples: int = 50,
    validate: int = 4096,
    disjoint: bool = False,
    seed: int = SEED,
    batch_size: int = 64,
) -> Holdout:
    """Adapt on samples of a few classes of one domain, and validate on others.

    Args:
        data: The domain, with labels.
        classes: How many classes to adapt on; fewer are a part of more.
        samples: How many samples to adapt on, as evenly as possible: the first `samples % classes` classes
            get one more.
        validate: How many other samples to validate on, at random.
        disjoint: Keep the adaptation classes out of the validation samples.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
    """
    domain = only(data)
    labels = domain.known_labels()
    adapt, rest, chosen = drawing.few_classes(labels, samples, classes, seed, domain.name)
    if disjoint:
        rest = rest[~np.isin(labels[rest], chosen)]
    rest = rest[: drawing.take(len(rest), validate, "validation samples")]
    parameters = {"classes": chosen.tolist(), "samples": samples, "validate": validate, "disjoint": disjoint}
    return _holdout("few-classes", domain, adapt, rest, seed, batch_size, parameters)


def _one_domain(kind: str, data: Data, skew: Skew, samples: int, seed: int, batch_size: int) -> Order:
    domain = only(data)
    part = domain.draw(skew, samples, seed)
    parameters = {"samples": samples, "skew": asdict(skew)}
    return assemble(kind, [domain], [part], seed, batch_size, parameters)


def _holdout(
    kind: str, domain: DomainSamples, adapt: Indices, validate: Indices, seed: int, batch: int, about: dict[str, Any]
) -> Holdout:
    parts = {"adapt": adapt, "validate": validate}
    made = [assemble(kind, [domain], [parts[name]], seed, batch, {**about, "part": name}) for name in parts]
    return Holdout(*made)


def _visited(
    kind: str,
    visits: Sequence[tuple[DomainSamples, int]],
    parameters: dict[str, Any],
    skew: Skew,
    seed: int,
    batch_size: int,
    straddle: bool,
) -> Order:
    """Go through domains one after the other: `visits` has each domain, and the number of the draw from it."""
    parts = [domain.draw(skew, parameters["samples"], seed, number) for domain, number in visits]
    visited = [domain for domain, _ in visits]
    order = assemble(kind, visited, parts, seed, batch_size, {**parameters, "skew": asdict(skew)})
    return replace(order, straddle=straddle)


def _ladders(all_domains: Sequence[DomainSamples]) -> dict[str, list[DomainSamples]]:
    ladders: dict[str, list[DomainSamples]] = {}
    for domain in all_domains:
        kind, _, level = domain.name.rpartition("/")
        if not (kind and level.isdecimal()):
            raise DataError(f"domain {domain.name!r} has no severity: a gradual order needs names such as fog/1, fog/2")
        ladders.setdefault(kind, []).append(domain)
    for kind, ladder in ladders.items():
        if len(ladder) < 2:
            raise DataError(f"a gradual order needs several severities, but {kind!r} has only {ladder[0].name!r}")
        ladder.sort(key=lambda domain: int(domain.name.rpartition("/")[2]))
    return ladders
