"""Orders of the streams that real cameras see, see `neotta.data.real_streams`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from neotta.data import real_streams
from neotta.data.base import ImageDataset
from neotta.data.domain_samples import Data, DomainSamples, domains, only
from neotta.data.drawing import Skew, generator
from neotta.data.order import Order, assemble, reorder
from neotta.data.real_streams import CHANGES, EVERY_KIND, OUTLIERS, STARTS
from neotta.data.visits import SEED, sequence
from neotta.errors import DataError, UnknownNameError


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
        data: One domain; several for the kinds of `neotta.data.real_streams.CHANGES`.
        kind: One of `neotta.data.real_streams.EVERY_KIND`. Those of `STARTS` come in batches of one, and each new
            camera stands in the order by its name, so that a method can restart.
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
    part = real_streams.order(base, domain.known_labels(), seed, domain.name, samples)
    about = {"samples": samples, "kind": kind}
    order = assemble("real", [domain], [part], seed, 1 if kind in STARTS else batch_size, about)
    if kind in STARTS:
        camera = np.arange(len(order), dtype=np.int64) // STARTS[kind]
        return replace(order, cameras=tuple(f"camera {n + 1}" for n in range(int(camera[-1]) + 1)), camera=camera)
    return order if kind != OUTLIERS else _with_bad_frames(order, domain, bad_frames)


def _changes(found: list[DomainSamples], kind: str, samples: int, seed: int, batch_size: int) -> Order:
    """Domains take turns."""
    change = CHANGES[kind]
    found = sequence(found, True, seed)
    drawn = [domain.draw(Skew(delta=change.delta), samples, seed) for domain in found]
    turns = real_streams.visits(change, [len(each) for each in drawn])
    parts = [drawn[domain][part] for domain, part in turns]
    about = {"samples": samples, "kind": kind}
    return assemble("real", [found[domain] for domain, _ in turns], parts, seed, batch_size, about)


def _with_bad_frames(order: Order, domain: DomainSamples, frames: ImageDataset | None) -> Order:
    if frames is None:
        raise DataError("the kind 'outliers' needs the bad frames that are strewn in")
    before = real_streams.bad_frames(len(order), order.seed, domain.name)
    chosen = generator(order.seed, domain.name, "which bad frames").randint(0, len(frames), len(before))
    bad = DomainSamples.of(frames.domain, frames)
    both = assemble("real", [domain, bad], [order.index, chosen.astype(np.int64)], order.seed, order.batch_size, {})
    times = np.concatenate([np.arange(len(order)), before - 0.5])
    return replace(reorder(both, np.argsort(times, kind="stable")), parameters=order.parameters)
