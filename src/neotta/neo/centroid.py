"""The centroid: the running mean of embeddings, and how many samples stand behind it.

This is the only place where a mean is kept. What a centroid consists of and how two of them merge is declared
here once; saving, resetting, moving between devices and combining machines all build on it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from neotta._warning import warn
from neotta.errors import InputError, OptionError, StateMismatchError

Weighting = Literal["sample", "batch"]


class Centroid(nn.Module):
    """Running mean of embeddings, (d,).

    Three rules say how much a new batch counts:

    - `weighting="sample"`: every sample equally (NEO);
    - `weighting="batch"`: every batch equally (the pseudo-code printed in the paper);
    - `alpha=a`: an exponential moving average of batch means (NEO-Continual). It starts at zero; `debias=True`
      divides that start out.

    The mean is kept in float64 (float32 on devices that have nothing better) whatever the dtype of the model, and
    the counts are integers, so that it stays right over any number of samples. Rows with NaN or Inf never enter; they
    are counted in `rejected`.

    Every change and every reading of the whole holds a lock: threads that share a centroid lose no update and never
    read half of one. A compiled graph runs without the lock.

    Args:
        features: The length d of an embedding.
        weighting: See above.
        alpha: The weight of a new batch, in [0, 1], instead of `weighting`.
        debias: Divide the moving average by 1 - (1 - alpha)^t.
        variance: Track the total variance too, as shrinkage needs it.
    """

    count: Tensor
    batches: Tensor
    rejected: Tensor
    mean: Tensor
    scatter: Tensor

    def __init__(
        self,
        features: int,
        *,
        weighting: Weighting = "sample",
        alpha: float | None = None,
        debias: bool = False,
        variance: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if weighting not in get_args(Weighting):
            raise OptionError(f"weighting is {weighting!r}: it is 'sample' or 'batch'")
        if alpha is not None and (not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0.0 <= alpha <= 1.0):
            raise OptionError(f"alpha is {alpha!r}: it must be a number between 0 and 1")
        if alpha is None and debias:
            raise OptionError("debias belongs to the moving average: give alpha too")
        if variance and (alpha is not None or weighting != "sample"):
            raise OptionError("the variance is tracked with weighting='sample' and no alpha only")
        self.features = features
        self.weighting = weighting
        self.alpha = alpha
        self.debias = debias
        self.variance = variance
        self._lock = threading.RLock()
        real = widest(torch.device(device or "cpu"))
        with torch.inference_mode(False):  # tensors made in inference mode could never be updated outside it
            for name in ("count", "batches", "rejected"):
                self.register_buffer(name, torch.zeros((), dtype=torch.int64, device=device), persistent=False)
            self.register_buffer("mean", torch.zeros(features, dtype=real, device=device), persistent=False)
            # Sum of squared distances to the mean, over all coordinates.
            self.register_buffer("scatter", torch.zeros((), dtype=real, device=device), persistent=False)

    # ---- reading

    def value(self, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of the centroid to subtract, (d,): the mean, without the zero start if `debias` is set."""
        with self._guard():
            return self._value(dtype)

    def _value(self, dtype: torch.dtype | None) -> Tensor:
        mean = self.mean
        if not self.debias or self.alpha is None:
            return mean.to(dtype or mean.dtype, copy=True)
        # 1 - (1 - alpha)^t, written so that it is right for the smallest alpha too
        rate = math.log1p(-self.alpha) if self.alpha < 1.0 else -math.inf
        weight = -torch.expm1(self.batches.clamp(min=1).to(mean.dtype) * rate)
        return (mean / torch.where(weight > 0, weight, 1.0)).to(dtype or mean.dtype)

    def shrunk(self, dtype: torch.dtype | None = None) -> Tensor:
        """The mean shrunk towards zero by its own uncertainty (James-Stein), (d,).

        The factor is max(0, 1 - s² / (n |mean|²)), s² the total variance: 0 for a single sample, 1 in the limit.
        """
        with self._guard():
            noise = self.total_variance() / self.count.clamp(min=1)
            signal = self.mean.square().sum()
            factor = (1.0 - noise / signal).clamp(min=0.0)
            return (self.mean * torch.where((self.count > 1) & (signal > 0), factor, 0.0)).to(dtype or self.mean.dtype)

    def total_variance(self) -> Tensor:
        """Unbiased variance of the embeddings summed over their coordinates, (); 0 below two samples."""
        if not self.variance:
            raise OptionError("this centroid does not track the variance: make it with variance=True")
        with self._guard():
            return self.scatter / (self.count - 1).clamp(min=1)

    # ---- changing

    def update(self, embeddings: Tensor) -> None:
        """Take in a batch of embeddings, (B, d); B may be 0.

        Raises:
            InputError: The tensor has another shape.
        """
        if embeddings.dim() != 2 or embeddings.shape[1] != self.features:
            raise InputError(f"this centroid takes in (B, {self.features}), got a tensor of {tuple(embeddings.shape)}")
        self.step(embeddings)

    def step(self, embeddings: Tensor, shrink: bool = False) -> Tensor:
        """Take in a batch of embeddings, (B, d), and return the centroid to subtract, (d,), in float32 or better.

        As `update`, and then `value` or, to shrink, `shrunk`; but no other thread comes between, and the shape is not
        checked again.
        """
        if embeddings.requires_grad:  # not `no_grad` round it all: on a CPU that would take as long as the rest
            embeddings = embeddings.detach()
        on_host = embeddings.is_cpu and not is_compiling()
        if on_host and embeddings.dtype is torch.float32 and not self.variance and not self.debias:
            centre = self._step_quickly(embeddings)
            if centre is not None:
                return centre
        with self._guard():
            self._update(embeddings, on_host)
            dtype = torch.promote_types(embeddings.dtype, torch.float32)
            return self.shrunk(dtype) if shrink else self._value(dtype)

    def _step_quickly(self, embeddings: Tensor) -> Tensor | None:
        """The usual case, in as few operations as can be; None, with nothing done, if it is another.

        It is run for every batch, with a cold cache, and there a call takes longer than what it computes.
        """
        with self._lock:
            # The sum is half as much work as the mean. It is finite only if all its rows are; if it is not, it may
            # have overflowed, too.
            total, size = embeddings.sum(0), len(embeddings)
            if size == 0 or not math.isfinite(total.sum().item()):
                return None
            buffers: dict[str, Any] = self._buffers  # as attributes of a module they would be searched for
            count, batches, mean = buffers["count"], buffers["batches"], buffers["mean"]
            seen, turn = count.item() + size, batches.item() + 1
            count.fill_(seen)
            batches.fill_(turn)
            share = self.alpha if self.alpha is not None else size / seen if self.weighting == "sample" else 1 / turn
            centre: Tensor = mean.mul_(1 - share).add_(total, alpha=share / size).float()  # of float64, so a copy
            return centre

    def _update(self, embeddings: Tensor, on_host: bool) -> None:
        # On the CPU the counts are read as numbers: that is fast there. Elsewhere it would wait for the device,
        # and in a compiled graph it would break the graph, so they stay tensors.
        size = embeddings.shape[0]
        if size == 0:
            return
        batch, scatter, count = self._summarise(embeddings, on_host)
        if on_host and count != size:
            warn(f"{size - int(count)} of {size} embeddings hold NaN or Inf: predicted, but kept out of the centroid")
        mean, seen = self.mean, self._add("count", count, on_host)
        self._add("batches", count > 0, on_host)
        if not on_host or count != size:
            self._add("rejected", size - count, on_host)
        if scatter is not None:
            share = count / self._at_least_one(seen + count)
            # Through a view: torch.compile (2.13) loses what is written to a float64 tensor without dimensions.
            self.scatter.view(1).add_(scatter + (batch - mean).square().sum() * (seen * share))
        mean.lerp_(batch, self._weight(seen, count))

    def _add(self, name: str, number: int | Tensor, on_host: bool) -> int | Tensor:
        """Add to a count and return what it was before."""
        buffer: Tensor = getattr(self, name)
        if on_host:
            before = int(buffer)
            buffer.fill_(before + number)
            return before
        old = buffer.clone()
        buffer.add_(number)
        return old

    def _summarise(self, embeddings: Tensor, on_host: bool) -> tuple[Tensor, Tensor | None, int | Tensor]:
        """Mean (d,), scatter about it () if asked for, and number of the finite rows of a batch (B, d)."""
        wide = torch.promote_types(embeddings.dtype, torch.float32)
        batch = embeddings.mean(0, dtype=wide)
        count: int | Tensor = embeddings.shape[0]
        # The mean of a batch is finite only if all its rows are. If it is not, sums may have overflowed, too.
        if not on_host or not math.isfinite(batch.sum().item()):
            finite = torch.isfinite(embeddings).all(dim=1)
            count = int(finite.sum()) if on_host else finite.sum()
            embeddings = torch.where(finite.unsqueeze(1), embeddings, 0.0)
            batch = embeddings.sum(0, dtype=self.mean.dtype) / self._at_least_one(count)
            embeddings = torch.where(finite.unsqueeze(1), embeddings, batch) if self.variance else embeddings
        scatter = self._scatter(embeddings, batch, on_host) if self.variance else None
        return batch.to(self.mean.dtype), scatter, count

    def _scatter(self, embeddings: Tensor, centre: Tensor, on_host: bool) -> Tensor:
        """Sum of squared distances of embeddings (B, d) to a centre (d,)."""
        scatter = (embeddings - centre).square().sum()
        if on_host and not math.isfinite(scatter.item()):
            scatter = (embeddings.to(self.mean.dtype) - centre).square().sum()
        return scatter.to(self.mean.dtype)

    def _weight(self, seen: int | Tensor, count: int | Tensor) -> float | Tensor:
        """What share of the new mean a batch gets, (): 0 if none of its rows is finite."""
        if self.alpha is not None:
            share: float | Tensor = self.alpha * (count > 0)
        elif self.weighting == "batch":
            share = (count > 0) / self.batches.clamp(min=1).to(self.mean.dtype)
        else:
            share = count / self._at_least_one(seen + count)
        return share.to(self.mean.dtype) if isinstance(share, Tensor) else share

    def _at_least_one(self, count: int | Tensor) -> int | Tensor:
        """A count to divide by."""
        return count.to(self.mean.dtype).clamp(min=1) if isinstance(count, Tensor) else max(count, 1)

    @torch.no_grad()
    def merge(self, other: Centroid) -> None:
        """Take in another centroid, exactly as if its samples had come here.

        Raises:
            OptionError: A moving average cannot be merged: it depends on the order of its batches.
            StateMismatchError: The two count in different ways or differ in size.
        """
        if self.alpha is not None or other.alpha is not None:
            raise OptionError("a moving average cannot be merged: it depends on the order of its batches")
        kind, others = ((c.features, c.weighting, c.variance) for c in (self, other))
        if kind != others:
            raise StateMismatchError(f"centroids of {kind} and {others} (size, weighting, variance) cannot be merged")
        new = {name: tensor.to(self.mean.device) for name, tensor in other.state().items()}
        with self._guard():
            self._merge(new)

    def _merge(self, new: Mapping[str, Tensor]) -> None:
        mean = new["mean"].to(self.mean)
        by = "batches" if self.weighting == "batch" else "count"
        mine, theirs = getattr(self, by), new[by]
        share = (theirs / (mine + theirs).clamp(min=1).to(self.mean.dtype)).to(self.mean.dtype)
        if self.variance:
            between = (mean - self.mean).square().sum() * (mine * share)
            self.scatter += new["scatter"].to(self.scatter) + between
        self.mean.lerp_(mean, share)
        for name in ("count", "batches", "rejected"):
            getattr(self, name).add_(new[name])

    @torch.no_grad()
    def set(self, mean: Tensor, count: int = 0) -> None:
        """Put a known centroid in, for example of another domain.

        Args:
            mean: The centroid, (d,).
            count: How many samples stand behind it. With 0, the next update forgets it. A moving average goes on
                from it, whatever the count.
        """
        if mean.shape != self.mean.shape:
            raise InputError(f"a centroid here has {self.features} numbers, got a tensor of {tuple(mean.shape)}")
        if not torch.isfinite(mean).all():
            raise InputError("the centroid to set holds NaN or Inf")
        if count < 0:
            raise InputError(f"the count is {count}: no fewer than 0 samples can stand behind a centroid")
        with self._guard():
            self.reset()
            # To a moving average without its zero start this is one batch: `value` will divide by alpha.
            self.mean.copy_(mean * self.alpha if self.debias and self.alpha is not None else mean)
            self.count.fill_(count)
            self.batches.fill_(1 if count or self.debias else 0)

    @torch.no_grad()
    def reset(self) -> None:
        """Forget everything."""
        with self._guard():
            for buffer in self.buffers():
                buffer.zero_()

    def _guard(self) -> AbstractContextManager[Any]:
        """The lock; nothing in a compiled graph, where there are no locks."""
        return nullcontext() if is_compiling() else self._lock

    # ---- saving and moving

    def state(self) -> dict[str, Tensor]:
        """A copy of all there is to know, by name."""
        with self._guard():
            return {name: buffer.detach().clone() for name, buffer in self.named_buffers()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` returned; either all of it or, with an error, nothing."""
        mine = dict(self.named_buffers())
        if mine.keys() != state.keys():
            raise StateMismatchError(f"a centroid consists of {sorted(mine)}, got {sorted(state)}")
        for name, buffer in mine.items():
            if buffer.shape != state[name].shape:
                raise StateMismatchError(
                    f"the centroid's {name!r} has shape {tuple(buffer.shape)}, got {tuple(state[name].shape)}"
                )
        with self._guard():
            for name, buffer in mine.items():
                buffer.copy_(state[name])

    @torch.inference_mode(False)
    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Centroid:
        """Follow the module to another device, but not to a narrower dtype."""
        device = fn(torch.empty(0, device=self.mean.device)).device
        real = widest(device)
        for name, buffer in self._buffers.items():
            if buffer is None:
                continue
            wanted = buffer.to(real) if buffer.is_floating_point() else buffer
            moved = fn(wanted)
            self._buffers[name] = moved if moved.dtype == wanted.dtype else wanted.to(device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()

    def extra_repr(self) -> str:
        """What stands between the brackets when the module is printed."""
        rule = f"alpha={self.alpha}" if self.alpha is not None else f"weighting={self.weighting!r}"
        return f"{self.features}, {rule}, count={int(self.count)}"


def widest(device: torch.device) -> torch.dtype:
    """The best floating point format of a device."""
    return torch.float32 if device.type == "mps" else torch.float64
