"""`neotta.health`: how a model's adaptation is doing, in words and numbers, from its state alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neotta.adapters.base import Adapter
from neotta.monitoring.accuracy import most
from neotta.neo.state import Rule
from neotta.neo.stream import FEWEST, FEWEST_CLASSES, TINY, Estimates, Moments, StreamRule
from neotta.neo.stream_ids import StreamId
from neotta.neo.surgery import head as head_of

Verdict = Literal["starting", "idle", "adapting"]
FEW = 16  # samples
REJECTED, REPEATED, CHANGED = 0.05, 0.2, 0.5  # shares that are worth a remark
SEEN = 0.2  # a shift of this part of the spread would show where it is said that none is visible


@dataclass(frozen=True)
class Health:
    """How adapting to one stream is doing.

    Attributes:
        verdict: `"starting"` (too few samples), `"idle"` (no shift is subtracted) or `"adapting"`.
        remarks: What is worth knowing, one sentence each.
        samples: Number of samples learnt from.
        rejected: Number of samples not learnt from because of NaN, Inf or their size.
        changed: Share of the answers that differ from those of the plain model; NaN, as all that follows, except with
            NEO-Stream.
        draws: Number of label draws that the samples count as.
        sticky: Probability that the stream repeats its last label.
        shift: Length of what is subtracted relative to the spread of the logits.
        top_share: Expected share of the most frequent class, in the mix of labels that samples are judged by.
        signs: A word for each remark, for programs: `"rejected"`, `"cannot-tell"`, `"few-samples"`, `"few-classes"`,
            `"alike"`, `"hidden"`, `"dominated"`, `"no-shift"`, `"unclear"`, `"one-answer"`, `"repeats"`, `"prior"`,
            `"differs"` or `"changed"`.
    """

    verdict: Verdict
    remarks: tuple[str, ...]
    samples: int
    rejected: int
    changed: float = math.nan
    draws: float = math.nan
    sticky: float = math.nan
    shift: float = math.nan
    top_share: float = math.nan
    signs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict}: {self.samples} samples", *(f"- {remark}" for remark in self.remarks)])


def health(model: nn.Module | Adapter[Any], *, stream: StreamId | None = None) -> Health | dict[StreamId, Health]:
    """Say how adapting is doing, from the state alone.

    Args:
        model: An adapted model, a head, or an adapter of the NEO family.
        stream: One stream of a model with streams; by default all of them, by id.

    Returns:
        The health of the model or of one stream; for all streams, a dictionary.

    Raises:
        InputError: The stream does not exist, or the model has no streams.
        NotAdaptedError: The model is not adapted, or the adapter has no NEO head.
    """
    streams = head_of(model).streams
    if streams.many and stream is None:
        ids, states = streams.everything()
        return {item: health_of(streams.rule, state[None]) for item, state in zip(ids, states, strict=True)}
    return health_of(streams.rule, streams.state(stream))


def health_of(rule: Rule, state: Tensor) -> Health:
    """The health of one stream, given its state, (1, width)."""
    samples, rejected, changed = (int(number) for number in state[0, :3].tolist())
    remarks: dict[str, str] = {}
    if rejected > REJECTED * samples:
        remarks["rejected"] = f"{rejected} samples were not learnt from: NaN, Inf or too large"
    if not isinstance(rule, StreamRule):
        verdict: Verdict = "starting" if samples < FEW else "adapting"
        remarks["cannot-tell"] = "this rule cannot tell a label from a shift: neotta.adapt(model) can"
        return Health(verdict, tuple(remarks.values()), samples, rejected, signs=tuple(remarks))
    fields = rule.state(state.cpu().double())
    ever, lately = map(Moments.of, fields.scales[0])
    own = rule.estimates(fields.scales)
    enough, visible, mixed = (bool(flags[0, 0]) for flags in (own.enough, own.visible, own.mixed))
    classes = fields.shift.shape[1]
    shift, spread = float(fields.shift.norm()), math.sqrt(max(float(own.variance[0, 0]), 0.0))
    verdict = "starting" if samples < FEW else "adapting" if shift > 0 else "idle"
    if samples < FEW:
        remarks["few-samples"] = f"only {samples} samples so far" if samples else "no samples so far"
    elif verdict == "adapting":
        pass  # by the window at least, whatever all time shows
    elif classes < FEWEST_CLASSES:
        remarks["few-classes"] = "the model has fewer than three classes: no shift can be told from a label"
    elif not enough:
        remarks["alike"] = "the frames are all alike: nothing can be learnt from them"
    elif not visible:
        remarks["hidden"] = "one or two classes are visible, or outliers hide them: no shift can be told from a label"
    elif not mixed:
        remarks["dominated"] = "one class has more than half of the samples: no shift can be told from its label"
    elif (unseen := math.sqrt(float(own.noise[0, 0])) / spread) < SEEN:
        remarks["no-shift"] = "no shift is visible beyond noise"
    else:
        remarks["unclear"] = f"a shift shorter than {unseen:.0%} of the spread of the logits could not be seen yet"
    seen, labels = torch.split(fields.labels[0, 0], [1, classes])
    counts = labels / seen / classes if rule.prior else ever.uneven / ever.trust + 1 / classes
    top_share = float(counts.max()) if samples and counts.isfinite().all() else math.nan
    if samples >= FEW and top_share > most(len(counts)):
        remarks["one-answer"] = (
            f"the rule takes about {top_share:.0%} of the samples for one class, as after a collapse"
        )
    draws = float(ever.weight)
    if samples >= FEW and draws < REPEATED * samples and classes >= FEWEST_CLASSES:  # with fewer it counts none
        remarks["repeats"] = f"frames repeat: {samples} samples count as {draws:.0f} label draws"
    share = changed / samples if samples else 0.0
    if verdict == "idle" and changed:
        by = "by the label prior, or by a shift that was subtracted before" if rule.prior else "by an earlier shift"
        remarks["prior"] = f"{share:.1%} of the answers differ from those of the plain model all the same: {by}"
    if samples >= FEW and share > CHANGED:
        remarks["differs"] = f"{share:.0%} of the answers differ from those of the plain model"
    if rule.window is not None and enough:
        if verdict == "adapting" and _changed_lately(own):
            remarks["changed"] = "the shift has changed lately"
        elif _moved_lately(ever, lately, float(own.variance[0].max()), rule.window):
            remarks["changed"] = "what the stream shows has changed lately: a shift, or other labels"
    return Health(
        verdict,
        tuple(remarks.values()),
        samples,
        rejected,
        changed=share,
        draws=draws,
        sticky=float(fields.sticky),
        shift=shift / spread if spread > 0 else 0.0,
        top_share=top_share,
        signs=tuple(remarks),
    )


def _changed_lately(own: Estimates) -> bool:
    """Whether the window's shift differs from that of all time by more than four times the noise of both."""
    usable = own.enough & own.visible & own.mixed
    step = own.shift[0, 1] - own.shift[0, 0]
    return bool(usable[0].all()) and float(step @ step) > 4 * float(own.noise[0].sum())


def _moved_lately(ever: Moments, lately: Moments, variance: float, window: float) -> bool:
    """Whether the window's mean differs from that of all time by much more than chance."""
    step = lately.sum1 / lately.weight.clamp(min=TINY) - ever.sum1 / ever.weight.clamp(min=TINY)
    weight = float(lately.weight)  # faded from call to call: one by one, so much is worth up to two windows
    draws = max(weight, 1 / (1 / min(weight, window) - 1 / (2 * window))) if weight > 0 else 0.0
    return draws > FEWEST and draws * float(step @ step) > 2.5 * variance
