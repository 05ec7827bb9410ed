"""A state of the method for each camera, in an order of several cameras."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from neotta.adapters.registry import AnyAdapter
from neotta.data.drawing import Indices


class CameraStates:
    """Keeps the cameras of an order apart: the rows of a batch are predicted camera by camera, each with its own state.

    This works with every method, since a state can be put aside and taken up again at any time.

    Args:
        adapter: The adapter, at its start.
    """

    def __init__(self, adapter: AnyAdapter) -> None:
        self._adapter, self._start = adapter, adapter.state_dict()
        self._states: dict[int, dict[str, Tensor]] = {}
        self._current: int | None = None

    def _switch(self, camera: int) -> None:
        if camera == self._current:
            return
        if self._current is not None:
            self._states[self._current] = self._adapter.state_dict()
        self._adapter.load_state_dict(self._states.get(camera, self._start))
        self._current = camera

    def predict(self, inputs: Tensor, cameras: Indices, step: Callable[[Tensor], Tensor]) -> Tensor:
        """Predict a batch.

        Args:
            inputs: Images or embeddings, (B, ...).
            cameras: The camera of each, (B,).
            step: Predicts the rows of one camera, and adapts to them.

        Returns:
            Logits, (B, C).
        """
        rows, parts = [], []
        for camera in np.unique(cameras).tolist():
            here = np.flatnonzero(cameras == camera)
            self._switch(camera)
            parts.append(step(inputs[torch.from_numpy(here)]))
            rows.append(here)
        place = np.argsort(np.concatenate(rows))
        return torch.cat(parts)[torch.from_numpy(place)]
