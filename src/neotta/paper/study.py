"""What to reproduce the paper on: models with their data, methods, and how much to spend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neotta.adapters.registry import find
from neotta.data.corruptions import CORRUPTIONS
from neotta.data.source import DataSource
from neotta.errors import OptionError
from neotta.evaluate.clean_images import SHIFTED_LAYOUTS
from neotta.evaluate.domains import CLEAN
from neotta.evaluate.method_plan import MethodPlan
from neotta.evaluate.plan import SEEDS, Plan

METHODS = ("none", "t3a", "sar", "lame", "tent", "cotta", "foa", "surgeon", "neo")
"""The methods that the paper compares, in its order."""


class Subject(BaseModel):
    """A model and data to put the paper's questions to.

    Attributes:
        model: What `neotta.load_model` takes.
        model_options: Its further arguments.
        data: What `neotta.data.open_data` takes.
        domains: Only these domains of the data; where it has severities, by default those of `severity`.
        corruptions: Corrupt the data in these ways. By default all 15, and none where the data is shifted as it is.
        severity: How strongly, 1 to 5.
        corruption_preset: `"imagenet"`, `"tiny"` or `"cifar"`; by default chosen by the size of the images.
        source: Clean images for methods that need some (FOA), as `PATH` or `PATH:domain`; by default those of the data,
            if it has a clean domain.
        name: What to call it; by default made from model and data.
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
    slow_continual_samples: int | None = Field(default=None, ge=1)

    def complete(self, source: DataSource) -> Subject:
        """Fill in domains and corruptions, by what the data has."""
        chosen, corruptions = self.domains, self.corruptions
        if corruptions is None:
            corruptions = [] if source.layout in SHIFTED_LAYOUTS or len(source.domains) > 1 else ["all"]
        if "all" in corruptions:
            corruptions = list(CORRUPTIONS)
        at_severity = [name for name in source.domains if name.endswith(f"/{self.severity}")]
        if not chosen and not corruptions and at_severity:
            chosen = [name for name in at_severity if name.split("/")[0] in CORRUPTIONS] or at_severity
        return self.model_copy(update={"domains": chosen, "corruptions": corruptions})

    @property
    def title(self) -> str:
        """The name of the subject, without the path of the data."""
        data = Path(self.data.split("=")[0]).name
        return self.name or (self.model if self.model == self.data else f"{self.model} on {data}")


class Study(BaseModel):
    """Subjects, methods, and how much to spend on them.

    Attributes:
        subjects: Models with their data.
        methods: What to compare.
        samples: Number of samples of each domain in a run.
        seeds: The seeds.
        slow_samples: The same for methods that need images (gradients, prompts); by default as many.
        slow_seeds: Their seeds; by default the same.
        evaluate: Number of held-out samples that are scored, at most; -1 for all.
        batch_size: Samples per batch.
        cost_batches: Number of timed batches per method.
        cost_rounds: How often time and memory are measured, in turns; more than once where the machine is busy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    subjects: list[Subject] = Field(default=[Subject()], min_length=1)
    methods: list[str] = Field(default=list(METHODS), min_length=1)
    samples: int = Field(default=512, ge=1)
    seeds: list[int] = Field(default=list(SEEDS), min_length=1)
    slow_samples: int | None = Field(default=None, ge=1)
    slow_seeds: list[int] | None = Field(default=None, min_length=1)
    evaluate: int = Field(default=-1, ge=-1)
    batch_size: int = Field(default=64, ge=1)
    cost_batches: int = Field(default=5, ge=1)
    cost_rounds: int = Field(default=1, ge=1)

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Study:
        """Check a study.

        Raises:
            OptionError: A key is unknown or a value wrong; the message names it.
        """
        try:
            study = cls.model_validate(dict(given))
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
    """A subject that was opened: what can be asked of it, and how to plan runs on it.

    Attributes:
        study: What it belongs to.
        subject: The model and data.
        methods: The methods of the study that work on this model.
        left_out: Methods that do not work on it, and why.
        domains: The shifted domains.
        images: Number of images of a domain.
        classes: Number of classes of the data.
        fewest: Number of images of the rarest class; 0 if unlabelled.
        clean: Whether there are clean versions of the same images.
        weights: A hash of the weights.
        why_not: Says why a method, also one that is not in the study, does not work on this model; nothing if it does.
    """

    study: Study
    subject: Subject
    methods: tuple[str, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    images: int = 0
    classes: int = 0
    fewest: int = 0
    clean: bool = False
    weights: str = ""
    why_not: Callable[[str], str] = field(default=lambda method: "", repr=False, compare=False)

    def can(self, method: str) -> bool:
        """Whether a method works on this model."""
        return not self.why_not(method)

    @property
    def names(self) -> list[str]:
        """The names of the methods, each once, without options."""
        return list(dict.fromkeys(MethodPlan.parse(method).method for method in self.methods))

    @property
    def slow(self) -> frozenset[str]:
        """Those of the methods that need images."""
        return frozenset(method for method in self.methods if needs_images(method))

    @property
    def title(self) -> str:
        """The name of the subject."""
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
        """The same for slow methods."""
        return min(self.study.slow_samples or self.study.samples, self.images)

    @property
    def slow_seeds(self) -> list[int]:
        """The seeds of slow methods."""
        return self.study.slow_seeds or self.study.seeds

    @property
    def reduced(self) -> bool:
        """Whether slow methods get less than the others."""
        return (self.slow_samples, self.slow_seeds) != (self.samples, self.study.seeds)

    @property
    def left_out_of_all(self) -> list[str]:
        """The methods that are not run on all images: slow ones, if the study gives them fewer samples than others."""
        return [method for method in self.methods if method in self.slow and self.slow_samples < self.samples]

    def plan(self, *methods: str, clean: bool = False, **given: Any) -> Plan:
        """A plan on this subject with the study's samples and seeds, unless others are given.

        Args:
            *methods: As `neotta run --methods` takes them.
            clean: Whether to run on the clean images, too.
            **given: Further entries of the plan.
        """
        subject = self.subject
        corruptions = list(subject.corruptions or [])
        if clean and self.clean:
            corruptions.insert(0, CLEAN)
        return Plan.make(
            {
                "model": subject.model,
                "model_options": subject.model_options,
                "data": subject.data,
                "domains": subject.domains,
                "corruptions": corruptions,
                "severities": [subject.severity],
                "corruption_preset": subject.corruption_preset,
                "source": subject.source,
                "methods": list(methods),
                "samples": [self.samples],
                "held_out_samples": self.study.evaluate,
                "seeds": self.study.seeds,
                "batch_sizes": [self.study.batch_size],
                **given,
            }
        )

    def online(self, *methods: str, clean: bool = False, **given: Any) -> list[Plan]:
        """Plans for methods of which some may be slow.

        If slow methods get fewer samples, the others are run on these, too: only the same samples compare.
        """
        asked = list(methods) or list(self.methods)
        fast = [method for method in asked if not needs_images(method)]
        samples = self.slow_samples
        if given.get("protocol") == "continual":
            samples = min(samples, self.subject.slow_continual_samples or samples)
        if len(fast) == len(asked) or (samples, self.slow_seeds) == (self.samples, self.study.seeds):
            return [self.plan(*asked, clean=clean, **given)]
        less = {"samples": [samples], "seeds": self.slow_seeds}
        plans = [self.plan(*asked, clean=clean, **{**given, **less})]
        return [*([self.plan(*fast, clean=clean, **given)] if fast else []), *plans]

    def full(self, *methods: str) -> list[Plan]:
        """Plans on all images of every domain.

        Args:
            *methods: By default all; without the slow ones if the study gives them fewer samples than the others.
        """
        asked = list(methods) or [method for method in self.methods if method not in self.left_out_of_all]
        fast = [method for method in asked if not needs_images(method)]
        if len(fast) == len(asked) or self.slow_seeds == self.study.seeds:
            return [self.plan(*asked, samples=[-1])]
        plans = [self.plan(*asked, samples=[-1], seeds=self.slow_seeds)]
        return [*([self.plan(*fast, samples=[-1])] if fast else []), *plans]

    def left_out_note(self) -> list[str]:
        """A note on the methods that are not run on all images, if there are some."""
        if not self.left_out_of_all:
            return []
        return [
            f"{self.title}: left out, because the study gives slow methods only {self.slow_samples} samples of each "
            f"domain: {', '.join(self.left_out_of_all)}."
        ]


def needs_images(method: str) -> bool:
    """Whether a method cannot run from embeddings, and so is slow."""
    return find(MethodPlan.parse(method).method).declaration.needs == "images"
