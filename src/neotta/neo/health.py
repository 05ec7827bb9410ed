"""`neotta.health`: how a model's adaptation is doing, in words and numbers, without labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from neotta.neo.head import NEOHead
from neotta.neo.recent_answers import RecentAnswers
from neotta.neo.stream_ids import StreamId
from neotta.neo.stream_rule import StreamRule
from neotta.neo.surgery import head as head_of

Verdict = Literal["starting", "good", "idle", "watch", "harm"]
FEW = 16
DOMINANT, SPOILT, REPEATED = 0.5, 0.05, 0.2
"""Shares that are worth a remark: one class or outliers above, samples that are new draws below."""

VISIBLE = 3.0
"""Number of classes that the gate of NEO-Stream asks for."""


@dataclass(frozen=True)
class Health:
    """How adapting to one stream is doing.

    Attributes:
        verdict: `"starting"` (too few samples), `"good"`, `"idle"` (no shift can be learnt), `"watch"` or `"harm"`.
        remarks: What was found, one sentence each.
        samples: Number of samples learnt from.
        rejected: Number of samples excluded because of NaN, Inf or their size.
        draws: Number of label draws they count as; NaN if the rule does not track it.
        skewness: Skewness of the logits relative to the gate; below 1 the gate is closed. NaN as above.
        sticky: Probability that the stream repeats its last label. NaN as above.
        shift: Length of what is subtracted relative to the spread of the logits. NaN as above.
        disagreement: Share of the last 64 answers that differ from the plain model's; NaN if not tracked.
        classes: Effective number of classes among them.
        top_share: Share of the most frequent class among them.
        outliers: Share of unusually long logits among them.
    """

    verdict: Verdict
    remarks: tuple[str, ...]
    samples: int
    rejected: int
    draws: float = math.nan
    skewness: float = math.nan
    sticky: float = math.nan
    shift: float = math.nan
    disagreement: float = math.nan
    classes: float = math.nan
    top_share: float = math.nan
    outliers: float = math.nan

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict}: {self.samples} samples", *(f"- {remark}" for remark in self.remarks)])


def health(model: nn.Module, *, stream: StreamId | None = None) -> Health | dict[StreamId, Health]:
    """Say how adapting is doing, from what the model remembers anyway.

    Args:
        model: An adapted model, or a head.
        stream: One stream of a model with streams; by default all of them, by id.

    Returns:
        The health of the model or of one stream; for all streams, a dictionary.

    Raises:
        InputError: The stream does not exist, or the model has no streams.
    """
    head = model if isinstance(model, NEOHead) else head_of(model)
    if head.memory.many and stream is None:
        return {name: _health(head, name) for name in head.streams.counts()}
    if stream is not None:
        _ = head.streams  # raises an error if there are none
    return _health(head, stream)


def _health(head: NEOHead, stream: StreamId | None) -> Health:
    state = {name: _array(value) for name, value in head.memory.centroid(stream).state().items()}
    evidence = RecentAnswers().evidence() if head.watch is None else head.watch.evidence(stream)
    numbers: dict[str, float] = {
        name: getattr(evidence, name) for name in ("disagreement", "classes", "top_share", "outliers")
    }
    rule = head.memory.rule
    if isinstance(rule, StreamRule):
        numbers |= _of_moments(state, rule)
    samples, rejected = int(state["count"]), int(state["rejected"])
    harm = "" if head.watch is None else head.watch.harmed.get(stream, "") or evidence.harm
    remarks = tuple(_remarks(numbers, samples, rejected, isinstance(rule, StreamRule)))
    closed = numbers.get("skewness", 1.0) < 1.0
    verdict: Verdict = "good"
    if harm:
        verdict, remarks = "harm", (f"adapting hurts: {harm}", *remarks)
    elif samples < FEW:
        verdict = "starting"
    elif closed:
        verdict = "idle"
    elif remarks:
        verdict = "watch"
    return Health(verdict, remarks, samples, rejected, **numbers)


def _of_moments(state: Mapping[str, Any], rule: StreamRule) -> dict[str, float]:
    """What the moments of NEO-Stream say, over all time."""
    weight, classes = float(state["weight"][0]), state["mean"].shape[-1]
    spread = float(state["second"][0].sum()) / max(weight, 1.0)
    skew = float(state["third"][0].sum()) / max(weight, 1.0)
    told = spread > 0 and rule.gate > 0
    return {
        "draws": weight,
        "skewness": math.sqrt(classes) * skew / (rule.gate * spread**1.5) if told else math.nan,
        "sticky": float(state["sticky"]),
        "shift": float(np.linalg.norm(state["shift"])) / math.sqrt(spread) if spread > 0 else 0.0,
    }


def _remarks(numbers: Mapping[str, float], samples: int, rejected: int, streams: bool) -> list[str]:
    found = []
    if samples < FEW:
        found.append(
            f"only {samples} samples so far: {_at_first(numbers, streams)}" if samples else "no samples so far"
        )
    elif numbers.get("skewness", 1.0) < 1.0:
        result = "nothing is subtracted" if numbers["shift"] == 0 else "no more is learnt about the shift"
        found.append(f"{_why_closed(numbers)}: {result}")
    if samples >= FEW and numbers["top_share"] > DOMINANT and numbers.get("skewness", 1.0) >= 1.0:
        found.append(
            f"one class makes {numbers['top_share']:.0%} of the last answers, which can cost accuracy: "
            "a reference of clean images makes it safer"
        )
    if samples >= FEW and numbers.get("draws", samples) < REPEATED * samples and not _hidden(numbers):
        found.append(f"frames repeat: {samples} samples count as {numbers['draws']:.0f} label draws")
    if numbers["outliers"] > SPOILT:
        found.append(f"{numbers['outliers']:.0%} of the last samples are outliers: their influence is limited")
    if rejected > SPOILT * max(samples, 1):
        found.append(f"{rejected} samples were excluded because of NaN, Inf or their size")
    if not streams:
        found.append("this rule cannot tell a label from a shift: neotta.adapt(model) can")
    return found


def _hidden(numbers: Mapping[str, float]) -> bool:
    """Whether the answers show several classes, and outliers made the other samples look alike."""
    return numbers["outliers"] > 0 and numbers["classes"] >= VISIBLE and numbers.get("skewness", 1.0) < 1.0


def _why_closed(numbers: Mapping[str, float]) -> str:
    """Why no shift can be learnt, as the start of a remark."""
    if _hidden(numbers):
        return "outliers are so large that the classes cannot be told apart"
    if numbers["classes"] >= VISIBLE:
        return f"the last answers show {numbers['classes']:.0f} classes, but their logits do not stand apart"
    return "the stream shows fewer than about three classes"


def _at_first(numbers: Mapping[str, float], streams: bool) -> str:
    """What few samples mean for the answers."""
    if not streams:
        return "their mean is mostly the samples themselves, and subtracting it can destroy the answers"
    if numbers["shift"] > 0:
        return "what is subtracted is still uncertain"
    return "answers are nearly those of the plain model"


def _array(value: Tensor) -> Any:
    return value.detach().cpu().numpy()
