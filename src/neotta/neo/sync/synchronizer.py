"""Replicas of one model on many machines that share what they learn.

Each replica publishes everything it has taken in itself, in one step, in the key-value store of torch.distributed, and
adds up what the others have published. There are no collective operations: nothing waits for a machine that is gone
for longer than a stated time, a machine that dies in the middle has published either its new record or its old one, and
what it has published stays with the others. It works alike for groups of gloo and of nccl, as no tensor goes through
them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from neotta.errors import OptionError, StateMismatchError
from neotta.neo.centroid import Centroid
from neotta.neo.head import NEOHead
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_head import StreamHead
from neotta.neo.surgery import adaptation, heads
from neotta.neo.sync.board import Board
from neotta.neo.sync.replica import Record, copied, difference, empty, summed


class Synchronizer:
    """One replica's side of the exchange; made by `neotta.sync`.

    A healthy exchange takes milliseconds, and a machine that dies costs the others one timeout, once; whatever happens
    to the machines and the store, `now()` returns within five timeouts. A machine takes with it at most what it has
    taken in since the last exchange. One that starts again with the same rank finds in the store what it had published
    before, and goes on from there.

    Attributes:
        lost: The replicas that are not waited for at present.
        alone: The store cannot be reached any more: this replica goes on by itself until `connect` gives a new one.
        closed: Whether `close` was called.
    """

    def __init__(self, model: nn.Module, board: Board, every: int | None) -> None:
        if every is not None and every < 1:
            raise OptionError(f"every is {every}: exchange after one batch at least, or None for never by itself")
        if not board.timeout > 0:
            raise OptionError(f"timeout is {board.timeout}: it is a number of seconds above 0")
        self._board = board
        self._turn = threading.Lock()
        self.lost: set[int] = set()
        self.alone = self.closed = False
        self.epoch = self.round = 0
        self._centroids = _shareable(model)
        self._base = {head: copied(centroid) for head, centroid in self._centroids.items()}
        self._own = {head: empty(centroid) for head, centroid in self._centroids.items()}
        self._shown = {head: copied(centroid) for head, centroid in self._centroids.items()}
        weights = [fingerprint(dict(neo.named_parameters())) for neo in heads(model).values()]
        self._model = f"{adaptation(model)} {weights}"
        self._start = str([fingerprint(centroid.state()) for centroid in self._base.values()])
        self._records: dict[int, Record] = {}
        self._join()
        self._hook = None if every is None else _after_every(every, list(heads(model).values())[-1], self)

    # ---- what the user calls

    def now(self) -> None:
        """Exchange: afterwards all replicas that have come here hold the same centroid.

        Raises:
            StateMismatchError: Another replica is of another model, or started from another state.
            StateError: The centroid was reset or loaded behind the synchronizer's back.
        """
        with self._turn:
            self._exchange(last=False)

    def reset(self) -> None:
        """Forget everything, here at once and in the other replicas with the next exchange."""
        with self._turn:
            self._enter(self.epoch + 1)

    def close(self) -> None:
        """Say the last word, and wait until all others have said theirs: then everybody holds everything.

        A replica that goes on publishing is waited for as long as it does. The model stays adapted.
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
        """Go on with another store, after the first was lost; what was taken in meanwhile is kept."""
        with self._turn:
            self._board.store, self.alone, self.lost = store, False, set()

    # ---- the exchange

    def _join(self) -> None:
        """Take up what is in the store already: records of others, and of this rank if it was started again."""
        mine = self._board.mine()
        if mine is not None:
            self._check({self._board.rank: mine})
            if mine.done:
                raise OptionError(f"the exchange {self._board.name!r} is closed: choose another name for a new one")
            if mine.epoch:
                self._enter(mine.epoch)
            self.round = mine.round
            self._own = {head: copied(self._own[head], state) for head, state in mine.own.items()}
        self._hear(self._board.others_at())
        self._show()

    def _exchange(self, *, last: bool) -> None:
        for head, centroid in self._centroids.items():
            with centroid._guard():
                self._take(head)
        if self.alone:
            return
        try:
            self.lost -= self._hear(self._board.others_at())  # it is back
            self.round = max([self.round + 1, *(record.round for record in self._records.values())])
            own = {head: centroid.state() for head, centroid in self._own.items()}
            self._board.publish(Record(self._model, self._start, self.epoch, self.round, last, own))
            self._wait(last)
        except (RuntimeError, OSError) as error:
            self.alone = True
            warnings.warn(
                f"the store of the replicas cannot be reached ({error}): going on alone, with what is known of the "
                "others; connect(store) gives a new one",
                RuntimeWarning,
                stacklevel=3,
            )
        self._show()

    def _wait(self, last: bool) -> None:
        """Read until every replica's record for this round is there, or no news has come from it for too long."""
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
                    f"no news from replica {', '.join(map(str, sorted(late)))} for {self._board.timeout:g} s: going on "
                    "with what was published before",
                    RuntimeWarning,
                    stacklevel=4,
                )
            if missing <= self.lost:
                return
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def _arrived(self, rank: int, last: bool) -> bool:
        record = self._records.get(rank)
        return record is not None and (record.done or (record.round >= self.round and not last))

    def _hear(self, records: Mapping[int, Record]) -> set[int]:
        """Keep the records of the others; returns the ranks that have moved on since."""
        self._check(records)
        before = {rank: record.round for rank, record in self._records.items()}
        self._records.update(records)
        return {rank for rank, record in records.items() if before.get(rank, record.round) != record.round}

    def _check(self, records: Mapping[int, Record]) -> None:
        for rank, record in records.items():
            if record.model != self._model:
                raise StateMismatchError(f"replica {rank} of {self._board.name!r} is of another model or method")
            if record.start != self._start:
                raise StateMismatchError(
                    f"replica {rank} of {self._board.name!r} started from another state: reset the model, or load the "
                    "same state, in all processes before neotta.sync"
                )

    # ---- the centroids

    def _take(self, head: str) -> None:
        """Add what this replica's model has taken in since the last time to what it has taken in at all."""
        now = copied(self._centroids[head])
        self._own[head].merge(difference(now, self._shown[head]))
        self._shown[head] = now

    def _show(self) -> None:
        """Give the model the sum of all: where they started, and what each replica has taken in."""
        newest = max([self.epoch, *(record.epoch for record in self._records.values())])
        if newest > self.epoch:
            self._enter(newest)
        for head, centroid in self._centroids.items():
            parts = {
                rank: copied(self._own[head], record.own[head])
                for rank, record in self._records.items()
                if record.epoch == self.epoch
            }
            with centroid._guard():
                self._take(head)  # other threads may have gone on
                parts[self._board.rank] = self._own[head]
                total = summed([self._base[head], *(parts[rank] for rank in sorted(parts))], like=centroid)
                centroid.load_state(total.state())
                self._shown[head] = copied(centroid)

    def _enter(self, epoch: int) -> None:
        """Forget everything that belongs to an older epoch."""
        self.epoch = epoch
        for head, centroid in self._centroids.items():
            with centroid._guard():
                centroid.reset()
                self._base[head], self._own[head], self._shown[head] = (empty(centroid) for _ in range(3))


def _shareable(model: nn.Module) -> dict[str, Centroid]:
    """The centroids of a model by head, if they can be added up."""
    method, options, streams = adaptation(model)
    if streams is not None or any(isinstance(neo, StreamHead) for neo in heads(model).values()):
        raise OptionError("models with many streams are not synchronized: merge their saved states with neotta.merge")
    given = options.given()
    if "alpha" in given or given.get("statistics") == "ema":
        raise OptionError(f"a moving average ({method}) cannot be synchronized: it depends on the order of its batches")
    return {name: neo.centroid for name, neo in heads(model).items()}


def _after_every(every: int, head: NEOHead, synchronizer: Synchronizer) -> Any:
    """Exchange after so many calls of a head; returns the handle to end it."""
    calls = itertools.count(1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def exchange_sometimes(module: nn.Module, args: object, output: object) -> None:
        # Copies of the head, and the layer it stands in for, share its hooks.
        if module is head and head.adapting and next(calls) % every == 0:
            synchronizer.now()

    return head.register_forward_hook(exchange_sometimes)
