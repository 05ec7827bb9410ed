"""NEO for many streams as a layer: a linear head that subtracts the running mean of each sample's stream."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from neotta.errors import InputError, ModelError
from neotta.neo.centroid import Centroid
from neotta.neo.head import NEOHead
from neotta.neo.statefile import fingerprint
from neotta.neo.stream_centroids import StreamCentroids
from neotta.neo.stream_ids import StreamId, current
from neotta.neo.stream_store import StreamStore
from neotta.options import Options


class StreamHead(NEOHead):
    """A `NEOHead` with one centroid for each stream: W (h - c_s) + b, s the stream that h comes from.

    Call the model inside `with neotta.streams(ids):`, one id for each sample of the batch; it may mix streams. With
    leading dimensions (B, T, d), ids are for the B samples. A batch answers for each stream exactly as a `NEOHead` of
    that stream alone would, to the precision of float32. Frozen, a stream that was never met is answered as the plain
    layer would.

    `torch.compile` leaves this layer out of its graphs, as finding the streams is the work of Python.
    """

    streams: StreamCentroids

    @classmethod
    def with_streams(
        cls,
        linear: nn.Linear,
        method: str,
        options: Options,
        *,
        capacity: int | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> StreamHead:
        """Make the head that a method of the NEO family needs, with a centroid for each stream.

        Args:
            linear: The layer whose parameters it shares.
            method: `"neo"`, `"neo-continual"` or `"neo-mse"`.
            options: The method's options.
            capacity: How many streams are held in memory at most.
            folder: Where the others are.
        """
        head = cls.variant(linear, method, options)
        owner = fingerprint(dict(linear.named_parameters())) + f" {method} {options}"
        store = StreamStore(folder, linear.in_features, owner) if folder is not None else None
        head._remember(head.streams.rule, capacity=capacity, store=store)
        return head

    def _remember(self, rule: dict[str, Any], **limits: Any) -> None:
        self.streams = StreamCentroids(self.in_features, **rule, **limits, device=self.weight.device)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: Tensor) -> Tensor:
        """Re-center each sample with the centroid of its stream, and classify.

        Args:
            input: Embeddings, (B, ..., d).

        Returns:
            Logits, (B, ..., C).

        Raises:
            InputError: There are no stream ids, or not as many as samples.
            ModelError: The model is traced by `torch.export`.
        """
        if torch.compiler.is_compiling():  # by torch.export, as torch.compile stays out of here
            raise ModelError(
                "a model with many streams cannot be traced: export one of them, neotta.fold(model, stream=...), or "
                "neotta.save(model, path, stream=...) and load it into an ordinary model"
            )
        self._check(input)
        ids = current(len(input) if input.dim() > 1 else 1)
        flat = input.reshape(-1, self.in_features)
        centres = self.streams.step(flat, ids, adapt=self.adapting, shrink=self.shrinkage is not None)
        return self.classify((flat.to(centres.dtype) - centres).to(input.dtype).reshape(input.shape))

    def centre_of(self, stream: StreamId) -> Tensor:
        """A copy of the vector that is subtracted for a stream, (d,).

        Raises:
            InputError: There is no such stream.
        """
        centroid = self.streams.centroid(stream)
        return centroid.shrunk() if self.shrinkage else centroid.value()

    def folded_for(self, stream: StreamId) -> nn.Linear:
        """A plain layer that answers as this one does now for one stream."""
        return self._folded(self.centre_of(stream))

    def reset(self, stream: StreamId | None = None) -> None:
        """Forget one stream, or all of them."""
        self.streams.reset(stream)

    @property
    def count(self) -> int:
        """How many samples stand behind all the centroids together, those on disk too."""
        return sum(self.streams.counts().values())

    @property
    def centroid(self) -> Centroid:  # type: ignore[override]
        """There is none: see `streams`."""
        raise ModelError("this head keeps one centroid per stream: head.streams.centroid(stream) is a copy of one")

    def centre(self, dtype: torch.dtype | None = None) -> Tensor:
        """There is none: see `centre_of`."""
        raise InputError("this head keeps one centroid per stream: ask for head.centre_of(stream)")

    def folded(self) -> nn.Linear:
        """There is none: see `folded_for`."""
        raise InputError("each stream has its own bias: name one, as in neotta.fold(model, stream='gate')")
