"""Adapting over a dataset larger than the memory of one machine, with Ray Data, in two passes or in one.

```python
from neotta.deploy import ray as on_ray

on_ray.adapt(dataset, model)                # every worker makes partial centroids; they are merged exactly
logits = on_ray.predict(dataset, model)     # a dataset again, computed as it is read

logits = on_ray.predict(dataset, model, adapt=True)     # or in one pass, adapting on the way
```

The first pass brings one small row per batch to the driver, whatever the size of the dataset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta._extras import need
from neotta.errors import DataError, OptionError
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.surgery import adaptation, heads
from neotta.neo.sync.replica import Message, copied
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
    """Take a whole dataset into the centroid of an adapted model, which then is as if it had seen all of it itself.

    Args:
        dataset: A `ray.data.Dataset`.
        model: An adapted model. What it has taken in before counts too.
        images: The column of the images, ready for the model, (3, H, W) each; or a function that makes the tensor
            (B, 3, H, W) out of a batch, a dictionary of arrays.
        batch_size: How many images a worker runs at once.
        workers: How many copies of the model run side by side. Leave some processors of Ray to those who read the data.
        **resources: What `Dataset.map_batches` is to give each of them, such as `num_gpus=1`.

    Raises:
        OptionError: The method keeps a moving average or many streams: partial centroids cannot be merged then.
        MissingExtraError: Ray is not installed.
    """
    method, options, _ = adaptation(model)
    if not mergeable(options):
        raise OptionError(f"a moving average ({method}) depends on the order of its batches: use 'neo' on Ray")
    _refuse_streams(model)
    totals = {name: copied(neo.centroid.state()) for name, neo in heads(model).items()}
    for row in _mapped(dataset, _Summarise, (model, images), batch_size, workers, resources).iter_rows():
        for name, state in Message.decode(row["message"]).own.items():
            heads(model)[name].memory.rule.merge(totals[name], copied(state))
    for name, neo in heads(model).items():
        neo.centroid.load_state(totals[name]._asdict())


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
    """Answer for a whole dataset, with the centroid as it is or adapting on the way.

    Args:
        dataset: A `ray.data.Dataset`.
        model: An adapted model, or any other. It stays as it is.
        images: See `adapt`.
        adapt: Adapt on the way, in one pass. Each worker starts from the state of the model and goes on by itself, with
            the batches that come to it, which works for moving averages too.
        batch_size: See `adapt`.
        workers: See `adapt`.
        **resources: See `adapt`.

    Returns:
        A `ray.data.Dataset` with a column `logits`, (C,) each, in the place of the column of images.

    Raises:
        OptionError: The model keeps many streams.
        MissingExtraError: Ray is not installed.
    """
    _refuse_streams(model)
    return _mapped(dataset, _Adapting if adapt else _Predict, (model, images), batch_size, workers, resources)


def _refuse_streams(model: nn.Module) -> None:
    if any(isinstance(module, NEOHead) and module.memory.many for module in model.modules()):
        raise OptionError("a model with many streams cannot be run on Ray: use one model, and one dataset, per stream")


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
    """A copy of the model in a process of Ray."""

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
    """Makes the centroid of each batch, and nothing else."""

    def __call__(self, batch: Batch) -> dict[str, list[bytes]]:
        for neo in heads(self.model).values():
            neo.centroid.reset()
            neo.unfreeze()
        self.run(batch)
        own = {name: copied(neo.centroid.state())._asdict() for name, neo in heads(self.model).items()}
        return {"message": [Message("", "", 0, 0, False, own).encode()]}


class _Adapting(_Worker):
    """Answers, and adapts unless the model is frozen."""

    def __call__(self, batch: Batch) -> Batch:
        logits = self.run(batch).float().cpu().numpy()
        return {**{name: column for name, column in batch.items() if name != self.images}, "logits": logits}


class _Predict(_Adapting):
    """Answers without adapting."""

    def __init__(self, model: Any, images: Images) -> None:
        super().__init__(model, images)
        for module in self.model.modules():
            if isinstance(module, NEOHead):
                module.freeze()
