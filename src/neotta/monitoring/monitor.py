"""The monitor: tracks the embeddings of a model, and raises an alarm when they change suddenly."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from neotta.adapters.neo import Recentering
from neotta.errors import InputError, OptionError
from neotta.monitoring.actions import apply_action, worth
from neotta.monitoring.change import REFERENCE, ChangeDetector
from neotta.monitoring.label_draws import LabelDraws
from neotta.monitoring.library import Domain, DomainLibrary, rank
from neotta.monitoring.position import MeanPosition, Position, ShiftPosition
from neotta.monitoring.rank_evidence import Alarm, Floats
from neotta.monitoring.status import Action, Change, Status, Unit, speed
from neotta.monitoring.targets import find_target
from neotta.neo import fork_locks
from neotta.neo.centroid import Centroid
from neotta.neo.statefile import write_state
from neotta.neo.stream_ids import StreamId
from neotta.neo.variants import VARIANTS


class Monitor:
    """Monitors the embeddings of an adapted model.

    It tracks the centroid of the current domain, compares it with known domains, and raises an alarm when the
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
        action: What to do with the model's centroid on an alarm: `"none"`, `"reset"` (restart from the samples since
            the change), or `"nearest"` (the same, combined with the centroid of the nearest known domain, weighted by
            its expected error).
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
        self._lock = fork_locks.register(self, wait=False)
        self._detector: ChangeDetector | None = None
        self._centroid: Centroid | None = None
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
            detector, place = self._detector, self._here()
            mean, count, variance = place.vector(), place.count(), place.variance()
            zero = Domain("origin", torch.zeros_like(mean), 0, 0.0, "")
            model = None
            if self._target is not None:
                model = Domain("model", self._target.centre(), self._target.count, 0.0, "")
            moving, noise = speed(detector.recent(REFERENCE)) if detector is not None else (math.nan, math.nan)
            return Status(
                samples=self.samples,
                rejected=self.rejected,
                current=count,
                alarms=len(self.changes),
                ready=detector is not None and detector.ready,
                evidence=0.0 if detector is None else detector.evidence,
                origin=rank(mean, [zero], count, variance)[0],
                model=None if model is None else rank(mean, [model], count, variance)[0],
                speed=moving,
                speed_noise=noise,
                domains=tuple(rank(mean, self._domains(), count, variance)),
            )

    @property
    def centroid(self) -> Centroid:
        """Mean and variance of the embeddings since the last change."""
        if self._centroid is None:
            raise InputError("this monitor has seen no embeddings yet")
        return self._centroid

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
        place = self._here()
        method, state = "neo", self.centroid.state()
        if isinstance(place, ShiftPosition):
            method, state = "neo-stream", place.memory.state()
        tensors = {f"{self.head_name}.{name}": tensor for name, tensor in state.items()}
        options = VARIANTS[method]().model_dump(mode="json")
        about = {"kind": "model", "method": method, "options": options, "heads": {self.head_name: self.fingerprint}}
        write_state(path, tensors, about)

    def reset(self) -> None:
        """Reset the monitor, except for the number of samples and alarms; the model is not changed."""
        with self._lock:
            if self._centroid is not None:
                self._begin(self._centroid.features)

    def remove(self) -> None:
        """Stop watching the model's calls."""
        if self._end is not None:
            self._end()
            self._end = None

    def __repr__(self) -> str:
        return f"<Monitor, action={self.action!r}: {self.samples} samples, {len(self.changes)} changes>"

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    # ---- processing of a batch

    def _here(self) -> Position:
        """Where the current domain lies."""
        if self._position is None:
            raise InputError("this monitor has seen no embeddings yet")
        return self._position

    def _new_position(self, *parts: Floats) -> Position:
        """Where samples lie, (n, d)."""
        features = self.centroid.features
        position = MeanPosition(features) if self._target is None else self._target.position()
        for part in parts:
            position.add(part)
        return position

    def _set_position(self, position: Position, *rows: Floats) -> None:
        """Start a domain; the centroid of its embeddings is kept whatever the model subtracts."""
        self._position = position
        if isinstance(position, MeanPosition):
            self._centroid = position.centroid
            return
        self._centroid = Centroid(self.centroid.features, variance=True)
        for part in rows:
            self._centroid.update(torch.from_numpy(part.copy()))

    def _begin(self, features: int) -> ChangeDetector:
        self._centroid = Centroid(features, variance=True)
        self._set_position(self._new_position())
        self._draws = LabelDraws(self._target.neo) if self._target is not None and self.unit == "label" else None
        self._detector = ChangeDetector(features, **self._options)
        return self._detector

    def _observe(self, detector: ChangeDetector, rows: Floats) -> list[Change]:
        finite = np.isfinite(rows).all(1)
        self.rejected += int((~finite).sum())
        rows = rows[finite]
        tested = np.arange(len(rows)) if self._draws is None else self._draws.starts(rows)
        changes, start = [], 0
        while start < len(rows):
            coming = tested[tested >= start]
            alarm = detector.observe(rows[coming])
            stop = len(rows) if alarm is None else int(coming[alarm.position]) + 1
            self.samples += stop - start
            place = self._here()
            place.add(rows[start:stop])
            if not isinstance(place, MeanPosition):
                self.centroid.update(torch.from_numpy(rows[start:stop]))
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
        """Start a new domain.

        Args:
            detector: The detector that raised the alarm.
            alarm: The alarm.
            coming: The rest of the batch, which most likely belongs to the new domain too, (n, d).
            in_batch: Number of tested samples of this batch up to the alarm, which the model has not seen yet.
        """
        if self._draws is not None:
            self._draws.restart()
        before = self._here()
        known = _trim(detector.recent(alarm.since), coming, self.centroid.mean.numpy())
        detector.restart(known)
        self._set_position(self._new_position(known), known)
        fresh = self._new_position(known, coming)
        mean, count = fresh.vector(), fresh.count()
        # A few samples may be on the wrong side of the change, which can only increase a variance.
        variance = min(side.variance() for side in (fresh, before) if side.count() > 1)
        domains = {domain.name: domain for domain in self._domains()}
        near = next(iter(rank(mean, domains.values(), count, variance)), None)
        target = self._target if self._target is not None and self._target.neo.adapting else None
        counts = 0
        if target is not None and self.action != "none":
            seen = known[: max(0, len(known) - in_batch)]
            if self.action == "nearest" and near is not None:
                domain = domains[near.domain]
                counts = worth(near.distance, variance, count, domain)
                apply_action(target, mean, domain, counts, seen, variance)
            else:
                apply_action(target, mean, None, 0, seen, variance)
        old = Domain("before", before.vector(), before.count(), None, "")
        moved = rank(mean, [old], count, variance)[0]
        return Change(self.samples, len(known), moved, near, self.action if target else "none", counts)

    def _domains(self) -> list[Domain]:
        """The known domains of this head."""
        if self.library is None:
            return []
        found = list(self.library)
        if self._target is None:
            return [domain for domain in found if domain.space == "embeddings"]
        space = self._target.neo.memory.rule.space
        return [domain for domain in found if domain.fingerprint == self.fingerprint and domain.space == space]


def _rows(embeddings: Tensor | NDArray[np.floating]) -> Floats:
    """Convert embeddings to float64 on the CPU, (n, d)."""
    if isinstance(embeddings, Tensor):
        embeddings = embeddings.detach().to("cpu", torch.float64).numpy()
    rows = np.asarray(embeddings, dtype=np.float64)
    if rows.ndim < 2:
        raise InputError(f"expected embeddings of shape (batch, features), got {rows.shape}")
    return rows.reshape(-1, rows.shape[-1])


def _trim(known: Floats, coming: Floats, old: Floats) -> Floats:
    """Drop the leading samples that are nearer to the old centroid than to the new one."""
    new = np.concatenate([known, coming]).mean(0)
    belongs = np.square(known - new).sum(1) <= np.square(known - old).sum(1)
    return known[belongs.argmax() :] if belongs.any() else known[-1:]
