"""The orders that a plan names: functions with typed options. `neotta orders` lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class OrderKind(NamedTuple):
    name: str  # what a plan calls it
    about: str  # what comes
    options: type[Options]
    # makes it: a single order is adapted to and scored; of two, the second is scored with the state frozen
    make: Make


# ---- options


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


# ---- what makes them


def _made(function: Callable[..., Order]) -> Make:
    def make(request: Request, options: Options) -> tuple[Order, ...]:
        return (function(request.data, samples=request.samples, **options.given(), **request.common),)

    return make


def _skewed(function: Callable[..., Order]) -> Make:
    def make(request: Request, options: Labels) -> tuple[Order, ...]:
        own = {name: value for name, value in options.given().items() if name not in Labels.model_fields}
        return (function(request.data, samples=request.samples, skew=options.skew, **own, **request.common),)

    return make


def _cameras(data: Datasets, *, per_domain: int, separate: bool, **how: Any) -> Order:
    return orders.cameras(data, {f"{name} camera {n + 1}": name for name in data for n in range(per_domain)}, **how)


def _real(request: Request, options: RealOptions) -> tuple[Order, ...]:
    bad = request.bad_frames() if options.kind == OUTLIERS else None
    made = orders.real(request.data, kind=options.kind, samples=request.samples, bad_frames=bad, **request.common)
    return (made,)


def _hold_out(request: Request, options: Options) -> tuple[Order, ...]:
    held = orders.few_samples(request.data, request.samples, **request.common)
    return held.adapt, _first(held.validate, request.held_out_samples)


def _few_classes(request: Request, options: FewClassesOptions) -> tuple[Order, ...]:
    chosen: Any = {"validate": options.validate_on, "disjoint": options.disjoint, "samples": request.samples}
    held = orders.few_classes(request.data, options.classes, **chosen, **request.common)
    return held.adapt, _first(held.validate, request.held_out_samples)


def _cross_domain(request: Request, options: Options) -> tuple[Order, ...]:
    adapt = orders.few_samples(request.source, request.samples, **request.common).adapt
    return adapt, _first(orders.iid(request.data, **request.common), request.held_out_samples)


def _first(order: Order, count: int) -> Order:
    return order if count < 0 or count >= len(order) else reorder(order, np.arange(count))


_CAMERAS_SEE = "What real cameras see: few classes, repeated frames, bad frames, changing domains."
_IN_A_ROW = "One domain after the other, without a reset."
ORDERS: dict[tuple[str, str], OrderKind] = {
    # one domain
    ("online", "iid"): OrderKind("iid", "Samples of one domain at random.", Options, _made(orders.iid)),
    ("online", "imbalanced"): OrderKind(
        "imbalanced", "One domain with a long tail of classes.", ImbalancedOptions, _made(orders.imbalanced)
    ),
    ("online", "correlated"): OrderKind(
        "correlated", "One domain whose classes come in bursts.", CorrelatedOptions, _made(orders.correlated)
    ),
    ("online", "stored"): OrderKind(
        "stored", "Samples as they are stored in the data, such as a recorded stream.", Options, _made(orders.stored)
    ),
    ("online", "real"): OrderKind("real", _CAMERAS_SEE, RealOptions, _real),
    # through all domains, without a reset
    ("continual", "real"): OrderKind("real", _CAMERAS_SEE, RealOptions, _real),
    ("continual", "iid"): OrderKind("continual", _IN_A_ROW, ContinualOptions, _skewed(orders.continual)),
    ("continual", "correlated"): OrderKind(
        "correlated", _IN_A_ROW, CorrelatedDomainsOptions, _skewed(orders.continual)
    ),
    ("continual", "imbalanced"): OrderKind(
        "imbalanced", _IN_A_ROW, ImbalancedDomainsOptions, _skewed(orders.continual)
    ),
    ("continual", "recurring"): OrderKind(
        "recurring", "The sequence of domains several times over.", RecurringOptions, _skewed(orders.recurring)
    ),
    ("continual", "gradual"): OrderKind(
        "gradual", "Severity 1 to 5 and back, corruption after corruption.", ContinualOptions, _skewed(orders.gradual)
    ),
    ("continual", "mixed"): OrderKind("mixed", "Samples of all domains at random.", Labels, _skewed(orders.mixed)),
    ("continual", "cameras"): OrderKind(
        "cameras", "One or more cameras in each domain, interleaved.", CameraOptions, _skewed(_cameras)
    ),
    # scored on other samples, with the state frozen
    ("hold-out", "iid"): OrderKind(
        "hold-out", "Adapt to some samples of a domain, score the others.", Options, _hold_out
    ),
    ("hold-out", "few-classes"): OrderKind(
        "few-classes", "Adapt to some classes of a domain, score other samples.", FewClassesOptions, _few_classes
    ),
    ("cross-domain", "iid"): OrderKind("cross-domain", "Adapt to one domain, score another.", Options, _cross_domain),
}
"""All orders, by protocol and kind; other combinations are invalid."""


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
