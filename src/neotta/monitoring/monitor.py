"""The monitor: tracks the embeddings of a model, and raises an alarm when they change suddenly."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from neotta.adapters.neo import Recentering
from neotta.errors import InputError, OptionError
from neotta.monitoring.change import REFERENCE, ChangeDetector
from neotta.monitoring.label_draws import LabelDraws
from neotta.monitoring.library import Domain, DomainLibrary, Proximity, rank
from neotta.monitoring.rank_evidence import Alarm, Floats
from neotta.monitoring.targets import Position, equivalent_samples, find_target, restart
from neotta.neo.files import entries
from neotta.neo.state import LARGEST
from neotta.neo.statefile import write_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.variants import VARIANTS

Action = Literal["none", "reset", "nearest"]
Unit = Literal["label", "sample"]


@dataclass(frozen=True)
class Change:
    """An alarm, and the action that was taken.

    Attributes:
        sample: Number of samples seen when the alarm was raised.
        since: Number of samples since the most likely time of the change (at most 256).
        moved: Distance of their offset from that before the change.
        nearest: The nearest known domain, if the library has any.
        action: The action taken; `"none"` if the model is frozen.
        worth: For `"nearest"`, the number of samples that the known domain counts as.
    """

    sample: int
    since: int
    moved: Proximity
    nearest: Proximity | None
    action: Action
    worth: int


@dataclass(frozen=True)
class Status:
    """Status of a monitor.

    Attributes:
        samples: Number of samples seen.
        rejected: Number of samples excluded because of NaN, Inf or numbers beyond 1e6.
        current: Number of samples since the last change, which the distances and speeds below refer to.
        alarms: Number of changes detected.
        ready: Whether the test for changes has started.
        evidence: How close the next alarm is, 0 to 1.
        origin: Distance from clean data: from the reference, if there is one, or from zero.
        model: Distance from what the model has learnt; None without a model.
        speed: Distance that the mean of a short window moves in 100 samples.
        speed_noise: Speed expected from sampling noise alone.
        domains: Distances from the known domains, nearest first.
    """

    samples: int
    rejected: int
    current: int
    alarms: int
    ready: bool
    evidence: float
    origin: Proximity
    model: Proximity | None
    speed: float
    speed_noise: float
    domains: tuple[Proximity, ...]


class Monitor:
    """Monitors the embeddings of an adapted model.

    It tracks where the current domain lies, compares it with known domains, and raises an alarm when the
    embeddings change suddenly. Frames of a camera depend on each other, so by default only the first sample of each run
    of the same answer is tested, and a change of the labels alone raises no alarm (`label_changes` counts them). If the
    tested samples are independent and identically distributed, the probability of a false alarm within n of them is at
    most `false_alarm_rate` · n.

    The monitor sees a batch before the model does, so an action already applies to the batch that raises the alarm. No
    action is taken on a frozen model. Remove the monitor before compiling or pickling a model.

    Args:
        model: A model adapted by `neotta.adapt`, a NEO head, or an adapter of the NEO family. None to only pass
            embeddings to `observe`.
        library: Known domains: a library, or its folder.
        false_alarm_rate: The default means at most 1 % in 10,000 samples.
        action: What to do with the model's state on an alarm: `"none"`, `"reset"` (restart from the samples since the
            change), or `"nearest"` (the same, combined with the nearest known domain, weighted by its expected error).
        on_change: Called with every `Change`, in the thread that runs the model.
        warmup: Number of samples before the test for changes starts.
        memory: Number of samples after which the test is refitted, in the long run.
        head: Name of the head, for a model with several.
        stream: The stream to monitor, for a model adapted with `streams=True`.
        unit: What is tested: `"label"`, the first sample of each run of the same answer, or `"sample"`, every sample,
            for streams whose samples are independent. Without a model there are no answers: every sample is tested.
        attach: Whether to watch the model's calls. If not, pass the embeddings to `observe` before calling the model.
    """

    def __init__(
        self,
        model: nn.Module | Recentering | None = None,
        library: DomainLibrary | str | os.PathLike[str] | None = None,
        *,
        false_alarm_rate: float = 1e-6,
        action: Action = "none",
        on_change: Callable[[Change], None] | None = None,
        warmup: int = 128,
        memory: int = 1024,
        head: str | None = None,
        stream: StreamId | None = None,
        unit: Unit = "label",
        attach: bool = True,
    ) -> None:
        if action not in get_args(Action):
            raise OptionError(f"action is {action!r}: expected one of {', '.join(map(repr, get_args(Action)))}")
        if unit not in get_args(Unit):
            raise OptionError(f"unit is {unit!r}: expected 'label' or 'sample'")
        if action == "nearest" and library is None:
            raise OptionError("action 'nearest' needs a library of known domains")
        if action != "none" and model is None:
            raise OptionError(f"action {action!r} needs a model to act on")
        if on_change is not None and not callable(on_change):
            raise OptionError(f"on_change is {on_change!r}: expected a callable")
        self.library = library if isinstance(library, DomainLibrary | None) else DomainLibrary(library)
        self.action: Action = action
        self.unit: Unit = "sample" if model is None else unit
        self.on_change = on_change
        self.samples = 0
        self.rejected = 0
        self.changes: list[Change] = []
        self.label_changes = 0
        self._options: dict[str, Any] = {"false_alarm_rate": false_alarm_rate, "warmup": warmup, "memory": memory}
        ChangeDetector(1, **self._options)  # validates the options
        self._lock = threading.RLock()
        self._detector: ChangeDetector | None = None
        self._position: Position | None = None
        self._target = None if model is None else find_target(model, head, stream)
        if self._target is not None:
            self._begin(self._target.neo.in_features)
        self._end = self._target.watch(self.observe) if self._target is not None and attach else None

    # ---- public methods

    @torch.no_grad()
    def observe(self, embeddings: Tensor | NDArray[np.floating]) -> list[Change]:
        """Add a batch of embeddings, (..., d), and return the changes detected in it."""
        rows = _rows(embeddings)
        with self._lock:
            detector = self._detector or self._begin(rows.shape[1])
            changes = self._observe(detector, rows)
        for change in changes:
            if self.on_change is not None:
                self.on_change(change)
        return changes

    def status(self) -> Status:
        """Return the current status."""
        with self._lock:
            detector, place, target = self._detector, self._here(), self._target
            offset, count, variance = place.offset(), place.count(), place.variance()
            zero = Domain("origin", torch.zeros_like(offset) if target is None else target.origin(), 0, 0.0, "")
            moving, noise = _speed(detector.recent(REFERENCE)) if detector is not None else (math.nan, math.nan)
            return Status(
                samples=self.samples,
                rejected=self.rejected,
                current=count,
                alarms=len(self.changes),
                ready=detector is not None and detector.ready,
                evidence=0.0 if detector is None else detector.evidence,
                origin=rank(offset, [zero], count, variance)[0],
                model=None if target is None else rank(offset, [target.domain()], count, variance)[0],
                speed=moving,
                speed_noise=noise,
                domains=tuple(rank(offset, self._domains(), count, variance)),
            )

    @property
    def mean(self) -> Tensor:
        """Mean of the embeddings since the last change, (d,) float64."""
        return self._here().mean()

    @property
    def head_name(self) -> str:
        """Name of the monitored head."""
        return "" if self._target is None else self._target.name

    @property
    def fingerprint(self) -> str:
        """Hash of the weights of the monitored head; empty without a model."""
        return "" if self._target is None else self._target.fingerprint

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the domain since the last change, as the state of a model adapted by NEO, or by NEO-Stream if it is."""
        if not self.fingerprint:
            raise OptionError("this monitor has no model: a domain must belong to a head")
        streams = self._here().streams
        method = "neo" if streams.rule.space == "embeddings" else "neo-stream"
        options = VARIANTS[method]().model_dump(mode="json")
        if method == "neo-stream":
            options = {name: getattr(streams.rule, name) for name in options}
        about = {"kind": "model", "method": method, "options": options, "heads": {self.head_name: self.fingerprint}}
        state = entries(streams.layout, [], streams.table, many=False)
        tensors = {f"{self.head_name}.{name}": tensor for name, tensor in state.items()}
        write_state(path, tensors, about)

    def reset(self) -> None:
        """Reset the monitor, except for the number of samples and alarms; the model is not changed."""
        with self._lock:
            if self._position is not None:
                self._begin(len(self.mean))

    def remove(self) -> None:
        """Stop watching the model's calls."""
        if self._end is not None:
            self._end()
            self._end = None

    def __repr__(self) -> str:
        return f"<Monitor, action={self.action!r}: {self.samples} samples, {len(self.changes)} changes>"

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    # ---- processing of a batch

    def _here(self) -> Position:
        if self._position is None:
            raise InputError("this monitor has seen no embeddings yet")
        return self._position

    def _new_position(self, features: int, *parts: Floats) -> Position:
        target = self._target
        position = Position(features, None if target is None or target.in_embeddings else target.neo)
        for part in parts:
            position.add(part)
        return position

    def _begin(self, features: int) -> ChangeDetector:
        self._position = self._new_position(features)
        self._draws = LabelDraws(self._target.neo) if self._target is not None and self.unit == "label" else None
        self._detector = ChangeDetector(features, **self._options)
        return self._detector

    def _observe(self, detector: ChangeDetector, rows: Floats) -> list[Change]:
        usable = (np.abs(rows) <= LARGEST).all(1)
        self.rejected += int((~usable).sum())
        rows = rows[usable]
        tested = np.arange(len(rows)) if self._draws is None else self._draws.starts(rows)
        changes, start = [], 0
        while start < len(rows):
            coming = tested[tested >= start]
            alarm = detector.observe(rows[coming])
            stop = len(rows) if alarm is None else int(coming[alarm.position]) + 1
            self.samples += stop - start
            self._here().add(rows[start:stop])
            if alarm is not None:
                since = detector.recent(alarm.since)
                if self._draws is not None and not self._draws.shifted(since):
                    self.label_changes += 1
                    detector.restart(since)
                else:
                    changes.append(self._change(detector, alarm, rows[stop:], int(np.sum(tested < stop))))
            start = stop
        if self._draws is not None:
            self._draws.remember(rows[tested])
        self.changes += changes
        return changes

    def _change(self, detector: ChangeDetector, alarm: Alarm, coming: Floats, in_batch: int) -> Change:
        """Start a new domain, to which the rest of the batch, (n, d), most likely belongs too.

        Of the tested samples up to the alarm, the model has not seen the last `in_batch` yet.
        """
        if self._draws is not None:
            self._draws.restart()
        before = self._here()
        known = _trim(detector.recent(alarm.since), coming, self.mean.numpy())
        detector.restart(known)
        self._position = self._new_position(detector.features, known)
        fresh = self._new_position(detector.features, known, coming)
        offset, count = fresh.offset(), fresh.count()
        # A few samples may be on the wrong side of the change, which can only increase a variance.
        variance = min(side.variance() for side in (fresh, before) if side.count() > 1)
        domains = {domain.name: domain for domain in self._domains()}
        near = next(iter(rank(offset, domains.values(), count, variance)), None)
        target = self._target if self._target is not None and self._target.neo.adapting else None
        counts = 0
        if target is not None and self.action != "none":
            seen = known[: max(0, len(known) - in_batch)]
            domain = domains[near.domain] if self.action == "nearest" and near is not None else None
            if domain is not None and near is not None:
                counts = equivalent_samples(near.distance, variance, count, domain)
            restart(target, domain, counts, seen, variance)
        old = Domain("before", before.offset(), before.count(), math.nan, "")
        moved = rank(offset, [old], count, variance)[0]
        return Change(self.samples, len(known), moved, near, self.action if target else "none", counts)

    def _domains(self) -> list[Domain]:
        if self.library is None:
            return []
        space = "embeddings" if self._target is None or self._target.in_embeddings else "logits"
        mine = [domain for domain in self.library if domain.space == space]
        return mine if self._target is None else [each for each in mine if each.fingerprint == self.fingerprint]


def _rows(embeddings: Tensor | NDArray[np.floating]) -> Floats:
    """Convert embeddings to float64 on the CPU, (n, d)."""
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().cpu().double().numpy()
    rows = np.asarray(embeddings, dtype=np.float64)
    if rows.ndim < 2:
        raise InputError(f"expected embeddings of shape (batch, features), got {rows.shape}")
    return rows.reshape(-1, rows.shape[-1])


def _trim(known: Floats, coming: Floats, old: Floats) -> Floats:
    """Drop the leading samples that are nearer to the old mean than to the new one."""
    new = np.concatenate([known, coming]).mean(0)
    belongs = np.square(known - new).sum(1) <= np.square(known - old).sum(1)
    return known[belongs.argmax() :] if belongs.any() else known[-1:]


def _speed(recent: Floats) -> tuple[float, float]:
    """Distance that the mean moves in 100 samples, between the halves of a window; and that expected from noise."""
    half = len(recent) // 2
    if half < 2:
        return math.nan, math.nan
    older, newer = recent[-2 * half : -half], recent[-half:]
    variance = (older.var(0, ddof=1).sum() + newer.var(0, ddof=1).sum()) / 2
    step = float(np.linalg.norm(newer.mean(0) - older.mean(0)))
    return step * 100 / half, math.sqrt(2 * variance / half) * 100 / half
