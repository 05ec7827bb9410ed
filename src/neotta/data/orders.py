"""Orders of samples: of one domain, of several in sequence or mixed, on other samples, and as real cameras see them.

Only indices are handled, no images: an order can be made from lengths and labels as well as from datasets.
Orders come from (seed, domain) alone, see `neotta.data.drawing`. Everywhere `samples=-1` means all of them, `seed` is
the seed of all that is drawn, and `batch_size` the number of samples in a batch. What a function takes besides are its
options: `ORDERS` has every order with them, by the name that plans use, and `neotta orders` lists them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np
from pydantic import Field, create_model

from neotta.data import drawing
from neotta.data.base import Image, ImageDataset, first_image
from neotta.data.domain_samples import EVEN, SEED, Data, DomainSamples, Source, domains, named, only, sequence
from neotta.data.drawing import Indices, Skew, generator, split, take
from neotta.data.order import Order, assemble, reorder, replay
from neotta.errors import DataError, UnknownNameError
from neotta.options import Options

__all__ = ["ORDERS", "Data", "Holdout", "Order", "Skew", "Source", "find_order", "replay", "split"]


class Holdout(NamedTuple):
    """Samples to adapt on, and others to measure on with `adapt=False`."""

    adapt: Order
    validate: Order


Made = TypeVar("Made", bound="Order | Holdout", covariant=True)


class Ask(NamedTuple):
    """What every order is asked for."""

    data: Data
    samples: int
    seed: int
    batch_size: int
    held_out: int  # number of other samples to score, at most; -1 for all
    source: Data | None  # the domain that is adapted to, if it is another
    at_most: bool  # domains that have fewer samples show all of theirs

    def count(self, domain: DomainSamples) -> int:
        """Number of samples of a domain, or -1 for all."""
        return -1 if self.at_most and domain.size < self.samples else self.samples

    def order(self, visited: Sequence[DomainSamples], parts: Sequence[Indices]) -> Order:
        return assemble(visited, parts, self.seed, self.batch_size)


class OrderKind(Generic[Made]):
    """An order of the catalogue: call it with data.

    Attributes:
        name: What plans call it.
        about: What comes.
        through: Whether it goes through all domains; others take one.
        scores_others: Whether other samples are scored than those adapted to, with the state frozen.
    """

    def __init__(self, function: Callable[..., Made], *, through: bool = False) -> None:
        self._function: Callable[..., Made] = function
        self.through = through
        self.name = function.__name__.replace("_", "-")
        self.about = str(function.__doc__).splitlines()[0]
        self.scores_others = function.__annotations__["return"] == "Holdout"
        self.__doc__ = function.__doc__
        ORDERS[self.name] = self

    @functools.cached_property
    def options(self) -> type[Options]:
        """What the order takes besides, read off its function."""
        hints = get_type_hints(self._function, include_extras=True)
        _, *parameters = inspect.signature(self._function).parameters.values()
        fields: dict[str, Any] = {
            each.name: (hints[each.name], ... if each.default is each.empty else each.default) for each in parameters
        }
        return create_model(f"{self.name} options", __base__=Options, **fields)

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options; an `OptionError` names one that is unknown or wrong."""
        return self.options.make(self.name, options, kind="order").given()

    def __call__(
        self,
        data: Data,
        *,
        samples: int = -1,
        seed: int = SEED,
        batch_size: int = 64,
        held_out: int = -1,
        source: Data | None = None,
        at_most: bool = False,
        **options: Any,
    ) -> Made:
        """Make the order."""
        chosen = self.check(options)
        made = self._function(Ask(data, samples, seed, batch_size, held_out, source, at_most), **chosen)
        about: dict[str, Any] = {"kind": self.name, "parameters": {"samples": int(samples), **chosen}}
        parts = (replace(part, **about) for part in ([made] if isinstance(made, Order) else made))
        return cast(Made, next(parts) if isinstance(made, Order) else Holdout(*parts))


ORDERS: dict[str, OrderKind[Any]] = {}
"""Every order by its name."""
_through = functools.partial(OrderKind, through=True)


def find_order(name: str) -> OrderKind[Any]:
    """Find an order by its name.

    Example:
        >>> find_order("hold-out").scores_others
        True
    """
    if name not in ORDERS:
        raise UnknownNameError("order", name, ORDERS)
    return ORDERS[name]


Ratio = Annotated[float, Field(ge=1, description="How much more frequent the first class is than the last.")]
Delta = Annotated[float | None, Field(ge=1e-6, description="How labels come in bursts: 0.1 strong, 10 hardly.")]
Slots = Annotated[int | None, Field(ge=1, description="Slots that bursts are spread over; as many as classes if None.")]
Whole = Annotated[bool, Field(description="Order the whole domain and show its first samples, instead of a draw.")]
Shuffle = Annotated[bool, Field(description="Draw the sequence of domains from the seed.")]
Separate = Annotated[bool, Field(description="Adapt to each camera by itself.")]
Straddle = Annotated[bool, Field(description="Let a batch hold the end of one domain and the beginning of the next.")]

# ---- one domain


@OrderKind
def iid(ask: Ask) -> Order:
    """Samples of one domain at random."""
    return _one_domain(ask, EVEN)


@OrderKind
def stored(ask: Ask) -> Order:
    """Samples as they are stored in the data, such as a recorded stream."""
    domain = only(ask.data)
    return ask.order([domain], [np.arange(take(domain.size, ask.count(domain)), dtype=np.int64)])


@OrderKind
def imbalanced(ask: Ask, ratio: Ratio = 10.0, whole: Whole = False) -> Order:
    """One domain at random with a long tail of classes."""
    return _one_domain(ask, Skew(ratio=ratio), whole=whole)


@OrderKind
def correlated(ask: Ask, delta: Delta = 0.1, slots: Slots = None, ratio: Ratio = 1.0, whole: Whole = False) -> Order:
    """One domain whose classes come in bursts."""
    return _one_domain(ask, Skew(ratio, delta, slots), whole=whole)


def _one_domain(ask: Ask, skew: Skew, *, whole: bool = False) -> Order:
    domain = only(ask.data)
    part = domain.draw(skew, -1 if whole else ask.count(domain), ask.seed)
    return ask.order([domain], [part[: take(domain.size, ask.count(domain))] if whole else part])


# ---- through all domains


@_through
def continual(
    ask: Ask,
    shuffle: Shuffle = True,
    straddle: Straddle = False,
    ratio: Ratio = 1.0,
    delta: Delta = None,
    slots: Slots = None,
) -> Order:
    """One domain after the other, without notice.

    If shuffled, domains come by the hash of seed and name, so that it does not matter how they are given, and one more
    leaves the others as they were. Labels are skewed within each domain.
    """
    visits = [(domain, 0) for domain in sequence(domains(ask.data), shuffle, ask.seed)]
    return _visited(ask, visits, Skew(ratio, delta, slots), straddle)


@_through
def recurring(
    ask: Ask,
    rounds: Annotated[int, Field(ge=1, description="How often the sequence of domains comes.")] = 3,
    redraw: Annotated[bool, Field(description="Draw other samples in every round.")] = False,
    shuffle: Shuffle = True,
    straddle: Straddle = False,
    ratio: Ratio = 1.0,
    delta: Delta = None,
    slots: Slots = None,
) -> Order:
    """The sequence of domains several times over, the same way in every round."""
    all_domains = sequence(domains(ask.data), shuffle, ask.seed)
    visits = [(domain, number if redraw else 0) for number in range(rounds) for domain in all_domains]
    return _visited(ask, visits, Skew(ratio, delta, slots), straddle)


@_through
def gradual(
    ask: Ask,
    shuffle: Shuffle = True,
    straddle: Straddle = False,
    ratio: Ratio = 1.0,
    delta: Delta = None,
    slots: Slots = None,
) -> Order:
    """Severity 1 to 5 and back, corruption after corruption.

    The domains' names end in a severity, such as `"fog/1"` to `"fog/5"`. The highest comes once; on the way down, the
    samples of a severity are drawn again.
    """
    ladders = _ladders(domains(ask.data))
    kinds = list(ladders)
    if shuffle:
        kinds.sort(key=lambda kind: drawing.digest(ask.seed, kind, "sequence"))
    visits: list[tuple[DomainSamples, int]] = []
    for ladder in (ladders[kind] for kind in kinds):
        visits += [*((domain, 0) for domain in ladder), *((domain, 1) for domain in reversed(ladder[:-1]))]
    return _visited(ask, visits, Skew(ratio, delta, slots), straddle)


def _visited(ask: Ask, visits: Sequence[tuple[DomainSamples, int]], skew: Skew, straddle: bool) -> Order:
    """Go through domains one after the other: `visits` has each domain, and the number of the draw from it."""
    parts = [domain.draw(skew, ask.count(domain), ask.seed, number) for domain, number in visits]
    return replace(ask.order([domain for domain, _ in visits], parts), straddle=straddle)


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


@_through
def mixed(ask: Ask, ratio: Ratio = 1.0, delta: Delta = None, slots: Slots = None) -> Order:
    """Samples of all domains at random, so many of each.

    The long tail is within each domain; bursts are of the whole mixture, so that a burst of one class holds samples of
    several domains.
    """
    all_domains, skew = domains(ask.data), Skew(ratio, delta, slots)
    parts = [domain.draw(Skew(ratio), ask.count(domain), ask.seed) for domain in all_domains]
    times = [
        drawing.arrivals(len(part), ask.seed, domain.name) for domain, part in zip(all_domains, parts, strict=True)
    ]
    order = ask.order(all_domains, parts)
    order = reorder(order, np.lexsort((order.domain, np.concatenate(times))))
    if delta is None:
        return order
    labels = np.zeros(len(order), dtype=np.int64)
    for number, name in enumerate(order.domains):
        here = order.domain == number
        labels[here] = next(each for each in all_domains if each.name == name).known_labels()[order.index[here]]
    return reorder(order, skew.burst(labels, ask.seed, "mixed"))


@_through
def cameras(
    ask: Ask,
    per_domain: Annotated[int, Field(ge=1, description="Number of cameras in each domain.")] = 1,
    in_turn: Annotated[bool, Field(description="Cameras take strict turns.")] = False,
    separate: Separate = False,
    ratio: Ratio = 1.0,
    delta: Delta = None,
    slots: Slots = None,
) -> Order:
    """One or more cameras in each domain, interleaved; every entry carries its camera.

    Cameras of a domain share its samples: these are dealt out to them in turn. `samples` are those of each camera.
    """
    watch: dict[str, DomainSamples] = {}
    parts, times = [], []
    for domain in domains(ask.data):
        drawn = domain.draw(Skew(ratio, delta, slots), -1, ask.seed)
        for number in range(per_domain):
            name = f"{domain.name} camera {number + 1}"
            mine = drawn[number::per_domain]
            mine = mine[: take(len(mine), ask.count(replace(domain, size=len(mine))), f"samples of {name!r}")]
            watch[name] = domain
            parts.append(mine)
            times.append(np.arange(len(mine)) if in_turn else drawing.arrivals(len(mine), ask.seed, name))
    order = ask.order(list(watch.values()), parts)
    camera_of = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])
    order = replace(order, cameras=tuple(watch), camera=camera_of)
    return reorder(order, np.lexsort((camera_of, np.concatenate(times))))


@_through
def changes(
    ask: Ask,
    every: Annotated[int, Field(ge=1, description="Number of samples after which the domain changes.")] = 64,
    delta: Delta = None,
    rounds: Annotated[int, Field(ge=1, description="How often the samples of each domain come.")] = 1,
) -> Order:
    """Domains that take turns, over and over."""
    all_domains = sequence(domains(ask.data), True, ask.seed)
    drawn = [domain.draw(Skew(delta=delta), ask.count(domain), ask.seed) for domain in all_domains]
    turns = [
        (domain, part[start : start + every])
        for start in range(0, max(map(len, drawn)), every)
        for domain, part in zip(all_domains, drawn, strict=True)
        if start < len(part)
    ] * rounds
    return ask.order([domain for domain, _ in turns], [part for _, part in turns])


# ---- scored on other samples than those adapted to


@OrderKind
def hold_out(ask: Ask) -> Holdout:
    """Adapt to some samples of a domain, score the others; by the published `split`."""
    domain = only(ask.data)
    return _holdout(ask, domain, *split(domain.size, ask.count(domain), ask.seed))


@OrderKind
def few_classes(
    ask: Ask,
    classes: Annotated[int, Field(ge=1, description="Number of classes to adapt to; fewer are a part of more.")],
    disjoint: Annotated[bool, Field(description="Keep the classes adapted to out of the scored samples.")] = False,
) -> Holdout:
    """Adapt to some classes of a domain, as evenly as possible, score other samples.

    The first `samples % classes` classes get one sample more.
    """
    domain = only(ask.data)
    labels = domain.known_labels()
    adapt, rest, chosen = drawing.few_classes(labels, ask.samples, classes, ask.seed, domain.name)
    return _holdout(ask, domain, adapt, rest[~np.isin(labels[rest], chosen)] if disjoint else rest)


@OrderKind
def cross_domain(ask: Ask) -> Holdout:
    """Adapt to one domain, the source, score another."""
    if ask.source is None:
        raise DataError("the order 'cross-domain' adapts to another domain: give it as source")
    source = only(ask.source)
    adapt, _ = split(source.size, ask.count(source), ask.seed)
    others = iid(ask.data, seed=ask.seed, batch_size=ask.batch_size)
    return Holdout(ask.order([source], [adapt]), _first(others, ask.held_out))


def _holdout(ask: Ask, domain: DomainSamples, adapt: Indices, others: Indices) -> Holdout:
    return Holdout(ask.order([domain], [adapt]), _first(ask.order([domain], [others]), ask.held_out))


def _first(order: Order, count: int) -> Order:
    return order if count < 0 or count >= len(order) else reorder(order, np.arange(count))


# ---- one domain as a real camera sees it
#
# Orders that show one class or two take other ones with each seed, the same in all domains: with C classes the seeds
# 0 to C - 1 show each class once, and 0 to C (C - 1) / 2 - 1 each pair. A sample may come more than once, as a scene
# does in front of a camera.

FEW = 64
"""Fewer samples of a few classes are shown over and over."""
BAD_FRAMES = 0.02
"""The share of black, white and noisy frames among others."""
BAD_FRAMES_DOMAIN = "bad frames"


class _Scene:
    """A domain by its classes; `drawn_as` is part of what the random numbers come from."""

    def __init__(self, ask: Ask, drawn_as: str) -> None:
        self._ask, self._domain = ask, only(ask.data)
        self.labels, self.wanted = self._domain.known_labels(), take(self._domain.size, ask.count(self._domain))
        self.random = generator(ask.seed, self._domain.name, f"real {drawn_as}")
        classes = generator(0, "classes", "real").permutation(np.unique(self.labels))
        count = len(classes)
        apart = 1 + ask.seed // count % max(count // 2, 1)
        pair = list(dict.fromkeys([ask.seed % count, (ask.seed + apart) % count]))
        in_order = np.concatenate([classes[pair], self.random.permutation(np.delete(classes, pair))])
        # the shuffled samples of each class: first a pair of classes that belongs to the seed, then the others
        self.members = [self.random.permutation(np.flatnonzero(self.labels == each)) for each in in_order]

    def shuffled(self) -> Indices:
        return self.random.permutation(len(self.labels))

    def order(self, part: Indices) -> Order:
        return self._ask.order([self._domain], [np.asarray(part[: self.wanted], dtype=np.int64)])


@OrderKind
def by_class(
    ask: Ask,
    numbered: Annotated[
        bool, Field(description="Take the classes by number, which puts similar ones side by side in ImageNet.")
    ] = False,
) -> Order:
    """One class after the other."""
    scene = _Scene(ask, "neighbours" if numbered else "sorted")
    if not numbered:
        return scene.order(np.concatenate(scene.members))
    return scene.order(np.lexsort((scene.random.random_sample(len(scene.labels)), scene.labels)))


@OrderKind
def some_classes(
    ask: Ask, classes: Annotated[int, Field(ge=1, description="Number of classes that are shown.")] = 1
) -> Order:
    """Samples of one class or a few, and of no others."""
    scene = _Scene(ask, f"{classes}-class" + "es" * (classes > 1))
    pool = np.concatenate(scene.members[:classes])
    enough = len(pool) >= min(FEW, scene.wanted)
    return scene.order(scene.random.permutation(pool) if enough else scene.random.choice(pool, scene.wanted))


@OrderKind
def in_turn(
    ask: Ask,
    classes: Annotated[int | None, Field(ge=1, description="Number of classes that take turns; None for all.")] = None,
) -> Order:
    """Classes that take turns."""
    scene = _Scene(ask, f"{classes or 'all'}-in-turn")
    some = scene.members[:classes]
    rows = [each[np.arange(scene.wanted // len(some) + 1) % len(each)] for each in some]
    return scene.order(np.stack(rows, axis=1).ravel())


@OrderKind
def mixed_then_one(
    ask: Ask, first: Annotated[int, Field(ge=1, description="Number of mixed samples, at most half of all.")] = 256
) -> Order:
    """Mixed samples, then a single class."""
    scene = _Scene(ask, "mixed-then-1")
    some, one = scene.shuffled()[: min(first, scene.wanted // 2)], scene.members[0]
    return scene.order(np.concatenate([some, one[np.arange(scene.wanted - len(some)) % len(one)]]))


@OrderKind
def bursts(ask: Ask, length: Annotated[int, Field(ge=1, description="Number of samples in a burst.")] = 5) -> Order:
    """Bursts of one class each, of the same length."""
    scene = _Scene(ask, f"bursts-{length}")
    members, random = scene.members, scene.random
    chosen = [members[random.randint(len(members))] for _ in range(scene.wanted // length + 1)]
    return scene.order(np.concatenate([random.choice(each, length) for each in chosen]))


@OrderKind
def dominant(
    ask: Ask,
    share: Annotated[float, Field(gt=0, le=1, description="The share of the samples that one class has.")] = 0.5,
) -> Order:
    """One class among others, with most of the samples."""
    scene = _Scene(ask, {0.5: "half-one-class", 0.9: "mostly-one-class"}.get(share, f"{share:g}-one-class"))
    anything = scene.shuffled()[: scene.wanted]
    one = scene.random.random_sample(len(anything)) < share
    return scene.order(np.where(one, scene.random.choice(scene.members[0], len(anything)), anything))


@OrderKind
def repeated(
    ask: Ask, times: Annotated[int, Field(ge=1, description="How often each sample is shown in a row.")] = 8
) -> Order:
    """Each sample several times in a row, as frames of a video are."""
    scene = _Scene(ask, "repeated-frames")
    return scene.order(np.repeat(scene.shuffled(), times))


@OrderKind
def frozen_start(
    ask: Ask,
    times: Annotated[int, Field(ge=1, description="How often the first is shown; at most half of all.")] = 100,
) -> Order:
    """A camera that is stuck at its first sample, then mixed ones."""
    scene = _Scene(ask, "frozen-start")
    some = scene.shuffled()
    return scene.order(np.concatenate([np.repeat(some[:1], min(times, scene.wanted // 2)), some[1:]]))


@OrderKind
def new_cameras(
    ask: Ask,
    each: Annotated[int, Field(ge=1, description="Number of samples of each camera.")] = 4,
    separate: Separate = True,
) -> Order:
    """The first samples of one new camera after the other, in batches of one."""
    made = _one_domain(ask._replace(batch_size=1), EVEN)
    camera = np.arange(len(made), dtype=np.int64) // each
    names = tuple(f"camera {number + 1}" for number in range(int(camera.max(initial=-1)) + 1))
    return replace(made, cameras=names, camera=camera)


@OrderKind
def outliers(ask: Ask) -> Order:
    """Samples at random, and now and then a frame that is black, white or noise and is not scored."""
    domain, (dataset,) = only(ask.data), named(ask.data).values()
    if not isinstance(dataset, ImageDataset):
        raise DataError(f"the order 'outliers' needs the images of {domain.name!r}, to make bad frames of their size")
    frames, plain = BadFrames(*first_image(dataset).shape[:2]), _one_domain(ask, EVEN)
    random = generator(ask.seed, domain.name, "bad frames")
    before = np.flatnonzero(random.random_sample(len(plain)) < BAD_FRAMES)
    chosen = generator(ask.seed, domain.name, "which bad frames").randint(0, len(frames), len(before))
    both = ask.order([domain, DomainSamples.of(frames.domain, frames)], [plain.index, chosen.astype(np.int64)])
    times = np.concatenate([np.arange(len(plain)), before - 0.5])
    return reorder(both, np.argsort(times, kind="stable"))


class BadFrames(ImageDataset):
    """Unlabelled frames of a camera that is covered, blinded or broken: a third each black, white and noise."""

    def __init__(self, height: int, width: int) -> None:
        self.domain = f"{BAD_FRAMES_DOMAIN} {height}x{width}"
        self.ids = [f"{number:02d}" for number in range(48)]
        self._shape = (height, width, 3)
        self.in_memory = True

    @classmethod
    def of(cls, domain: str) -> BadFrames:
        """The frames by the name of their domain."""
        height, width = domain.removeprefix(BAD_FRAMES_DOMAIN).split("x")
        return cls(int(height), int(width))

    def read(self, index: int) -> Image:
        """Make one frame, (H, W, 3) uint8; the same each time."""
        if index % 3 < 2:
            return np.full(self._shape, 255 * (index % 3), dtype=np.uint8)
        return np.random.RandomState(index).randint(0, 256, self._shape).astype(np.uint8)
