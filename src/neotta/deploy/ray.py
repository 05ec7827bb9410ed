"""Adapt over a dataset larger than memory with Ray Data, in one or two passes.

```python
from neotta.deploy import ray as on_ray

on_ray.adapt(dataset, model)                # merges the partial centroids of the workers exactly
logits = on_ray.predict(dataset, model)     # a dataset, computed lazily

logits = on_ray.predict(dataset, model, adapt=True)     # one pass: adapt while predicting
```

The first pass sends one small row per batch to the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta.errors import DataError, OptionError
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.memory import OneStreamMemory
from neotta.neo.surgery import adaptation, heads
from neotta.neo.sync.replica import Message, gained, moments_of
from neotta.neo.variants import mergeable

Batch = dict[str, np.ndarray[Any, Any]]
Images = str | Callable[[Batch], Tensor]


def adapt(
    dataset: Any,
    model: nn.Module,
    images: Images = "image",
    *,
    batch_size: int = 64,
    workers: int = 1,
    **resources: Any,
) -> None:
    """Add a whole dataset to the state of an adapted model, as if the model had seen all of it itself.

    NEO-Stream adds its moments over all time, each worker with the shift that it has found so far; pass `prior=False`
    to `neotta.adapt` if the order of the samples means nothing.

    Args:
        dataset: A `ray.data.Dataset`.
        model: An adapted model. Its state is kept and added to.
        images: The column of preprocessed images, (3, H, W) each; or a function that converts a batch, a dictionary of
            arrays, to a tensor (B, 3, H, W).
        batch_size: Number of images per batch.
        workers: Number of copies of the model. Leave some CPUs of Ray to the tasks that read the data.
        **resources: Passed to `Dataset.map_batches` for each worker, for example `num_gpus=1`.

    Raises:
        OptionError: The model has a moving average or streams, which cannot be merged.
        MissingExtraError: Ray is not installed.
    """
    method, options = adaptation(model)[:2]
    if not mergeable(options):
        raise OptionError(f"a moving average ({method}) depends on the order of its batches: use 'neo' with Ray")
    _refuse_streams(model)
    memories = {name: cast("OneStreamMemory", neo.memory) for name, neo in heads(model).items()}
    totals = {name: moments_of(memory) for name, memory in memories.items()}
    for row in _mapped(dataset, _Summarise, (model, images), batch_size, workers, resources).iter_rows():
        for name, state in Message.decode(row["message"]).own.items():
            rule = memories[name].rule
            rule.merge(totals[name], rule.State(**state))
    for name, memory in memories.items():
        memory.load_state(totals[name]._asdict())


def predict(
    dataset: Any,
    model: nn.Module,
    images: Images = "image",
    *,
    adapt: bool = False,
    batch_size: int = 64,
    workers: int = 1,
    **resources: Any,
) -> Any:
    """Predict a whole dataset, with or without adapting.

    Args:
        dataset: A `ray.data.Dataset`.
        model: A model, adapted or not. It is not changed.
        images: See `adapt`.
        adapt: Adapt while predicting. Each worker starts from the state of the model and adapts to the batches it gets;
            this works for moving averages too.
        batch_size: See `adapt`.
        workers: See `adapt`.
        **resources: See `adapt`.

    Returns:
        A `ray.data.Dataset` with a column `logits`, (C,) each, instead of the column of images.

    Raises:
        OptionError: The model has streams.
        MissingExtraError: Ray is not installed.
    """
    _refuse_streams(model)
    return _mapped(dataset, _Adapting if adapt else _Predict, (model, images), batch_size, workers, resources)


def _refuse_streams(model: nn.Module) -> None:
    if any(isinstance(module, NEOHead) and module.memory.many for module in model.modules()):
        raise OptionError("a model with many streams cannot be run on Ray: use one model and one dataset per stream")


def _mapped(
    dataset: Any,
    worker: type[_Worker],
    given: tuple[nn.Module, Images],
    batch_size: int,
    workers: int,
    resources: dict[str, Any],
) -> Any:
    ray = need("ray", "adapting over Ray Data")
    need("ray.data", "adapting over Ray Data")
    model, images = given
    return dataset.map_batches(
        worker,
        fn_constructor_args=(ray.put(model), images),
        batch_size=batch_size,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=workers),
        **resources,
    )


class _Worker:
    """A copy of the model in a Ray actor."""

    def __init__(self, model: Any, images: Images) -> None:
        import ray

        self.model: nn.Module = ray.get(model)
        self.model.eval().to("cuda" if ray.get_gpu_ids() else "cpu")
        self.images = images

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Logits of a batch, (B, C)."""
        if callable(self.images):
            data = self.images(batch)
        elif self.images in batch:
            data = torch.from_numpy(np.ascontiguousarray(batch[self.images]))
        else:
            raise DataError(f"the dataset has no column {self.images!r}: it has {', '.join(batch)}")
        parameter = next(self.model.parameters())
        return logits_of(self.model(data.to(parameter.device, parameter.dtype)))


class _Summarise(_Worker):
    """Computes what each batch adds to the moments."""

    def __call__(self, batch: Batch) -> dict[str, list[bytes]]:
        before = {}
        for name, neo in heads(self.model).items():
            if neo.memory.rule.space == "embeddings":
                neo.memory.reset()  # a rule on logits needs its shift, to know the classes of the batch
            neo.unfreeze()
            before[name] = moments_of(cast("OneStreamMemory", neo.memory))
        self.run(batch)
        own = {}
        for name, neo in heads(self.model).items():
            now = moments_of(cast("OneStreamMemory", neo.memory))
            own[name] = gained(now, before[name], neo.memory.rule)._asdict()
        return {"message": [Message("", "", 0, 0, False, own).encode()]}


class _Adapting(_Worker):
    """Predicts, and adapts unless the model is frozen."""

    def __call__(self, batch: Batch) -> Batch:
        logits = self.run(batch).float().cpu().numpy()
        return {**{name: column for name, column in batch.items() if name != self.images}, "logits": logits}


class _Predict(_Adapting):
    """Predicts without adapting."""

    def __init__(self, model: Any, images: Images) -> None:
        super().__init__(model, images)
        for module in self.model.modules():
            if isinstance(module, NEOHead):
                module.freeze()
