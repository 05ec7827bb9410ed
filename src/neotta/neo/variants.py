"""The variants of NEO and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from neotta.errors import OptionError
from neotta.neo.clean_logits import CleanLogits
from neotta.neo.mean import MeanRule, Shrinkage, Weighting
from neotta.neo.state import Rule
from neotta.neo.stream import StreamRule
from neotta.options import Options


class NEOOptions(Options):
    weighting: Weighting = Field(
        "sample", description='"sample" counts every sample equally, "batch" every batch (the paper\'s pseudo-code).'
    )
    shrinkage: Shrinkage | None = Field(
        None, description='"james-stein" scales the mean down while few samples have been seen.'
    )


class NEOContinualOptions(Options):
    alpha: float = Field(0.1, ge=0, le=1, description="Weight of a new batch in the moving average.")
    debias: bool = Field(False, description="Correct the bias of the moving average towards its zero start.")


class NEOBNOptions(NEOOptions):
    presets: ClassVar = {"paper": {"statistics": "batch"}, "original": {"statistics": "batch"}}

    statistics: Literal["batch", "ema"] = Field(
        "ema",
        description='"ema" normalises with a moving average that starts at the stored statistics, "batch" with the '
        "current batch, which must be large.",
    )
    momentum: float = Field(0.05, ge=0, le=1, description="Weight of 16 images in the moving average.")


class NEOStreamOptions(Options):
    gate: float | None = Field(
        None,
        ge=0,
        description="Least skewness at which shift and label can be told apart; None: 0.6 (from 500 classes on 0.5).",
    )
    stay: float = Field(0.98, gt=0, lt=1, description="Probability that a sticky stream repeats its last label.")
    window: float | None = Field(32.0, gt=0, description="The short time scale in label draws; None for all time.")
    prior: bool = Field(True, description="Use the order of the samples; off where it means nothing.")


VARIANTS: dict[str, type[Options]] = {
    "neo": NEOOptions,
    "neo-continual": NEOContinualOptions,
    "neo-mse": NEOOptions,
    "neo-bn": NEOBNOptions,
    "neo-stream": NEOStreamOptions,
}


def options_of(method: str, values: Mapping[str, Any]) -> Options:
    """Validate the options of a variant."""
    others = [name for name, kind in VARIANTS.items() if values.keys() <= kind.model_fields.keys()]
    wrong = [name for name in values if name not in VARIANTS[method].model_fields]
    if wrong and others:
        call = ", ".join(f"{name}={value!r}" for name, value in values.items())
        takes = ", ".join(VARIANTS[method].model_fields)
        raise OptionError(
            f"method {method!r} has no option {wrong[0]!r}: it takes {takes}. Name the method that has it: "
            f"neotta.adapt(model, {others[0]!r}, {call})"
        )
    return VARIANTS[method].make(method, values)


def rule_of(options: Options, clean: CleanLogits | None = None) -> Rule:
    """The rule described by the options of a variant."""
    values = options.given()
    if isinstance(options, NEOStreamOptions):
        return StreamRule(**values, clean=clean)
    names = ("weighting", "alpha", "debias", "shrinkage")
    return MeanRule(**{name: value for name, value in values.items() if name in names})


def mergeable(options: Options) -> bool:
    """Whether states of a variant can be merged: moving averages depend on the order of their batches."""
    return rule_of(options).mergeable and options.given().get("statistics") != "ema"
