"""Watches the answers of a head, and acts where adapting hurts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from neotta._warning import warn
from neotta.errors import OptionError
from neotta.neo.memory import Memory
from neotta.neo.recent_answers import Evidence, RecentAnswers
from neotta.neo.shift_memory import one_stream
from neotta.neo.stream_ids import StreamId, current
from neotta.neo.stream_rule import StreamRule

if TYPE_CHECKING:
    from neotta.neo.head import NEOHead

OnHarm = Literal["warn", "freeze", "restore"]
Callback = Callable[[StreamId | None, str], object]
MOST = 10_000
"""Number of streams whose answers are remembered; the least recently seen are forgotten first."""


class HarmWatch:
    """Remembers the last answers of each stream, and acts once where they say that adapting hurts.

    A rule on embeddings is judged by NEO-Stream, which runs beside it on the plain logits: where NEO-Stream and the
    plain model agree on one answer and the rule gives another, the rule has taken a label for a shift.

    Args:
        head: The head.
        on_harm: `"warn"`, `"freeze"` (the stream keeps its state and learns no more), `"restore"` (it goes back to its
            last good state, or to plain answers, always so with NEO-Stream, and learns no more), a function that is
            called with the stream and the reason, or None to only remember.

    Attributes:
        harmed: The reason for each stream on which adapting hurt.
    """

    def __init__(self, head: NEOHead, on_harm: OnHarm | Callback | None) -> None:
        check_action(on_harm)
        self.on_harm = on_harm
        self.harmed: dict[StreamId | None, str] = {}
        self._recent: OrderedDict[StreamId | None, RecentAnswers] = OrderedDict()
        self._good: dict[StreamId | None, Any] = {}
        self._careful = head.memory.rule.space == "logits"
        self._judge = _judge(head) if on_harm is not None and not self._careful else None

    @property
    def judges(self) -> bool:
        """Whether the plain logits of a rule on embeddings are needed."""
        return self._judge is not None

    def ids(self, memory: Memory, samples: int) -> tuple[StreamId, ...] | None:
        """The streams of the next batch; None if there is only one."""
        return current(samples, memory, peek=True) if memory.many else None

    def held(self, ids: tuple[StreamId, ...] | None, weights: Tensor | None, samples: int) -> Tensor | None:
        """The weights of a batch: 0 for streams that learn no more."""
        if not self.harmed or self.on_harm not in ("freeze", "restore"):
            return weights
        streams = (None,) * samples if ids is None else ids
        free = torch.tensor([float(stream not in self.harmed) for stream in streams], dtype=torch.float64)
        return free if weights is None else weights * free

    @torch.no_grad()
    def see(self, head: NEOHead, ids: tuple[StreamId, ...] | None, plain: Tensor, answer: Tensor, learnt: bool) -> None:
        """Remember the answers of a batch, (N, C) each, and act on what they say."""
        samples = len(plain) if ids is None else len(ids)
        if not samples or len(plain) != samples:  # one row per sample: tokens have no answers of their own
            return
        # In NumPy, which is faster than torch here.
        before, after = (logits.detach().float().cpu().numpy().argmax(1) for logits in (plain, answer))
        careful = after
        if self._judge is not None:
            bias = None if head.bias is None else head.bias.detach().cpu()
            logits = plain.detach().cpu()
            known = logits.isfinite().all(1)
            logits = logits.where(known[:, None], 0.0)  # the head has warned of the others
            shift = self._judge.step(logits, samples, bias=bias, adapt=learnt, weights=known.double())
            careful = (logits - shift).argmax(1).numpy()
        rows = np.stack([before, after, careful], 1)
        lengths = plain.detach().std(1, correction=0).float().cpu().numpy()  # of centred logits, up to a factor
        finite = np.isfinite(lengths)
        if ids is None:
            self._add(head, None, rows[finite], lengths[finite])
            return
        places: dict[StreamId, list[int]] = {}
        for place in np.flatnonzero(finite).tolist():
            places.setdefault(ids[place], []).append(place)
        for stream, mine in places.items():
            self._add(head, stream, rows[mine], lengths[mine])

    def evidence(self, stream: StreamId | None = None) -> Evidence:
        """What the last answers of a stream say."""
        return self._recent.get(stream, RecentAnswers()).evidence()

    def forget(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or everything."""
        for kept in (self._recent, self.harmed, self._good):
            if stream is None:
                kept.clear()
            else:
                kept.pop(stream, None)
        if self._judge is not None:
            self._judge.reset(stream)

    def _add(self, head: NEOHead, stream: StreamId | None, rows: Any, lengths: Any) -> None:
        with head.memory.guard():
            recent = self._recent.setdefault(stream, RecentAnswers(self._careful))
            self._recent.move_to_end(stream)
            if len(self._recent) > MOST:
                oldest, _ = self._recent.popitem(last=False)
                self._good.pop(oldest, None)
                if self._judge is not None:
                    self._judge.reset(oldest)
            recent.add(rows, lengths)
            if self.on_harm is None or stream in self.harmed:
                return
            evidence = recent.evidence()
            if not evidence.harm:
                if self.on_harm == "restore" and evidence.good:
                    self._good[stream] = head.memory.centroid(stream)
                return
            self.harmed[stream] = evidence.harm
            if self.on_harm == "restore":
                good = self._good.pop(stream, None)
                head.memory.put(head.memory.blank() if good is None else good, stream)
        self._tell(stream, evidence.harm)

    def _tell(self, stream: StreamId | None, reason: str) -> None:
        if callable(self.on_harm):
            self.on_harm(stream, reason)
            return
        name = "adapting" if stream is None else f"adapting stream {stream!r}"
        state = "plain answers" if self._careful else "its last good state"
        done = {
            "warn": "on_harm='restore' would take it back" if self._careful else "neotta.adapt(model) is the remedy",
            "freeze": "it learns no more",
            "restore": f"it went back to {state} and learns no more",
        }[str(self.on_harm)]
        warn(f"{name} hurts: {reason}; {done}")


def check_action(on_harm: Any) -> None:
    """Validate `on_harm`.

    Raises:
        OptionError: It is not an action.
    """
    if on_harm is not None and not callable(on_harm) and on_harm not in get_args(OnHarm):
        raise OptionError(f"on_harm is {on_harm!r}: expected 'warn', 'freeze', 'restore' or a function")


def _judge(head: NEOHead) -> Memory:
    """NEO-Stream beside the head, on the CPU."""
    classes, rule = head.out_features, StreamRule()
    if not head.memory.many:
        return one_stream(classes, classes, rule, "cpu")
    from neotta.neo.stream_memory import StreamMemory

    return StreamMemory(classes, rule, device="cpu")
