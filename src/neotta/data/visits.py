"""Orders that come back: the same domains several times over, and severities that rise and fall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from neotta.data import drawing
from neotta.data._numbers import whole
from neotta.data.domain_samples import Data, DomainSamples, domains
from neotta.data.drawing import Skew
from neotta.data.order import Order, assemble
from neotta.errors import DataError

SEED = 2020  # the default of the published experiments
EVEN = Skew()


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
    found = sequence(domains(data), shuffle, seed)
    visits = [(domain, number if redraw else 0) for number in range(rounds) for domain in found]
    parameters = {"rounds": rounds, "redraw": redraw, "samples": samples, "shuffle": shuffle}
    return visited("recurring", visits, parameters, skew, seed, batch_size, straddle)


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
    visits = [visit for kind in kinds for visit in _up_and_down(ladders[kind])]
    parameters = {"samples": samples, "shuffle": shuffle}
    return visited("gradual", visits, parameters, skew, seed, batch_size, straddle)


def visited(
    kind: str,
    visits: Sequence[tuple[DomainSamples, int]],
    parameters: dict[str, Any],
    skew: Skew,
    seed: int,
    batch_size: int,
    straddle: bool,
) -> Order:
    """Go through domains one after the other.

    Args:
        kind: The name of the order.
        visits: Domain and number of the draw from it, in their order.
        parameters: Of the order; `samples` are drawn in each visit.
        skew: How labels are distributed within each visit.
        seed: Seed of all drawing.
        batch_size: Samples in a batch.
        straddle: Whether a batch may hold the end of one visit and the beginning of the next.
    """
    parts = [domain.draw(skew, parameters["samples"], seed, number) for domain, number in visits]
    found = [domain for domain, _ in visits]
    order = assemble(kind, found, parts, seed, batch_size, {**parameters, "skew": asdict(skew)})
    return replace(order, straddle=straddle)


def sequence(found: list[DomainSamples], shuffle: bool, seed: int) -> list[DomainSamples]:
    """Domains as given, or by the hash of seed and name: one more leaves the others in their order."""
    return sorted(found, key=lambda domain: drawing.digest(seed, domain.name, "sequence")) if shuffle else found


def _ladders(found: Sequence[DomainSamples]) -> dict[str, list[DomainSamples]]:
    """The severities of each corruption, rising."""
    ladders: dict[str, list[DomainSamples]] = {}
    for domain in found:
        kind, _, level = domain.name.rpartition("/")
        if not (kind and level.isdecimal()):
            raise DataError(f"domain {domain.name!r} has no severity: a gradual order needs names such as fog/1, fog/2")
        ladders.setdefault(kind, []).append(domain)
    for kind, ladder in ladders.items():
        if len(ladder) < 2:
            raise DataError(f"a gradual order needs several severities, but {kind!r} has only {ladder[0].name!r}")
        ladder.sort(key=lambda domain: int(domain.name.rpartition("/")[2]))
    return ladders


def _up_and_down(ladder: list[DomainSamples]) -> list[tuple[DomainSamples, int]]:
    return [*((domain, 0) for domain in ladder), *((domain, 1) for domain in reversed(ladder[:-1]))]
