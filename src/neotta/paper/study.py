"""What to reproduce the paper on: models with their data, methods, and how much to spend."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neotta.adapters.registry import find
from neotta.adapters.registry import names as parts_of
from neotta.data.corruptions import CORRUPTIONS
from neotta.errors import OptionError
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.plan import SEEDS, MethodPlan, Plan
from neotta.models.preprocess import Preprocess

METHODS = ("none", "t3a", "sar", "lame", "tent", "cotta", "foa", "surgeon", "neo")
"""The methods that the paper compares, in its order."""
RIVALS = tuple(method for method in METHODS if method not in ("none", "neo"))
"""The seven methods of others."""


class Subject(BaseModel):
    """A model and data to put the paper's questions to. What is not described here is as in a `Plan`.

    Attributes:
        domains: Only these domains of the data; where it has severities, by default those of `severity`.
        corruptions: Corrupt the data in these ways. By default all 15, and none where the data is shifted as it is.
        severity: Severity of the corruptions, 1 to 5.
        name: What to call it; by default made from model and data.
        methods: What to compare on this subject; by default the study's.
        slow_continual_samples: How many samples of each domain methods that need images get where domain follows
            domain, all of them in one run; by default as many as elsewhere.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = "digits"
    model_options: dict[str, Any] = {}
    data: str = "digits"
    domains: list[str] = []
    corruptions: list[str] | None = None
    severity: int = Field(default=5, ge=1, le=5)
    corruption_preset: Literal["imagenet", "tiny", "cifar"] | None = None
    source: str | None = None
    name: str = ""
    methods: list[str] = []
    slow_continual_samples: int | None = Field(default=None, ge=1)

    def complete(self, domains: Sequence[str], *, clean: bool) -> Subject:
        """Fill in domains and corruptions, by the domains of the data and whether it is clean: then it is corrupted."""
        chosen, corruptions = self.domains, self.corruptions
        if corruptions is None:
            corruptions = ["all"] if clean else []
        if "all" in corruptions:
            corruptions = list(CORRUPTIONS)
        at_severity = [name for name in domains if name.endswith(f"/{self.severity}")]
        if not chosen and not corruptions and at_severity:
            chosen = [name for name in at_severity if name.split("/")[0] in CORRUPTIONS] or at_severity
        return self.model_copy(update={"domains": chosen, "corruptions": corruptions})

    @property
    def title(self) -> str:
        data = Path(self.data.split("=")[0]).name
        return self.name or (self.model if self.model == self.data else f"{self.model} on {data}")


class Study(BaseModel):
    """Subjects, methods, and how much to spend on them.

    Attributes:
        subjects: Models with their data.
        methods: What to compare.
        samples: Number of samples of each domain in a run.
        seeds: The seeds.
        slow_samples: Number of samples for methods that need images (gradients, prompts); by default `samples`.
        slow_seeds: Seeds for methods that need images; by default `seeds`.
        held_out_samples: Number of held-out samples that are scored, at most; -1 for all.
        batch_size: Samples per batch.
        cost_batches: Number of timed batches per method.
        cost_rounds: How often time and memory are measured, in turns; more than once where the machine is busy.
        merge: Further files of results, such as `neotta bench -o` writes on another device.
        cache: Folder of embeddings; by default the user's cache folder.
        jobs: Number of runs at a time; by default one per core.
        device: Where the model runs; by default a GPU if there is one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    subjects: list[Subject] = Field(default=[Subject()], min_length=1)
    methods: list[str] = Field(default=list(METHODS), min_length=1)
    samples: int = Field(default=512, ge=1)
    seeds: list[int] = Field(default=list(SEEDS), min_length=1)
    slow_samples: int | None = Field(default=None, ge=1)
    slow_seeds: list[int] | None = Field(default=None, min_length=1)
    held_out_samples: int = Field(default=-1, ge=-1)
    batch_size: int = Field(default=64, ge=1)
    cost_batches: int = Field(default=5, ge=1)
    cost_rounds: int = Field(default=1, ge=1)
    merge: list[str] = []
    cache: str | None = None
    jobs: int | None = Field(default=None, ge=1)
    device: str | None = None

    @classmethod
    def make(cls, entries: Mapping[str, Any]) -> Study:
        """Check a study; an `OptionError` names an unknown key or a wrong value."""
        try:
            study = cls.model_validate(dict(entries))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = cls if len(first["loc"]) == 1 else Subject
                raise OptionError(
                    f"the study has the unknown entry {where!r}: known are {', '.join(known.model_fields)}"
                ) from None
            raise OptionError(f"entry {where!r} of the study is {first['input']!r}: {first['msg']}") from None
        if len({subject.title for subject in study.subjects}) < len(study.subjects):
            raise OptionError("two subjects of the study have the same name: give them different ones with 'name'")
        return study


@dataclass(frozen=True)
class Setting:
    """A subject that was opened: what can be asked of it, and how to plan runs on it."""

    study: Study
    subject: Subject
    domains: tuple[str, ...] = ()  # the shifted ones
    images: int = 0  # of a domain
    classes: int = 0
    fewest: int = 0  # images of the rarest class; 0 if unlabelled
    clean: bool = False  # there are clean versions of the same images
    weights: str = ""  # a hash
    preprocess: Preprocess | None = None  # what is done to images
    preset: Callable[[str], str] = lambda method: "paper"  # of a method
    why_not: Callable[[str], str] = lambda method: ""  # why any method does not work

    def suits(self, plan: Plan) -> bool:
        """Whether a plan is on this subject."""
        domains = [name for name in plan.corruptions if name != CLEAN]
        of_mine = (self.subject.model, self.subject.data, self.subject.corruptions or [], self.subject.domains)
        return of_mine == (plan.model, plan.data, domains, plan.domains)

    def can(self, method: str) -> bool:
        return not self.why_not(method)

    @property
    def methods(self) -> list[str]:
        """The methods of the study that work on this model."""
        return [method for method in self.subject.methods or self.study.methods if self.can(method)]

    @property
    def left_out(self) -> dict[str, str]:
        """Why the others do not."""
        wanted = self.subject.methods or self.study.methods
        return {method: reason for method in wanted if (reason := self.why_not(method))}

    @property
    def names(self) -> list[str]:
        """The names of the methods, each once, without options."""
        return list(dict.fromkeys(MethodPlan.parse(method).method for method in self.methods))

    @property
    def title(self) -> str:
        return self.subject.title

    @property
    def samples(self) -> int:
        """Number of samples of each domain in a run: the study's, or all."""
        return min(self.study.samples, self.images)

    @property
    def held_out_samples(self) -> int:
        """Number of samples to adapt to if others are scored: at least as many are left."""
        return min(self.study.samples, self.images // 2)

    @property
    def slow_samples(self) -> int:
        """Number of samples to adapt to with methods that need images."""
        return min(self.study.slow_samples or self.study.samples, self.images)

    @property
    def slow_seeds(self) -> list[int]:
        return self.study.slow_seeds or self.study.seeds

    @property
    def reduced(self) -> bool:
        """Whether slow methods get less than the others."""
        return (self.slow_samples, self.slow_seeds) != (self.samples, self.study.seeds)

    @property
    def left_out_of_all(self) -> list[str]:
        """The methods that are not run on all images: slow ones, if the study gives them fewer samples than others."""
        return [method for method in self.methods if needs_images(method) and self.slow_samples < self.samples]

    def plan(self, *methods: str, clean: bool = False, **entries: Any) -> Plan:
        """A plan on this subject, with its clean images if `clean`, and with the study's samples and seeds.

        Further entries of the plan may be given, or others in place of the study's.
        """
        shared = ("model", "model_options", "data", "domains", "corruption_preset", "source")
        return Plan.make(
            {
                **{name: getattr(self.subject, name) for name in shared},
                "corruptions": [*([CLEAN] if clean and self.clean else []), *(self.subject.corruptions or [])],
                "severities": [self.subject.severity],
                "methods": list(methods),
                "samples": [self.samples],
                "held_out_samples": self.study.held_out_samples,
                "seeds": self.study.seeds,
                "batch_sizes": [self.study.batch_size],
                **entries,
            }
        )

    def online(self, *methods: str, clean: bool = False, **entries: Any) -> list[Plan]:
        """Plans for methods, by default all, of which some may be slow."""
        samples = self.slow_samples
        if entries.get("order") == "continual":
            samples = min(samples, self.subject.slow_continual_samples or samples)
        return self._plans(methods or self.methods, samples, samples=[self.samples], clean=clean, **entries)

    def full(self, *methods: str) -> list[Plan]:
        """Plans on all images; by default of all methods but slow ones that the study gives fewer samples."""
        chosen = methods or [method for method in self.methods if method not in self.left_out_of_all]
        return self._plans(chosen, -1, samples=[-1])

    def _plans(self, methods: Sequence[str], slow_samples: int, **entries: Any) -> list[Plan]:
        fast = [method for method in methods if not needs_images(method)]
        less = {"samples": [slow_samples], "seeds": self.slow_seeds}
        if len(fast) == len(methods) or less == {"samples": entries["samples"], "seeds": self.study.seeds}:
            return [self.plan(*methods, **entries)]
        plans = [self.plan(*methods, **{**entries, **less})]
        return [*([self.plan(*fast, **entries)] if fast else []), *plans]

    def left_out_note(self) -> list[str]:
        why = f"because the study gives slow methods only {self.slow_samples} samples of each domain"
        names = self.left_out_of_all
        return [f"{self.title}: left out, {why}: {', '.join(names)}."] if names else []


@functools.cache
def shown_name(method: str) -> str:
    """What tables call a method: its name, or the title of a class in a file of one's own."""
    return "+".join(find(part).title if part.startswith("py:") else part for part in parts_of(method))


def in_paper_order(labels: Iterable[str]) -> list[str]:
    """Labels of methods: the paper's in its order, then the others as they come."""
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(labels, key=lambda label: places.get(method_of(label), len(places)))


def method_of(label: str) -> str:
    """The method of a label such as `"tent@original lr=0.001"`."""
    return re.split(r"@| \w+=", label)[0]


def needs_images(method: str) -> bool:
    """Whether a method cannot run from embeddings, and so is slow."""
    return find(MethodPlan.parse(method).method).declaration.needs == "images"
