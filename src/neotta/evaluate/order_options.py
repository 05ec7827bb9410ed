"""Which orders go with which protocols, and which options they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from neotta.data.real_streams import CHANGES, EVERY_KIND
from neotta.errors import OptionError, suggestion

Protocol = Literal["online", "hold-out", "continual", "cross-domain"]
Kind = Literal[
    "iid",
    "few-classes",
    "imbalanced",
    "correlated",
    "real",
    "stored",
    "mixed",
    "cameras",
    "recurring",
    "gradual",
    "changing",
]
THROUGH_DOMAINS = frozenset({"mixed", "cameras", "recurring", "gradual", "changing"})
"""Orders that take all domains in one run: they imply the protocol `continual`."""

_TAIL, _BURSTS, _SEQUENCE = {"ratio"}, {"delta", "slots", "ratio"}, {"shuffle", "straddle"}
LABEL_OPTIONS = frozenset(_BURSTS)
"""Options that say how labels are distributed."""
ORDER_OPTIONS: dict[tuple[str, str], set[str]] = {
    ("online", "iid"): set(),
    ("online", "imbalanced"): _TAIL,
    ("online", "correlated"): _BURSTS,
    ("online", "real"): {"kind"},
    ("online", "stored"): set(),
    ("continual", "iid"): _SEQUENCE,
    ("continual", "imbalanced"): _SEQUENCE | _TAIL,
    ("continual", "correlated"): _SEQUENCE | _BURSTS,
    ("continual", "real"): {"kind"},
    ("continual", "mixed"): _BURSTS,
    ("continual", "cameras"): {"per_domain", "in_turn", "separate"} | _BURSTS,
    ("continual", "recurring"): {"rounds", "redraw"} | _SEQUENCE | _BURSTS,
    ("continual", "gradual"): _SEQUENCE | _BURSTS,
    ("continual", "changing"): {"accuracy", "samples_per_step", "calibration"} | _BURSTS,
    ("hold-out", "iid"): set(),
    ("hold-out", "few-classes"): {"classes", "validate", "disjoint"},
    ("cross-domain", "iid"): set(),
}
"""The options of orders, by protocol and kind; other combinations are invalid."""

ABOUT = {
    "accuracy": "accuracy in percent that the unadapted model is held at (50)",
    "calibration": "number of images, kept out of the order, that this is measured on (128)",
    "classes": "number of classes to adapt to",
    "delta": "how labels come in bursts: 0.1 strong, 10 hardly (correlated: 0.1)",
    "disjoint": "keep the classes adapted to out of the scored samples (false)",
    "in_turn": "cameras take strict turns (false)",
    "kind": f"which real stream: {', '.join(EVERY_KIND)}",
    "per_domain": "number of cameras in each domain (1)",
    "ratio": "how much more frequent the first class of a long tail is than the last (imbalanced: 10)",
    "redraw": "draw other samples in every round (false)",
    "rounds": "how often the sequence of domains comes (3)",
    "samples_per_step": "samples between two small changes of severity (8)",
    "separate": "adapt to each camera by itself (false)",
    "shuffle": "draw the sequence of domains from the seed (true)",
    "slots": "number of slots that bursts are spread over (as many as classes)",
    "straddle": "let a batch hold the end of one domain and the beginning of the next (false)",
    "validate": "number of samples to score (all)",
}
"""What each option does, with its default."""
_SWITCHES = frozenset({"disjoint", "in_turn", "redraw", "separate", "shuffle", "straddle"})


def check_order(protocol: str, order: str, options: Mapping[str, Any]) -> None:
    """Check that an order goes with a protocol and takes these options.

    Raises:
        OptionError: It does not.
    """
    if (protocol, order) not in ORDER_OPTIONS:
        protocols = " or ".join(repr(each) for each, kind in ORDER_OPTIONS if kind == order)
        raise OptionError(f"the order {order!r} goes with the protocol {protocols}, not {protocol!r}")
    known = sorted(ORDER_OPTIONS[protocol, order])
    for name, value in options.items():
        if name not in known:
            what = f"the order {order!r} of the protocol {protocol!r} has no option {name!r}"
            raise OptionError(f"{what}: {suggestion(name, known)}" if known else f"{what}, nor any other")
        if name in _SWITCHES and not isinstance(value, bool):
            raise OptionError(f"the option {name!r} of the order {order!r} is true or false, got {value!r}")
    if order == "real":
        _check_kind(protocol, options.get("kind"))
    if order == "few-classes" and "classes" not in options:
        raise OptionError("the order 'few-classes' needs the option 'classes': the number of classes to adapt to")


def _check_kind(protocol: str, kind: Any) -> None:
    """Check that a kind of real stream is there and goes with a protocol."""
    if kind is None:
        raise OptionError(f"the order 'real' needs the option 'kind', such as kind=1-class: {', '.join(EVERY_KIND)}")
    if kind not in EVERY_KIND:
        raise OptionError(f"the order 'real' has no kind {kind!r}: {suggestion(str(kind), EVERY_KIND)}")
    needed = "continual" if kind in CHANGES else "online"
    if protocol != needed:
        raise OptionError(f"the kind {kind!r} of the order 'real' goes with the protocol {needed!r}, not {protocol!r}")


def order_help() -> str:
    """All orders and their options, for `--help`."""
    lines = []
    for kind in get_args(Kind):
        names = sorted({name for (_, each), options in ORDER_OPTIONS.items() if each == kind for name in options})
        lines.append(f"{kind}: {', '.join(names)}" if names else "")
    meanings = "; ".join(f"{name}: {text}" for name, text in ABOUT.items())
    return f"By order: {'; '.join(filter(None, lines))}. Meaning and default: {meanings}."
