"""States of adapters, compared."""

from __future__ import annotations

import torch


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two states are equal bit for bit; NaN equals NaN."""
    return one.keys() == other.keys() and all(
        torch.equal(one[name].nan_to_num(-1), other[name].nan_to_num(-1)) for name in one
    )
