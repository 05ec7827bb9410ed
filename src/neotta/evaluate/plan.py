"""What to measure: a plan says what is varied, and expands into single runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from neotta.data.real_streams import CHANGES
from neotta.errors import OptionError, suggestion
from neotta.evaluate.method_plan import MethodPlan, method_entry, split_methods
from neotta.evaluate.order_options import THROUGH_DOMAINS, Kind, Protocol, check_order

SCORES_OTHERS = frozenset({"hold-out", "cross-domain"})
"""Protocols that score other samples than those adapted to: `held_out_samples` concerns only these."""
METHODS = ("none", "neo", "neo-stream")
"""What is compared by default."""
SEEDS = (2020, 1234, 9999)
"""The seeds of the paper; after them come 1, 2, ..."""
MOST_SEEDS = 100
"""Most seeds that a plan may ask for by number: more is a seed given for a number, as in `--seeds 2020`."""


def _some(samples: int) -> int:
    if samples < -1 or samples == 0:
        raise ValueError("at least 1, or -1 for all")
    return samples


class Run(BaseModel):
    """One adapter on one order with one seed: gives one record. See `Plan` for the entries."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    preset: str = "paper"
    options: dict[str, Any] = {}
    protocol: Protocol = "online"
    domains: tuple[str, ...]
    source_domain: str | None = None
    order: Kind = Field(default="iid", serialization_alias="stream")
    order_options: dict[str, Any] = Field(default={}, serialization_alias="stream_options")
    samples: int = 512
    held_out_samples: int = Field(default=-1, serialization_alias="evaluate")
    seed: int = SEEDS[0]
    batch_size: int = 64
    tuned: dict[str, Any] | None = None

    @property
    def domain(self) -> str:
        """The domain that is scored, or the number of domains."""
        return self.domains[0] if len(self.domains) == 1 else f"{len(self.domains)} domains"

    def entries(self, *, without: Collection[str] = ()) -> dict[str, Any]:
        """What a record says of the run, under the names that records have had from the start."""
        unset = {"tuned"} if self.tuned is None else set()
        return self.model_dump(mode="json", by_alias=True, exclude={*without, *unset})


class Plan(BaseModel):
    """Everything a sweep is made of. Lists are varied over; all combinations are run.

    Attributes:
        model: What `neotta.load_model` takes.
        model_options: Its further arguments, such as `checkpoint` or `num_classes`.
        data: What `neotta.data.open_data` takes: `"digits"`, `"imagenet-c=PATH"`, a path.
        domains: Names or patterns of the data's domains; all of them if empty.
        corruptions: Corrupt the data's images in these ways, each a domain of its own (`"all"` for the 15).
        severities: How strongly, 1 to 5.
        corruption_preset: `"imagenet"`, `"tiny"` or `"cifar"`; by default chosen by the size of the images.
        source: Clean images for methods that need some (FOA), as `PATH` or `PATH:domain`; by default those of the data,
            if it has a clean domain.
        methods: What to compare.
        tune: Choose among several values of an option by accuracy on these domains, none of which is reported:
            `"extra"` for the four extra corruptions, or names.
        protocol: `"online"` scores the samples adapted on, `"hold-out"` adapts on `samples` and scores the rest with
            a frozen state, `"continual"` runs through all domains without a reset, `"cross-domain"` adapts on one
            domain and scores another. Orders that go through domains imply `"continual"`.
        order: The order of the samples.
        order_options: Its parameters.
        samples: Number of samples to adapt to; -1 for all.
        held_out_samples: Number of other samples to score, at most, if the protocol scores others; -1 for all.
        seeds: The number of seeds, or the seeds.
        batch_sizes: Samples per batch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "digits"
    model_options: dict[str, Any] = {}
    data: str = "digits"
    domains: list[str] = []
    corruptions: list[str] = []
    severities: list[Annotated[int, Field(ge=1, le=5)]] = Field(default=[5], min_length=1)
    corruption_preset: Literal["imagenet", "tiny", "cifar"] | None = None
    source: str | None = None
    methods: list[MethodPlan] = Field(default=[MethodPlan(method=name) for name in METHODS], min_length=1)
    tune: list[str] = []
    protocol: Protocol = "online"
    order: Kind = Field(default="iid", validation_alias=AliasChoices("order", "stream"))
    order_options: dict[str, Any] = Field(
        default={}, validate_default=True, validation_alias=AliasChoices("order_options", "stream_options")
    )
    samples: list[Annotated[int, AfterValidator(_some)]] = Field(default=[512], min_length=1)
    held_out_samples: int = Field(default=-1, ge=-1, validation_alias=AliasChoices("held_out_samples", "evaluate"))
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=list(SEEDS), min_length=1)
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default=[64], min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, given: Any) -> Any:
        """Some orders need a protocol or severities: what is not given follows."""
        order = given.get("order", given.get("stream")) if isinstance(given, Mapping) else None
        options = given.get("order_options", given.get("stream_options")) if order == "real" else None
        kind = options.get("kind") if isinstance(options, Mapping) else None
        through = order in tuple(THROUGH_DOMAINS) or kind in tuple(CHANGES)  # either may be any value, also a list
        implied: dict[str, Any] = {"protocol": "continual"} if through else {}
        if order == "changing" and given.get("severities") not in (None, 5, [5]):
            raise OptionError(
                "the order 'changing' chooses severities itself: leave them out, and say how hard it should be with "
                "the option 'accuracy'"
            )
        if order == "gradual" and given.get("corruptions"):
            implied["severities"] = [1, 2, 3, 4, 5]
        return {**implied, **given} if implied else given

    @field_validator("methods", mode="before")
    @classmethod
    def _methods(cls, value: Any) -> Any:
        """Allow names, and options beside the name: `{method = "tent", lr = [1e-3, 1e-4]}`."""
        if isinstance(value, str):
            value = split_methods(value)
        return [method_entry(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return seed_list(value)
        return value

    @field_validator("order_options")
    @classmethod
    def _order(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "protocol" in info.data and "order" in info.data:
            check_order(info.data["protocol"], info.data["order"], value)
        return value

    @field_validator("domains", "corruptions", "tune", "severities", "samples", "batch_sizes", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Plan:
        """Check a plan.

        Raises:
            OptionError: A key is unknown or a value wrong; the message names it.
        """
        if not isinstance(given, Mapping):
            raise OptionError(f"a plan is a table of entries, got {type(given).__name__}")
        try:
            return cls.model_validate(dict(given))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                *inside, name = map(str, first["loc"])
                what, kind = ("a method of the plan", MethodPlan) if inside else ("a plan", cls)
                raise OptionError(f"{what} has no entry {name!r}: {suggestion(name, kind.model_fields)}") from None
            message = first["msg"].removeprefix("Value error, ")
            if isinstance(first.get("ctx", {}).get("error"), OptionError):  # it says all
                raise OptionError(message) from None
            raise OptionError(f"entry {where!r} of the plan is {first['input']!r}: {message}") from None

    def runs(self, domains: Sequence[str]) -> list[Run]:
        """All runs of the plan, on these domains."""
        shared = {"protocol": self.protocol, "order": self.order, "order_options": self.order_options}
        return [
            Run(
                method=plan.method,
                preset=plan.preset,
                options=options,
                domains=scored,
                source_domain=source,
                samples=samples,
                held_out_samples=self.held_out_samples if self.protocol in SCORES_OTHERS else -1,
                seed=seed,
                batch_size=batch_size,
                tuned=plan.tuned,
                **cast(Any, shared),
            )
            for source, scored in self._scored(domains)
            for plan in self.methods
            for options in plan.grid()
            for batch_size in self.batch_sizes
            for seed in self.seeds
            for samples in self.samples
        ]

    def _scored(self, domains: Sequence[str]) -> list[tuple[str | None, tuple[str, ...]]]:
        """The domain that is adapted to, if it is another, and the domains that are scored."""
        if self.order == "changing":  # its severities follow from calibration
            return [(None, tuple(dict.fromkeys(re.sub(r"/[1-5]$", "", domain) for domain in domains)))]
        if self.protocol == "continual":
            return [(None, tuple(domains))]
        if self.protocol == "cross-domain":
            return [(source, (target,)) for source in domains for target in domains]
        return [(None, (domain,)) for domain in domains]


def seed_list(count: int) -> list[int]:
    """The first seeds: those of the paper, then 1, 2, ...

    Raises:
        OptionError: The number is below 1, or so large that a seed was meant.
    """
    if count < 1:
        raise OptionError("at least one seed is needed")
    if count > MOST_SEEDS:
        raise OptionError(
            f"the number of seeds is at most {MOST_SEEDS}; one seed is a list: [{count}] (--seeds {count},)"
        )
    return [*SEEDS, *range(1, count)][:count]
