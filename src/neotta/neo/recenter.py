"""Re-centering: what heads of models, adapters, runtimes and servers all do with a batch."""

from __future__ import annotations

from torch import Tensor

from neotta.neo.streams import Streams


def recenter(
    streams: Streams,
    rows: Tensor,
    bias: Tensor | None = None,
    origin: Tensor | None = None,
    *,
    adapt: bool = True,
    weights: Tensor | None = None,
) -> Tensor:
    """Learn from a batch if `adapt`, and return it re-centered, (N, size) in its dtype.

    Args:
        streams: The states.
        rows: Embeddings, or the logits that a rule on logits takes. A rule on embeddings takes logits too, since
            W (h - c) + b = (W h + b) - W c, where W c is the mean of the logits without their bias.
        bias: What a head added to the rows, (C,); None for embeddings.
        origin: Where clean data lies, to re-center towards it: in place of the bias for rules on logits, of zero for
            those on embeddings.
        adapt: Whether to learn.
        weights: How much each row counts, (N,); 1 by default.
    """
    if streams.rule.space == "logits":
        offsets = streams.step(rows, bias if origin is None else origin, adapt=adapt, weights=weights)
    else:
        free = rows
        for constant in (bias, origin):
            free = free if constant is None else free.to(streams.table.dtype) - constant.detach()
        offsets = streams.step(free, None, adapt=adapt, weights=weights)
        offsets = offsets if origin is None else from_origin(offsets, origin)
    if rows.dtype == offsets.dtype:
        return rows - offsets
    return (rows - offsets).to(rows.dtype)  # computed in the higher precision of both


def from_origin(centre: Tensor, origin: Tensor) -> Tensor:
    """What to subtract of embeddings, (..., d), given their mean relative to the reference's, c - c₀.

    Under a shift embeddings often shrink, c = a c₀ + v with a < 1: subtracting c - c₀ would add (1 - a) c₀ to what is
    left of them, and let c₀ decide. So a is estimated by a projection, and c - a c₀ subtracted.
    """
    origin = origin.to(centre.dtype)
    along = (centre @ origin) / (origin @ origin).clip(min=1e-12)
    return centre + (-along).clip(min=0.0, max=1.0)[..., None] * origin
