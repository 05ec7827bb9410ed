"""One stream in a traced graph, whose batch size is a symbol: no loop in Python, only operators that ONNX has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from neotta.neo.groups import SoleStream


class TracedStream(SoleStream):
    """Same as `SoleStream`, for torch.export."""

    def before(self, rows: Tensor, counts: Tensor, stored: Tensor) -> Tensor:
        """The row before each row among those that count, (N, C), or else the stored one, (1, C)."""
        numbers = _numbers(counts)
        earlier = counts[None, :] & (numbers[None, :] < numbers[:, None])
        return torch.cat([stored, rows])[torch.where(earlier, numbers[None, :], 0).amax(1)]

    def last(self, rows: Tensor, counts: Tensor, stored: Tensor) -> Tensor:
        """The last row that counts, (1, C), or else the stored one."""
        place = torch.where(counts, _numbers(counts), 0).amax(0)
        return torch.cat([stored, rows])[place[None]]

    def sequence(
        self, turn: Callable[..., Any], state: Any, rows: Tensor, weights: Tensor
    ) -> tuple[Any, Tensor, Tensor]:
        """Update a state row by row, as a scan."""

        def step(carry: list[Tensor], row: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            after, vector, number = turn(type(state)(*carry), row[0][None], row[1][None])
            return [column.clone() for column in after], [vector[0].clone(), number[0].clone()]

        after, (vectors, numbers) = scan(step, [column.clone() for column in state], [rows, weights])
        return type(state)(*after), vectors, numbers


def _numbers(counts: Tensor) -> Tensor:
    """1, 2, ... for each row, (N,)."""
    return torch.cumsum(torch.ones_like(counts, dtype=torch.int64), 0)
