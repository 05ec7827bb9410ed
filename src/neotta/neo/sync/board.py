"""Exchange of messages through the key-value store of torch.distributed, with timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from neotta.errors import OptionError
from neotta.neo.sync.replica import Message

Result = TypeVar("Result")


class Board:
    """A view of a store: each replica writes its own keys and reads those of the others.

    No call takes longer than the timeout. A `TimeoutError` means that the store does not answer, a `RuntimeError` (from
    torch) that it is gone.

    Args:
        store: A store of torch.distributed, for example a `TCPStore`.
        name: Prefix of the keys.
        rank: Rank of this replica.
        members: Ranks of all replicas.
        timeout: Seconds.
    """

    def __init__(self, store: Any, name: str, rank: int, members: Sequence[int], timeout: float) -> None:
        self.store, self.name, self.rank, self.timeout = store, name, rank, timeout
        self.others = tuple(member for member in members if member != rank)

    def publish(self, message: Message) -> None:
        """Write this replica's message atomically."""
        self._in_time(lambda: self.store.set(self._key(self.rank, message.round % 2), message.encode()))

    def mine(self) -> Message | None:
        """The newest message of this rank, if its process was restarted."""
        return max(self._in_time(lambda: self._read(self.rank)), key=lambda message: message.round, default=None)

    def others_at(self, round: int | None = None) -> dict[int, Message]:
        """The messages of the other replicas: those of this round if present, otherwise the newest."""
        found = self._in_time(lambda: {rank: self._read(rank) for rank in self.others})
        return {
            rank: max(messages, key=lambda message: (message.round == round, message.round))
            for rank, messages in found.items()
            if messages
        }

    def _read(self, rank: int) -> list[Message]:
        """The messages of a replica's last two rounds.

        A fast replica may already be one round ahead, but all must add up the same messages.
        """
        keys = [self._key(rank, slot) for slot in (0, 1)]
        return [Message.decode(self.store.get(key)) for key in keys if self.store.check([key])]

    def leave(self, others: Sequence[int]) -> None:
        """Announce that everything was read, and wait for the others to do so, or for the timeout.

        This process may own the store, which ends with it.
        """
        self._in_time(lambda: self.store.set(self._key(self.rank, "read"), b"1"))
        until = time.monotonic() + self.timeout
        while time.monotonic() < until:
            if self._in_time(lambda: self.store.check([self._key(rank, "read") for rank in others])):
                return
            time.sleep(0.01)

    def _key(self, rank: int, slot: int | str) -> str:
        return f"{self.name}/{rank}/{slot}"

    def _in_time(self, call: Callable[[], Result]) -> Result:
        """Call the store in a separate thread, which may hang if the store does."""
        results: list[Result] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True, name="neotta-sync")
        thread.start()
        thread.join(self.timeout)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"no answer within {self.timeout:g} s")
        return results[0]


def membership(group: Any, store: Any, rank: int | None, world_size: int | None) -> tuple[Any, int, Sequence[int]]:
    """Return the store, the rank of this process and the ranks of all."""
    import torch.distributed as dist

    if rank is not None and world_size is not None and store is not None:
        if not 0 <= rank < world_size:
            raise OptionError(f"rank is {rank}: with world_size={world_size}, expected 0 to {world_size - 1}")
        return store, rank, range(world_size)
    if rank is not None or world_size is not None:
        raise OptionError("rank, world_size and store must be given together; or use a process group")
    if not dist.is_available() or not dist.is_initialized():
        raise OptionError(
            "there is no process group: call torch.distributed.init_process_group first, or pass store, rank and "
            "world_size"
        )
    members = dist.get_process_group_ranks(group)
    if dist.get_rank() not in members:
        raise OptionError(f"this process (rank {dist.get_rank()}) is not in the group {members}")
    return store or _store_of(dist.group.WORLD if group is None else group), dist.get_rank(), members


def _store_of(group: Any) -> Any:
    """The store of a process group."""
    import torch.distributed as dist

    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return dist.distributed_c10d._get_default_store()  # no public name in older versions of torch
