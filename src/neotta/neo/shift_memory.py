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
from neotta.neo.groups import EachItsOwn, SoleStream
from neotta.neo.memory import OneStreamMemory
from neotta.neo.moments import Groups
from neotta.neo.row_weights import per_row
from neotta.neo.rules import MeanRule, Rule

_AT_ONCE = 8  # streams: what they need then stays in the cache


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
            largest = moments.limit(rows.dtype, before.mean.dtype)
            if weights is not None:
                weights = per_row(weights, rows, samples)
            if rows.is_cpu and not is_compiling():
                arrays = self.rule.State(*(column.numpy()[None] for column in before))
                groups: Groups = EachItsOwn() if rows.shape[0] == 1 else SoleStream(rows.shape[0])
                after, subtract = run_on_host(self.rule, arrays, rows, groups, bias, adapt, weights, largest)
                if adapt:
                    for array, values in zip(arrays, after, strict=True):
                        array[...] = values
                return subtract.to(wide)
            state = self.rule.State(*(column[None] for column in before))
            sole = SoleStream(rows.shape[0])
            after, subtract = run_rule(self.rule, state, rows, sole, bias, adapt, weights, largest)
            if adapt:
                for column, values in zip(before, after, strict=True):
                    column.copy_(values[0])
            return subtract.to(wide)


def run_rule(
    rule: Rule,
    state: Any,
    rows: Tensor,
    groups: Groups,
    bias: Tensor | None,
    adapt: bool,
    weights: Tensor | None,
    largest: float,
) -> tuple[Any, Tensor]:
    """Add a batch with a rule on logits, in NumPy if on the CPU, where it is faster than torch.

    Rows with numbers beyond `largest` are excluded.

    Returns:
        The new state and what to subtract, (N, C), both on the device.
    """
    if rows.device.type == "cpu" and not is_compiling():
        arrays = type(state)(*(column.numpy() for column in state))
        after, subtract = run_on_host(rule, arrays, rows, groups, bias, adapt, weights, largest)
        return type(state)(*map(torch.as_tensor, after)), subtract
    rows = rows.detach().to(state.mean.dtype)
    bias = rows.new_zeros(rows.shape[1]) if bias is None else bias.detach().to(rows)
    finite = moments.usable(rows, largest)
    return rule.take(state, rows, groups, finite=finite, bias=bias, adapt=adapt, weights=weights)


def run_on_host(
    rule: Rule,
    state: Any,
    rows: Tensor,
    groups: Groups,
    bias: Tensor | None,
    adapt: bool,
    weights: Tensor | None,
    largest: float,
) -> tuple[Any, Tensor]:
    """Add a batch with a rule on logits in NumPy; the state has NumPy arrays, before and after."""
    values = rows.detach().to(torch.float64).numpy()
    known = np.zeros(values.shape[1]) if bias is None else bias.detach().to("cpu", torch.float64).numpy()
    # The largest and smallest number are NaN or out of range if any is.
    whole = bool(values.max() <= largest and values.min() >= -largest)
    finite = np.ones(len(values), bool) if whole else moments.usable(values, largest)
    given = None if weights is None else weights.numpy()
    bad = int((~finite if given is None else ~finite & (given > 0)).sum()) if adapt and not whole else 0
    if bad:
        warn(f"{bad} of {len(finite)} rows of logits contain NaN or Inf, or are too large: predicted, but excluded")
    if not groups.alone or len(values) <= _AT_ONCE:
        after, subtract = rule.take(state, values, groups, finite=finite, bias=known, adapt=adapt, weights=given)
        return after, torch.from_numpy(subtract if subtract.flags.owndata else subtract.copy())
    subtract = np.empty_like(values)
    for start in range(0, len(values), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        mine = type(state)(*(column[part] for column in state))
        some = None if given is None else given[part]
        new, subtract[part] = rule.take(
            mine, values[part], groups, finite=finite[part], bias=known, adapt=adapt, weights=some
        )
        if adapt:
            for column, numbers in zip(mine, new, strict=True):
                column[...] = numbers
    return state, torch.from_numpy(subtract)


def one_stream(features: int, classes: int, rule: Rule, device: torch.device | str | None) -> OneStreamMemory:
    """Create the memory of one stream for a rule and the size of a head."""
    if isinstance(rule, MeanRule):
        return Centroid(features, rule, device=device)
    return ShiftMemory(classes, rule, device)
