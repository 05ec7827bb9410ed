"""The options of `LogitRecenter`: from names and numbers to a rule."""

from __future__ import annotations

import inspect
import os
from typing import Any, Literal, get_args

from neotta.deploy._logit_input import Estimator, bias_of, inverse_of, weight_of
from neotta.deploy._logit_memory import LogitMeanRule, LogitMemory
from neotta.errors import OptionError
from neotta.neo.class_means import ClassMeans
from neotta.neo.reference_file import Reference, as_reference, for_logits
from neotta.neo.rules import Rule, Weighting
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_rule import StreamRule

LogitRule = Literal["neo-stream", "neo"]
LogitShrinkage = Literal["james-stein", "james-stein-logits"]

OPTIONS = {  # of each rule
    "neo-stream": ("gate", "stay", "window", "prior", "reference"),
    "neo": ("weighting", "alpha", "debias", "uniform_bias", "shrinkage"),
}


class LogitOptions(Estimator):
    """An estimator with the options of `LogitRecenter`, which are validated only on use, as scikit-learn requires."""

    bias: Any
    rule: LogitRule
    gate: float
    stay: float
    window: float | None
    prior: bool
    weighting: Weighting
    alpha: float | None
    debias: bool
    uniform_bias: bool
    shrinkage: LogitShrinkage | None
    weight: Any
    reference: Reference | str | os.PathLike[str] | None

    def _kind(self, classes: int) -> dict[str, Any]:
        """What two states must have in common."""
        options = {name: getattr(self, name) for name in OPTIONS[self.rule] if name != "reference"}
        if self.reference is not None:
            options["reference"] = as_reference(self.reference).digest
        head = fingerprint({"bias": bias_of(self.bias, classes)})
        return {"kind": "logits", "classes": classes, "rule": self.rule, "options": options, "bias": head}

    def _new(self, classes: int) -> LogitMemory:
        """An empty state for these options."""
        bias, known = bias_of(self.bias, classes), None
        if self.reference is not None and self.rule == "neo-stream":
            weight = None if self.weight is None else weight_of(self.weight, classes)
            known = for_logits(self.reference, classes, None if self.bias is None else bias, weight)
        rule = self._checked_rule(classes, None if known is None else known.classes)
        return LogitMemory(rule, bias if known is None else known.origin)

    def _checked_rule(self, classes: int, means: ClassMeans | None) -> Rule:
        if self.rule not in OPTIONS:
            more = " (NEO-Continual is rule='neo' with alpha=0.1, NEO-MSE with uniform_bias=True)"
            raise OptionError(f"rule is {self.rule!r}: expected 'neo-stream' or 'neo'{more}")
        defaults = inspect.signature(type(self).__init__).parameters
        for rule, names in OPTIONS.items():
            given = [name for name in names if getattr(self, name) != defaults[name].default]
            if rule != self.rule and "reference" in given:
                raise OptionError(
                    "a reference needs rule='neo-stream' here: NEO scales it by how far embeddings shrink; logits do "
                    "not show that"
                )
            if rule != self.rule and given:
                raise OptionError(f"{given[0]} is an option of rule={rule!r}, but the rule is {self.rule!r}")
        if self.rule == "neo-stream":
            return StreamRule(self.gate, self.stay, self.window, self.prior, means)
        if self.shrinkage not in (None, *get_args(LogitShrinkage)):
            raise OptionError(f"shrinkage is {self.shrinkage!r}: expected None, 'james-stein' or 'james-stein-logits'")
        inverse = inverse_of(self.weight, classes) if self.shrinkage == "james-stein" else None
        shrinkage: Any = "james-stein" if self.shrinkage else None
        return LogitMeanRule(self.weighting, self.alpha, self.debias, shrinkage, inverse=inverse)
