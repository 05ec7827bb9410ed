"""Where the least recently used streams wait until they are needed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from neotta.neo.statefile import Array
from neotta.neo.stream_ids import StreamId

Arrays = Mapping[str, Array]


class StreamStore(Protocol):
    """The interface of a store.

    `ids=None` means all streams. When a method returns, its changes are permanent; if it raises, nothing has changed.
    """

    def read(self, ids: Sequence[StreamId] | None = None) -> tuple[list[StreamId], dict[str, Array]]:
        """Read the streams that exist: their ids, and their fields, (n, ...) each."""

    def write(self, ids: Sequence[StreamId], fields: Arrays, *, replace: bool = False) -> None:
        """Write streams; with `replace`, delete all others."""

    def delete(self, ids: Sequence[StreamId] | None = None) -> None:
        """Delete streams."""

    def counts(self) -> dict[StreamId, int]:
        """Number of samples of each stream."""
