"""What a monitor watches and acts on: an adapted model, one of its streams, a NEO head, or a NEO adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.adapters.neo import Recentering
from neotta.errors import InputError, ModelError, OptionError, UnknownNameError
from neotta.monitoring.library import Domain, mean_of, variance_of
from neotta.monitoring.rank_evidence import Floats
from neotta.neo.context import current_ids, current_weights, is_paused
from neotta.neo.head import NEOHead
from neotta.neo.mean import AnyMean, MeanRule
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_ids import StreamId, one
from neotta.neo.streams import Streams
from neotta.neo.surgery import check_stream, heads

Watch = Callable[[Tensor], object]


class Position:
    """Where a domain lies: the mean of its embeddings, and the state that NEO-Stream has after its samples.

    The head is that of NEO-Stream, which subtracts a shift of the logits; None if the mean is subtracted.
    """

    def __init__(self, features: int, head: NEOHead | None = None) -> None:
        self._head = head
        # For the variance the state must hold squares, as it does for shrinkage.
        self._embeddings = Streams(MeanRule(shrinkage="james-stein"), features)
        self._logits = None if head is None else Streams(head.streams.rule, head.streams.size)

    def add(self, rows: Floats) -> None:
        """Add embeddings, (n, d)."""
        self._embeddings.step(torch.from_numpy(rows.copy()), None)
        if self._head is not None and self._logits is not None:
            learn(self._logits, self._head, rows)

    @property
    def streams(self) -> Streams:
        """The state of a model that adapts to this domain."""
        return self._embeddings if self._logits is None else self._logits

    def mean(self) -> Tensor:
        """Mean of the embeddings, (d,)."""
        return mean_of(self._embeddings.rule, self._embeddings.table)

    def offset(self) -> Tensor:
        """What a model should subtract, (d,) or (C,)."""
        return mean_of(self.streams.rule, self.streams.table)

    def count(self) -> int:
        """Number of samples."""
        return self._embeddings.total()

    def variance(self) -> float:
        """Total variance of what the model learns from; NaN for fewer than two samples."""
        return variance_of(self.streams.rule, self.streams.table)


class Target:
    """A NEO head, one of its streams, or a NEO adapter, which has a new head after each reset."""

    def __init__(self, name: str, head: NEOHead | Recentering, stream: StreamId | None = None) -> None:
        self.name, self._head, self._stream = name, head, stream
        self.fingerprint = fingerprint(dict(self.neo.named_parameters()))

    @property
    def neo(self) -> NEOHead:
        """The head."""
        return self._head.neo if isinstance(self._head, Recentering) else self._head

    @property
    def in_embeddings(self) -> bool:
        """Whether it subtracts a mean from embeddings, and not a shift from logits."""
        return self.neo.streams.rule.space == "embeddings"

    def origin(self) -> Tensor:
        """Where clean data lies, (d,) or (C,): the mean of the reference, if there is one, or zero."""
        known = self.neo._buffers["origin"] if self.in_embeddings else None
        return torch.zeros(self.neo.streams.size).double() if known is None else known.cpu().double()

    def domain(self) -> Domain:
        """What the model has learnt; nothing for a stream that was not seen yet."""
        streams = self.neo.streams
        try:
            state = streams.state(self._stream).cpu()
        except InputError:
            state = streams.layout.blank()
        return Domain("model", self.origin() + mean_of(streams.rule, state), int(state[0, 0]), 0.0, "")

    def put(self, state: Tensor) -> None:
        """Set the state, (1, width)."""
        self.neo.streams.put(state, self._stream)

    def reset(self) -> None:
        """Reset the adaptation state."""
        if isinstance(self._head, Recentering):
            self._head.reset()
        else:
            self._head.reset(self._stream)

    def watch(self, watch: Watch) -> Callable[[], None]:
        """Call `watch` with every batch of embeddings before the head sees it; return a function that stops it."""
        head = self._head
        if isinstance(head, Recentering):
            if head.observer is not None:
                raise OptionError("this adapter already has another monitor: remove that one first")
            head.observer = watch
            return lambda: setattr(head, "observer", None)

        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if module is head:  # not a copy, or the layer it replaced, which share its hooks
                self._show(arguments[0], watch)

        return head.register_forward_pre_hook(hook).remove

    def _show(self, embeddings: Tensor, watch: Watch) -> None:
        if is_paused(self._head):
            return
        weights = current_weights(len(embeddings))
        mine = torch.ones(len(embeddings), dtype=torch.bool) if weights is None else weights > 0
        if self._stream is not None:
            mine = mine & torch.tensor([item == self._stream for item in current_ids(len(embeddings))])
        if bool(mine.any()):
            watch(embeddings if bool(mine.all()) else embeddings[mine.to(embeddings.device)])


def find_target(model: nn.Module | Recentering, head: str | None = None, stream: StreamId | None = None) -> Target:
    """Find the NEO head to monitor; see `Monitor` for the arguments."""
    if isinstance(model, Recentering):
        if head is not None or stream is not None:
            raise OptionError("head and stream do not apply: an adapter has one head and no streams")
        return Target(model.head_name, model)
    if not isinstance(model, nn.Module):
        raise OptionError(f"expected an adapted model or a NEO adapter, got {type(model).__name__}")
    neo_heads = heads(model)
    check_stream(model, stream)
    if head is None and len(neo_heads) > 1:
        raise ModelError(f"the model has {len(neo_heads)} heads ({', '.join(neo_heads)}): name one with head=")
    name = next(iter(neo_heads)) if head is None else head
    if name not in neo_heads:
        raise UnknownNameError("head", name, neo_heads)
    return Target(name, neo_heads[name], None if stream is None else one(stream))


def restart(target: Target, domain: Domain | None, samples: int, seen: Floats, variance: float) -> None:
    """Restart a model from a known domain, which counts as so many samples, and what was seen of a new one."""
    target.reset()
    streams = target.neo.streams
    rule, layout = streams.rule, streams.layout
    if isinstance(rule, AnyMean):
        count = len(seen) + samples
        if count:
            known = 0.0 if domain is None else samples * domain.offset
            mean = (known + torch.from_numpy(seen).sum(0)) / count - target.origin()
            target.put(_mean_state(rule, mean, count, variance))
        return
    start = Streams(rule, streams.size)
    if domain is not None and domain.state is not None and samples:
        share = min(samples / max(domain.count, 1), 1.0)  # sums scale, and what has no sum begins anew
        start.put(rule.merged(layout.blank(), domain.state * share, layout))
    learn(start, target.neo, seen)
    target.put(start.table)


def _mean_state(rule: AnyMean, mean: Tensor, count: int, variance: float) -> Tensor:
    state = rule.layout(len(mean)).blank()
    tallies, weight, square, total = rule.state(state)
    by_sample = isinstance(rule, MeanRule) and rule.weighting == "sample"  # else a batch
    tallies[0, 0] = count
    weight[0] = count if by_sample else 1.0
    total[0] = mean * weight
    if isinstance(rule, MeanRule) and rule.shrinkage is not None:
        square[0] = variance * (count - 1) + count * mean @ mean
    return state


def equivalent_samples(distance: float, variance: float, count: int, domain: Domain) -> int:
    """Number of samples that a known mean counts as.

    The squared error of a mean of n samples is s²/n. That of the known one is estimated as its squared distance from
    the mean of the new samples, minus the error of that mean, and at least the error of its own mean.
    """
    least = variance / max(domain.count, 1)
    error = max(distance**2 - variance / count, least)
    return int(variance / error) if error > 0 else domain.count


def learn(streams: Streams, head: NEOHead, rows: Floats) -> None:
    """Learn from the logits of embeddings, (n, d), as the head does."""
    weight = head.weight.detach().flatten(1).cpu().double()
    origin = head._buffers["origin"]
    bias, origin = (None if part is None else part.detach().cpu().double() for part in (head.bias, origin))
    streams.step(F.linear(torch.from_numpy(rows.copy()), weight, bias), bias if origin is None else origin)
