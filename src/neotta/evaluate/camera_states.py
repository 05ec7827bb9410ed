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
            self._adapter.load_state_dict(self._states.get(camera, self._start))
            parts.append(step(inputs[torch.from_numpy(here)]))
            self._states[camera] = self._adapter.state_dict()
            rows.append(here)
        place = np.argsort(np.concatenate(rows))
        return torch.cat(parts)[torch.from_numpy(place)]
