"""Synchronisation of the replicas of a model.

Each replica publishes everything it has seen itself, atomically, in the key-value store of torch.distributed, and adds
what the others have published. There are no collective operations, so a dead machine delays the others by one timeout
at most, and what it has published is kept. It works with gloo and nccl alike.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from neotta.errors import OptionError, StateMismatchError
from neotta.neo.head import NEOHead
from neotta.neo.memory import OneStreamMemory
from neotta.neo.per_call import is_paused
from neotta.neo.statefile import fingerprint
from neotta.neo.surgery import adaptation, heads
from neotta.neo.sync.board import Board
from neotta.neo.sync.replica import Message, copied, empty, gained, moments_of, summed
from neotta.neo.variants import mergeable


class Synchronizer:
    """Synchronises one replica with the others; created by `neotta.sync`.

    An exchange takes milliseconds. A machine that dies delays the others once, by one timeout, and loses what it has
    seen since the last exchange; restarted with the same rank, it resumes from what it had published. Whatever happens
    to the machines and the store, `now()` returns within five timeouts.

    Attributes:
        lost: Replicas that are currently not waited for.
        alone: Whether the store is unreachable; the replica then continues alone until `connect`.
        closed: Whether `close` was called.
    """

    def __init__(self, model: nn.Module, board: Board, every: int | None) -> None:
        if every is not None and every < 1:
            raise OptionError(f"every is {every}: expected at least 1, or None to exchange only with now()")
        if not board.timeout > 0:
            raise OptionError(f"timeout is {board.timeout}: expected a number of seconds above 0")
        self._board = board
        self._turn = threading.Lock()
        self.lost: set[int] = set()
        self.alone = self.closed = False
        self.epoch = self.round = 0
        self._centroids = _shareable(model)
        self._base = {head: moments_of(centroid) for head, centroid in self._centroids.items()}
        self._own = {head: empty(base) for head, base in self._base.items()}
        self._shown = {head: copied(base) for head, base in self._base.items()}
        weights = [fingerprint(dict(neo.named_parameters())) for neo in heads(model).values()]
        self._model = f"{adaptation(model)} {weights}"
        self._start = str([fingerprint(base._asdict()) for base in self._base.values()])
        self._messages: dict[int, Message] = {}
        self._join()
        self._hook = None if every is None else _after_every(every, list(heads(model).values())[-1], self)

    # ---- public methods

    def now(self) -> None:
        """Exchange: afterwards all replicas that have called this hold the same centroid.

        Raises:
            StateMismatchError: Another replica has another model or starting state.
            StateError: The centroid was reset or loaded without the synchronizer.
        """
        with self._turn:
            self._exchange(last=False)

    def reset(self) -> None:
        """Reset this replica now, and the others at the next exchange."""
        with self._turn:
            self._enter(self.epoch + 1)

    def close(self) -> None:
        """Publish the last message and wait for those of the others, so that all replicas end with the same state.

        A replica that keeps publishing is waited for. The model stays adapted.
        """
        with self._turn:
            if self._hook is not None:
                self._hook.remove()
            self._exchange(last=True)
            if not self.alone:
                with contextlib.suppress(RuntimeError, OSError):
                    self._board.leave([rank for rank in self._board.others if rank not in self.lost])
        self.closed = True

    def connect(self, store: Any) -> None:
        """Continue with another store after the first was lost; everything seen in between is kept."""
        with self._turn:
            self._board.store, self.alone, self.lost = store, False, set()

    # ---- the exchange

    def _join(self) -> None:
        """Read the existing messages: those of the others, and of this rank if it was restarted."""
        mine = self._board.mine()
        if mine is not None:
            self._check({self._board.rank: mine})
            if mine.done:
                raise OptionError(f"the exchange {self._board.name!r} is closed: choose another name for a new one")
            if mine.epoch:
                self._enter(mine.epoch)
            self.round = mine.round
            self._own = {head: self._read(head, state) for head, state in mine.own.items()}
        self._hear(self._board.others_at())
        self._show()

    def _exchange(self, *, last: bool) -> None:
        for head, centroid in self._centroids.items():
            with centroid.guard():
                self._take(head)
        if self.alone:
            return
        try:
            self.lost -= self._hear(self._board.others_at())  # they are back
            self.round = max([self.round + 1, *(message.round for message in self._messages.values())])
            own = {head: state._asdict() for head, state in self._own.items()}
            self._board.publish(Message(self._model, self._start, self.epoch, self.round, last, own))
            self._wait(last)
        except (RuntimeError, OSError) as error:
            self.alone = True
            warnings.warn(
                f"the store of the replicas cannot be reached ({error}): continuing alone, with what the others have "
                "published; use connect(store) to set a new one",
                RuntimeWarning,
                stacklevel=3,
            )
        self._show()

    def _wait(self, last: bool) -> None:
        """Wait until every replica has published its message for this round, or has timed out."""
        heard = dict.fromkeys(self._board.others, time.monotonic())
        pause = 0.001
        while True:
            news = self._hear(self._board.others_at(None if last else self.round))
            heard.update(dict.fromkeys(news, time.monotonic()))
            missing = {rank for rank in self._board.others if not self._arrived(rank, last)}
            self.lost &= missing
            late = {rank for rank in missing - self.lost if time.monotonic() - heard[rank] > self._board.timeout}
            if late:
                self.lost |= late
                warnings.warn(
                    f"no news from replica {', '.join(map(str, sorted(late)))} for {self._board.timeout:g} s: "
                    "continuing with what it had published before",
                    RuntimeWarning,
                    stacklevel=4,
                )
            if missing <= self.lost:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _arrived(self, rank: int, last: bool) -> bool:
        message = self._messages.get(rank)
        return message is not None and (message.done or (message.round >= self.round and not last))

    def _hear(self, messages: Mapping[int, Message]) -> set[int]:
        """Store the messages of the others; return the ranks whose round has changed."""
        self._check(messages)
        before = {rank: message.round for rank, message in self._messages.items()}
        self._messages.update(messages)
        return {rank for rank, message in messages.items() if before.get(rank, message.round) != message.round}

    def _check(self, messages: Mapping[int, Message]) -> None:
        for rank, message in messages.items():
            if message.model != self._model:
                raise StateMismatchError(f"replica {rank} of {self._board.name!r} has another model or method")
            if message.start != self._start:
                raise StateMismatchError(
                    f"replica {rank} of {self._board.name!r} started from another state: reset the model, or load the "
                    "same state, in all processes before neotta.sync"
                )

    # ---- the centroids

    def _take(self, head: str) -> None:
        """Add what this replica has seen since the last time to its own total."""
        centroid = self._centroids[head]
        now = moments_of(centroid)
        centroid.rule.merge(self._own[head], gained(now, self._shown[head], centroid.rule))
        self._shown[head] = now

    def _show(self) -> None:
        """Set the model's centroid to the sum of the starting state and what each replica has seen."""
        newest = max([self.epoch, *(message.epoch for message in self._messages.values())])
        if newest > self.epoch:
            self._enter(newest)
        for head, centroid in self._centroids.items():
            parts = {
                rank: self._read(head, message.own[head])
                for rank, message in self._messages.items()
                if message.epoch == self.epoch
            }
            with centroid.guard():
                self._take(head)  # other threads may have updated it
                parts[self._board.rank] = self._own[head]
                ordered = [self._base[head], *(parts[rank] for rank in sorted(parts))]
                total = summed(ordered, self._base[head], centroid.rule)
                centroid.load_state(centroid.rule.adopt(total, moments_of(centroid))._asdict())
                self._shown[head] = moments_of(centroid)

    def _read(self, head: str, state: Mapping[str, Tensor]) -> Any:
        """The moments in a message."""
        return copied(self._centroids[head].rule.State(**state))

    def _enter(self, epoch: int) -> None:
        """Enter a new epoch: forget everything older."""
        self.epoch = epoch
        for head, centroid in self._centroids.items():
            with centroid.guard():
                centroid.reset()
                like = self._base[head]
                self._base[head], self._own[head], self._shown[head] = empty(like), empty(like), empty(like)


def _shareable(model: nn.Module) -> dict[str, OneStreamMemory]:
    """The memories of a model by head, if they can be merged."""
    method, options = adaptation(model)[:2]
    if any(neo.memory.many for neo in heads(model).values()):
        raise OptionError("models with many streams cannot be synchronised: merge their saved states with neotta.merge")
    if not mergeable(options):
        raise OptionError(f"a moving average ({method}) cannot be synchronised: it depends on the order of its batches")
    return {name: cast("OneStreamMemory", neo.memory) for name, neo in heads(model).items()}


def _after_every(every: int, head: NEOHead, synchronizer: Synchronizer) -> Any:
    """Exchange after every `every` calls of a head; return the handle of the hook."""
    calls = itertools.count(1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def exchange_sometimes(module: nn.Module, args: object, output: object) -> None:
        # Copies of the head, and the layer it replaced, share its hooks.
        if module is head and head.adapting and not is_paused(head) and next(calls) % every == 0:
            synchronizer.now()

    return head.register_forward_hook(exchange_sometimes)
