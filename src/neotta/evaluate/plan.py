"""What to measure: a plan says what is varied, and expands into single runs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from neotta.adapters.registry import own_title
from neotta.data.orders import find_order
from neotta.errors import CodeError, OptionError, suggestion
from neotta.evaluate.records import content_key

OWN_CODE = re.compile(r"([^:@]+\+)?py:.+?:\w+")
"""The name of a method that is defined in a file or module, alone or at the end of a stack."""


class MethodPlan(BaseModel):
    """A method with its options; an option with a list of values is varied over them.

    Attributes:
        method: Name of a method, or a stack such as `"neo+lame"`.
        preset: `"paper"`, or what else the method offers.
        options: Values or lists of values by name.
        tuned: How the options were chosen, if they were (see `neotta.evaluate.tuning`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    preset: str = "paper"
    options: dict[str, Any] = {}
    tuned: dict[str, Any] | None = Field(default=None, exclude=True)

    @field_validator("options")
    @classmethod
    def _values(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, values in value.items():
            if values == []:
                raise OptionError(f"the option {name!r} of a method has no value: its list is empty")
        return value

    @classmethod
    def parse(cls, text: str) -> MethodPlan:
        """Read `"tent"`, `"neo-continual:alpha=0.05|0.1,debias=true"`, `"sar@original"` or `"py:my.py:Mine:lr=0.1"`."""
        own = OWN_CODE.match(text.strip())
        start = own.end() if own else 0
        name, _, assignments = text.strip()[start:].partition(":")
        name, _, preset = name.partition("@")
        name = text.strip()[:start] + name
        options: dict[str, Any] = {}
        for part in filter(None, assignments.split(",")):
            option, equals, value = part.partition("=")
            if not equals:
                raise OptionError(f"method {text!r}: options are written name=value, got {part!r}")
            values = [parse_value(each) for each in value.split("|")]
            options[option.strip()] = values if len(values) > 1 else values[0]
        return cls(method=name, preset=preset or "paper", options=options)

    def grid(self) -> Iterator[dict[str, Any]]:
        varied = [value if isinstance(value, list) else [value] for value in self.options.values()]
        for values in itertools.product(*varied):
            yield dict(zip(self.options, values, strict=True))


def split_methods(text: str) -> list[str]:
    """Split `"none,neo-continual:alpha=0.1|0.5,debias=true,tent"` into its three methods.

    Commas stand between methods and between the options of one: what reads `name=value` belongs to the method before.
    """
    methods: list[str] = []
    for piece in text.split(","):
        name, equals, _ = piece.partition("=")
        if methods and equals and ":" not in name:
            methods[-1] += f",{piece}"
        else:
            methods.append(piece)
    return methods


def method_entry(entry: Any) -> Any:
    """An entry of a plan as `MethodPlan` takes it: a name, or options beside the name."""
    if isinstance(entry, str):
        return MethodPlan.parse(entry)
    if isinstance(entry, Mapping) and "method" not in entry:
        raise OptionError(f"a method of the plan needs the entry 'method', its name: got {dict(entry)!r}")
    if isinstance(entry, Mapping) and "options" not in entry:
        known = {name: value for name, value in entry.items() if name in ("method", "preset")}
        return {**known, "options": {name: value for name, value in entry.items() if name not in known}}
    return entry


def parse_value(text: str) -> Any:
    """A number, a truth value, nothing, or a word."""
    words = {"true": True, "false": False, "none": None}
    text = text.strip()
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


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
    domains: tuple[str, ...]
    source_domain: str | None = None
    order: str = "iid"
    order_options: dict[str, Any] = {}
    samples: int = 512
    at_most: bool = False  # domains that have fewer samples show all of theirs
    held_out_samples: int = -1
    seed: int = SEEDS[0]
    batch_size: int = 64
    tuned: dict[str, Any] | None = None

    @property
    def domain(self) -> str:
        """The domain that is scored, or the number of domains."""
        return self.domains[0] if len(self.domains) == 1 else f"{len(self.domains)} domains"

    @property
    def title(self) -> str | None:
        """The name of a method of one's own."""
        return own_title(self.method)

    @property
    def order_key(self) -> str:
        """A hash of everything that the orders of the run depend on."""
        return content_key(self.model_dump(mode="json", exclude={"method", "preset", "options", "tuned"}))

    @property
    def separate_states(self) -> bool:
        """Whether each camera is adapted to by itself."""
        return bool(find_order(self.order).check(self.order_options).get("separate", False))


class Plan(BaseModel):
    """Everything a sweep is made of. Lists are varied over; all combinations are run.

    Attributes:
        model: What `neotta.load_model` takes.
        model_options: Further arguments of `neotta.load_model`, such as `checkpoint` or `num_classes`.
        data: What `neotta.data.open_data` takes: `"digits"`, `"imagenet-c=PATH"`, a path.
        domains: Names or patterns of the data's domains; all of them if empty.
        corruptions: Corrupt the data's images in these ways, each a domain of its own (`"all"` for the 15), with a
            severity (`"fog/3"`) or without.
        severities: Severities of corruptions without one, 1 to 5.
        corruption_preset: `"imagenet"`, `"tiny"` or `"cifar"`; by default chosen by the size of the images.
        source: Clean images for methods that need some (FOA), as `PATH` or `PATH:domain`; by default those of the data,
            if it has a clean domain.
        class_names: The model's class, by name or number, for each class of the data that the model calls otherwise.
        group_by: Images that belong together, such as the frames of a clip, count as one unit in intervals and
            verdicts: `"folder"`, or a regular expression for the part of an image's id that says where it belongs.
        methods: What to compare.
        tune: Choose among several values of an option by accuracy on these domains, none of which is reported:
            `"extra"` for the four extra corruptions, or names.
        order: The order of the samples, as `neotta orders` lists them, with options or without:
            `"correlated:delta=0.1"`. It says which domains a run goes through, and which samples it scores.
        order_options: Options of the order.
        samples: Number of samples to adapt to; -1 for all. By default 512, or all of a domain that has fewer.
        held_out_samples: Number of other samples to score, at most, if the order scores others; -1 for all.
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
    class_names: dict[str, str] = {}
    group_by: str | None = None
    methods: list[MethodPlan] = Field(default=[MethodPlan(method=name) for name in METHODS], min_length=1)
    tune: list[str] = []
    order: str = "iid"
    order_options: dict[str, Any] = Field(default={}, validate_default=True)
    samples: list[Annotated[int, AfterValidator(_some)]] = Field(default=[512], min_length=1)
    held_out_samples: int = Field(default=-1, ge=-1)
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=list(SEEDS), min_length=1)
    batch_sizes: list[Annotated[int, Field(ge=1)]] = Field(default=[64], min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _written(cls, entries: Any) -> Any:
        """Read an order with its options; a gradual one has all severities, unless they are given."""
        if not isinstance(entries, Mapping) or not isinstance(entries.get("order"), str):
            return entries
        written = MethodPlan.parse(entries["order"])
        levels = {"severities": [1, 2, 3, 4, 5]} if written.method == "gradual" and entries.get("corruptions") else {}
        options = written.options or entries.get("order_options", {})
        return {**levels, **entries, "order": written.method, "order_options": options}

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
        if "order" in info.data:
            find_order(info.data["order"]).check(value)
        return value

    @field_validator("domains", "corruptions", "tune", "severities", "samples", "batch_sizes", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return value if isinstance(value, (list, tuple)) else [value]

    @classmethod
    def make(cls, entries: Mapping[str, Any]) -> Plan:
        """Check a plan; an `OptionError` names an unknown key or a wrong value."""
        if not isinstance(entries, Mapping):
            raise OptionError(f"a plan is a table of entries, got {type(entries).__name__}")
        try:
            return cls.model_validate(dict(entries))
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
        kind = find_order(self.order)
        return [
            Run(
                method=plan.method,
                preset=plan.preset,
                options=options,
                order=self.order,
                order_options=self.order_options,
                domains=scored,
                source_domain=source,
                samples=samples,
                at_most="samples" not in self.model_fields_set,
                held_out_samples=self.held_out_samples if kind.scores_others else -1,
                seed=seed,
                batch_size=batch_size,
                tuned=plan.tuned,
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
        if find_order(self.order).through:
            return [(None, tuple(domains))]
        if self.order == "cross-domain":
            return [(source, (target,)) for source in domains for target in domains]
        return [(None, (domain,)) for domain in domains]


def seed_list(count: int) -> list[int]:
    """The first seeds: those of the paper, then 1, 2, ..."""
    if count < 1:
        raise OptionError("at least one seed is needed")
    if count > MOST_SEEDS:
        raise OptionError(
            f"the number of seeds is at most {MOST_SEEDS}; one seed is a list: [{count}] (--seeds {count},)"
        )
    return [*SEEDS, *range(1, count)][:count]


_OWN = re.compile(r"(^|\+)\s*py:")
CODE_OPTIONS = frozenset({"trust_remote_code", "code_revision", "use_kernels", "kernel_config", "custom_generate"})
"""Options of transformers that run code of the model's folder or repository."""


def check_code(entries: Mapping[str, Any], source: str, *, allowed: bool) -> None:
    """Raise a `CodeError` if entries of a plan or study run code, unless that is allowed."""
    texts = [] if allowed else [*code_in(entries)]
    if texts:
        raise CodeError(f"{source} runs code ({', '.join(texts)}): pass --allow-code if you trust it")


def code_in(value: Any, name: str = "") -> Iterator[str]:
    """What in the entries of a plan runs code: `py:` names, and options that load code with a model."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from code_in(entry, str(key))
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from code_in(entry, name)
    elif (name in CODE_OPTIONS and value) or _is_hub_kernel(name, value):
        yield f"{name}={value}"
    elif isinstance(value, str) and _OWN.search(value):
        yield value


def _is_hub_kernel(name: str, value: Any) -> bool:
    return name.endswith("attn_implementation") and isinstance(value, str) and "/" in value
