"""NEO-Stream for one stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from neotta._warning import warn
from neotta.neo import moments
from neotta.neo.centroid import Centroid
from neotta.neo.groups import SoleStream
from neotta.neo.memory import OneStreamMemory
from neotta.neo.moments import Groups
from neotta.neo.row_weights import per_row
from neotta.neo.rules import MeanRule, Rule


class ShiftMemory(OneStreamMemory):
    """The moments of logits over all time and over a window, and the state of the label prior."""

    def step(
        self,
        rows: Tensor,
        samples: int = 1,
        *,
        bias: Tensor | None = None,
        adapt: bool = True,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Add a batch of logits, (N, C), and return what to subtract from each row, (N, C)."""
        wide = torch.promote_types(rows.dtype, torch.float32)
        if rows.shape[0] == 0:
            return rows.to(wide)
        with self.guard(), torch.no_grad():
            before = self.moments()
            state = self.rule.State(*(column[None] for column in before))
            if weights is not None:
                weights = per_row(weights, rows, samples)
            after, subtract = run_rule(self.rule, state, rows, SoleStream(rows.shape[0]), bias, adapt, weights)
            if adapt:
                for column, values in zip(before, after, strict=True):
                    column.copy_(values[0])
            return subtract.to(wide)


def run_rule(
    rule: Rule, state: Any, rows: Tensor, groups: Groups, bias: Tensor | None, adapt: bool, weights: Tensor | None
) -> tuple[Any, Tensor]:
    """Add a batch with a rule on logits, in NumPy if on the CPU, where it is faster than torch.

    Returns:
        The new state and what to subtract, (N, C), both on the device.
    """
    rows = rows.detach().to(state.mean.dtype)
    bias = rows.new_zeros(rows.shape[1]) if bias is None else bias.detach().to(rows)
    finite = moments.usable(rows, moments.limit(rows.dtype))
    if rows.device.type != "cpu" or is_compiling():
        return rule.take(state, rows, groups, finite=finite, bias=bias, adapt=adapt, weights=weights)
    bad = int((~finite if weights is None else ~finite & (weights > 0)).sum()) if adapt else 0
    if bad:
        warn(f"{bad} of {len(finite)} rows of logits contain NaN or Inf, or are too large: predicted, but excluded")
    arrays = type(state)(*(column.numpy() for column in state))
    given: dict[str, Any] = {"finite": finite.numpy(), "bias": bias.numpy(), "adapt": adapt}
    given["weights"] = None if weights is None else weights.numpy()
    after, subtract = rule.take(arrays, rows.numpy(), groups, **given)
    return type(state)(*map(torch.as_tensor, after)), torch.from_numpy(np.array(subtract))


def one_stream(features: int, classes: int, rule: Rule, device: torch.device | str | None) -> OneStreamMemory:
    """Create the memory of one stream for a rule and the size of a head."""
    if isinstance(rule, MeanRule):
        return Centroid(features, rule, device=device)
    return ShiftMemory(classes, rule, device)
