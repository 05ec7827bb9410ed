"""A torch model behind a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.deploy.serve.engine import Engine, Forward
from neotta.errors import UnsupportedModelError
from neotta.models.load import LoadedModel
from neotta.neo.adapt import adapt
from neotta.neo.context import streams
from neotta.neo.find_head import find_heads
from neotta.neo.head import NEOHead
from neotta.neo.head_views import HeadView
from neotta.neo.module_swap import ModuleSwap
from neotta.neo.statefile import Array, fingerprint
from neotta.neo.surgery import heads, original


class TorchEngine(Engine):
    """A classifier of torch.

    The model itself stays plain and runs once per batch; what its head receives is caught, and the adaptive head runs
    on that again, which costs one small matrix product. So both answers are known, and a row of one camera can be
    learnt from while another is not.

    Args:
        loaded: The model.
        rule: A rule of `neotta.adapt`, or "none".
        folder: Folder of the cameras' states; None to keep them in memory.
        capacity: Most cameras in memory, if there is a folder.
        **options: Options of the rule.

    Raises:
        UnsupportedModelError: The logits are not those of the head.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        rule: str = "neo-stream",
        *,
        folder: str | os.PathLike[str] | None = None,
        capacity: int = 4096,
        **options: Any,
    ) -> None:
        self.model, self.preprocess = loaded.model.eval(), loaded.preprocess
        self.rule, self.options = rule, dict(options)
        self._caught: dict[nn.Module, Tensor] = {}
        if rule == "none":
            originals: list[nn.Module | None] = [*find_heads(self.model).values()]
            self.heads: dict[str, NEOHead] = {}
        else:
            place: dict[str, Any] = {} if folder is None else {"folder": folder, "capacity": capacity}
            adapt(self.model, rule, streams=True, **place, **options)
            self.heads = heads(self.model)
            pairs = {neo: original(neo) for neo in self.heads.values()}
            originals = list(pairs.values())
            ModuleSwap(self.model, pairs).do()  # type: ignore[arg-type]
        plain = [module for module in originals if isinstance(module, nn.Linear) and not isinstance(module, HeadView)]
        if len(plain) < len(originals):
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no plain linear head, which a server needs: serve an ONNX file of it"
            )
        self.streams = {name: neo.streams for name, neo in self.heads.items()}
        self._plain = plain
        for module in plain:
            module.register_forward_pre_hook(self._catch)
        self.classes = plain[0].out_features
        self.labels = loaded.labels or tuple(str(index) for index in range(self.classes))
        self._check()

    def _catch(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._caught[module] = inputs[0].detach()

    def _check(self) -> None:
        """The answer must be that of the head, or the mean over several: else it cannot be re-centered beside it."""
        images = np.random.default_rng(0).normal(size=(2, 3, *self.preprocess.size)).astype(np.float32)
        forward = self.forward(images)
        with torch.inference_mode():
            parts = [head(rows) for head, rows in zip(self._plain, forward.embeddings, strict=True)]
            mean = torch.stack(parts).mean(0).float().cpu().numpy()
        if mean.shape != forward.logits.shape or not np.allclose(mean, forward.logits, rtol=1e-3, atol=1e-3):
            raise UnsupportedModelError(
                f"the logits of this {type(self.model).__name__} are not those of its linear head: it cannot be served"
            )
        if self.heads:  # what torch imports at the first call takes seconds, and no camera should wait for it
            self.recenter(forward, np.arange(2), ["", ""], adapt=False)

    def forward(self, images: Array) -> Forward:
        """Run the model once."""
        self._caught.clear()
        first = self._plain[0].weight
        with torch.inference_mode():
            logits = self.model(torch.from_numpy(images).to(first.device, first.dtype))
        caught = tuple(self._caught[head] for head in self._plain)
        return Forward(logits.float().cpu().numpy(), caught)

    def recenter(self, forward: Forward, rows: Array, cameras: Sequence[str], adapt: bool) -> Array:
        """Run the adaptive heads on what the plain ones received."""
        index = torch.from_numpy(rows)
        parts = []
        with torch.inference_mode(), streams(cameras):
            for neo, embeddings in zip(self.heads.values(), forward.embeddings, strict=True):
                neo.adapting = adapt
                parts.append(neo(embeddings if len(rows) == len(embeddings) else embeddings[index]))
        logits = parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)
        return np.asarray(logits.float().cpu().numpy())

    def head_logits(self, embeddings: Tensor) -> Tensor | None:
        """Run the plain head, if there is only one."""
        return self._plain[0](embeddings) if len(self._plain) == 1 else None

    def about(self) -> dict[str, Any]:
        """As `neotta.save` describes a state, so that `neotta.load` takes it."""
        prints = {name: fingerprint(dict(neo.named_parameters())) for name, neo in self.heads.items()}
        options = next(iter(self.heads.values())).__dict__["_adaptation"].options if self.heads else None
        values = {} if options is None else options.model_dump(mode="json")
        return {**super().about(), "kind": "model", "options": values, "heads": prints}
