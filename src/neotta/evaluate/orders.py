"""The orders that a plan names: registered functions with typed options. `neotta orders` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from neotta.data import orders
from neotta.data.base import ImageDataset
from neotta.data.order import Order, reorder
from neotta.data.real_streams import CHANGES, EVERY_KIND, OUTLIERS
from neotta.errors import OptionError, suggestion
from neotta.options import Options

Protocol = Literal["online", "hold-out", "continual", "cross-domain"]
Kind = Literal[
    "iid", "few-classes", "imbalanced", "correlated", "real", "stored", "mixed", "cameras", "recurring", "gradual"
]
Datasets = Mapping[str, ImageDataset]


class Request(NamedTuple):
    data: Datasets
    source: Datasets  # the domain that is adapted to, if it is another
    bad_frames: Callable[[], ImageDataset]  # frames that show nothing
    samples: int  # number of samples to adapt to; -1 for all
    held_out_samples: int  # number of others to score; -1 for all
    common: dict[str, Any]  # `seed` and `batch_size`


Make = Callable[[Request, Any], tuple[Order, ...]]


@dataclass(frozen=True)
class OrderKind:
    name: str  # what a plan calls it
    options: type[Options]
    # makes it: a single order is adapted to and scored; of two, the second is scored with the state frozen
    make: Make


ORDERS: dict[tuple[str, str], OrderKind] = {}
"""All orders, by protocol and kind; other combinations are invalid."""


def register_order(name: str, protocol: Protocol, kind: Kind, options: type[Options]) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        ORDERS[protocol, kind] = OrderKind(name, options, make)
        return make

    return add


def order_options(protocol: str, order: str, options: Mapping[str, Any]) -> Options:
    if (protocol, order) not in ORDERS:
        protocols = " or ".join(repr(each) for each, kind in ORDERS if kind == order)
        raise OptionError(f"the order {order!r} goes with the protocol {protocols}, not {protocol!r}")
    checked = ORDERS[protocol, order].options.make(order, options, kind="order")
    if isinstance(checked, RealOptions):
        if checked.kind not in EVERY_KIND:
            raise OptionError(f"the order 'real' has no kind {checked.kind!r}: {suggestion(checked.kind, EVERY_KIND)}")
        needed = "continual" if checked.kind in CHANGES else "online"
        if protocol != needed:
            kind = f"the kind {checked.kind!r} of the order 'real'"
            raise OptionError(f"{kind} goes with the protocol {needed!r}, not {protocol!r}")
    return checked


def named_order(name: str) -> tuple[str, str] | None:
    """The protocol and kind of an order; None if there is no such name, or it depends on its options."""
    places = [place for place, order in ORDERS.items() if order.name == name]
    return places[0] if len(places) == 1 else None


# ---- options


class NoOptions(Options):
    """Orders without options."""


class ImbalancedOptions(Options):
    ratio: float = Field(10.0, ge=1, description="How much more frequent the first class is than the last.")


class Labels(Options):
    """How labels are distributed; by default evenly."""

    ratio: float = Field(1.0, ge=1, description="How much more frequent the first class is than the last.")
    delta: float | None = Field(None, ge=1e-6, description="How labels come in bursts: 0.1 strong, 10 hardly.")
    slots: int | None = Field(None, ge=1, description="Slots that bursts are spread over; as many as classes if None.")

    @property
    def skew(self) -> orders.Skew:
        return orders.Skew(self.ratio, self.delta, self.slots)


class CorrelatedOptions(Labels):
    delta: float | None = Field(0.1, ge=1e-6, description="How labels come in bursts: 0.1 strong, 10 hardly.")


class ContinualOptions(Labels):
    shuffle: bool = Field(True, description="Draw the sequence of domains from the seed.")
    straddle: bool = Field(False, description="Let a batch hold the end of one domain and the beginning of the next.")


class ImbalancedDomainsOptions(ContinualOptions):
    ratio: float = Field(10.0, ge=1, description="How much more frequent the first class is than the last.")


class CorrelatedDomainsOptions(ContinualOptions):
    delta: float | None = Field(0.1, ge=1e-6, description="How labels come in bursts: 0.1 strong, 10 hardly.")


class RecurringOptions(ContinualOptions):
    rounds: int = Field(3, ge=1, description="How often the sequence of domains comes.")
    redraw: bool = Field(False, description="Draw other samples in every round.")


class CameraOptions(Labels):
    per_domain: int = Field(1, ge=1, description="Number of cameras in each domain.")
    in_turn: bool = Field(False, description="Cameras take strict turns.")
    separate: bool = Field(False, description="Adapt to each camera by itself.")


class RealOptions(Options):
    kind: str = Field(description=f"Which stream: {', '.join(EVERY_KIND)}.")


class FewClassesOptions(Options):
    classes: int = Field(ge=1, description="Number of classes to adapt to.")
    validate_on: int = Field(-1, alias="validate", ge=-1, description="Number of samples to score; -1 for all.")
    disjoint: bool = Field(False, description="Keep the classes adapted to out of the scored samples.")


# ---- one domain


@register_order("iid", "online", "iid", NoOptions)
def _iid(request: Request, options: NoOptions) -> tuple[Order, ...]:
    """Samples of one domain at random."""
    return (orders.iid(request.data, samples=request.samples, **request.common),)


@register_order("imbalanced", "online", "imbalanced", ImbalancedOptions)
def _imbalanced(request: Request, options: ImbalancedOptions) -> tuple[Order, ...]:
    """One domain with a long tail of classes."""
    return (orders.imbalanced(request.data, ratio=options.ratio, samples=request.samples, **request.common),)


@register_order("correlated", "online", "correlated", CorrelatedOptions)
def _correlated(request: Request, options: CorrelatedOptions) -> tuple[Order, ...]:
    """One domain whose classes come in bursts."""
    chosen: Any = options.given()
    return (orders.correlated(request.data, samples=request.samples, **chosen, **request.common),)


@register_order("stored", "online", "stored", NoOptions)
def _stored(request: Request, options: NoOptions) -> tuple[Order, ...]:
    """Samples as they are stored in the data, such as a recorded stream."""
    return (orders.stored(request.data, samples=request.samples, **request.common),)


@register_order("real", "continual", "real", RealOptions)
@register_order("real", "online", "real", RealOptions)
def _real(request: Request, options: RealOptions) -> tuple[Order, ...]:
    """What real cameras see: few classes, repeated frames, bad frames, changing domains."""
    bad = request.bad_frames() if options.kind == OUTLIERS else None
    made = orders.real(request.data, kind=options.kind, samples=request.samples, bad_frames=bad, **request.common)
    return (made,)


# ---- through all domains, without a reset


@register_order("imbalanced", "continual", "imbalanced", ImbalancedDomainsOptions)
@register_order("correlated", "continual", "correlated", CorrelatedDomainsOptions)
@register_order("continual", "continual", "iid", ContinualOptions)
def _continual(request: Request, options: ContinualOptions) -> tuple[Order, ...]:
    """One domain after the other, without a reset."""
    return (orders.continual(request.data, **_sequence(request, options)),)


@register_order("recurring", "continual", "recurring", RecurringOptions)
def _recurring(request: Request, options: RecurringOptions) -> tuple[Order, ...]:
    """The sequence of domains several times over."""
    times: Any = {"rounds": options.rounds, "redraw": options.redraw}
    return (orders.recurring(request.data, **times, **_sequence(request, options)),)


@register_order("gradual", "continual", "gradual", ContinualOptions)
def _gradual(request: Request, options: ContinualOptions) -> tuple[Order, ...]:
    """Severity 1 to 5 and back, corruption after corruption."""
    return (orders.gradual(request.data, **_sequence(request, options)),)


@register_order("mixed", "continual", "mixed", Labels)
def _mixed(request: Request, options: Labels) -> tuple[Order, ...]:
    """Samples of all domains at random."""
    return (orders.mixed(request.data, samples=request.samples, skew=options.skew, **request.common),)


@register_order("cameras", "continual", "cameras", CameraOptions)
def _cameras(request: Request, options: CameraOptions) -> tuple[Order, ...]:
    """One or more cameras in each domain, interleaved."""
    watch = {f"{name} camera {n + 1}": name for name in request.data for n in range(options.per_domain)}
    chosen: Any = {"in_turn": options.in_turn, "skew": options.skew, "samples": request.samples}
    return (orders.cameras(request.data, watch, **chosen, **request.common),)


def _sequence(request: Request, options: ContinualOptions) -> dict[str, Any]:
    chosen = {"shuffle": options.shuffle, "straddle": options.straddle, "skew": options.skew}
    return {**chosen, "samples": request.samples, **request.common}


# ---- scored on other samples, with the state frozen


@register_order("hold-out", "hold-out", "iid", NoOptions)
def _hold_out(request: Request, options: NoOptions) -> tuple[Order, ...]:
    """Adapt to some samples of a domain, score the others."""
    held = orders.few_samples(request.data, request.samples, **request.common)
    return held.adapt, _first(held.validate, request.held_out_samples)


@register_order("few-classes", "hold-out", "few-classes", FewClassesOptions)
def _few_classes(request: Request, options: FewClassesOptions) -> tuple[Order, ...]:
    """Adapt to some classes of a domain, score other samples."""
    chosen: Any = {"validate": options.validate_on, "disjoint": options.disjoint, "samples": request.samples}
    held = orders.few_classes(request.data, options.classes, **chosen, **request.common)
    return held.adapt, _first(held.validate, request.held_out_samples)


@register_order("cross-domain", "cross-domain", "iid", NoOptions)
def _cross_domain(request: Request, options: NoOptions) -> tuple[Order, ...]:
    """Adapt to one domain, score another."""
    adapt = orders.few_samples(request.source, request.samples, **request.common).adapt
    return adapt, _first(orders.iid(request.data, **request.common), request.held_out_samples)


def _first(order: Order, count: int) -> Order:
    return order if count < 0 or count >= len(order) else reorder(order, np.arange(count))
