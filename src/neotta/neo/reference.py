"""`neotta.reference`: where clean data lies, measured once before deployment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from neotta._warning import warn
from neotta.errors import InputError
from neotta.neo.context import untouched
from neotta.neo.find_head import find_heads, logits_of
from neotta.neo.head import NEOHead
from neotta.neo.head_views import CosineView, Head, embeddings_of, linear_view
from neotta.neo.model_inputs import Inputs, evaluating
from neotta.neo.output_head import NAME as OUTPUT
from neotta.neo.output_head import at_logits, fingerprints_of, read_output
from neotta.neo.reference_file import HeadReference, Reference
from neotta.neo.surgery import check_module, stand_ins

_BATCH = 64
FEW = 64  # below so many samples the mean is hardly known


def reference(
    model: nn.Module,
    images: Tensor | Iterable[Any] | str | os.PathLike[str],
    *,
    head: str | None = None,
    example: Inputs | None = None,
    at: Literal["head", "logits"] | None = None,
) -> Reference:
    """Measure where clean data lies, so that rules re-center towards it instead of the origin.

    Run it once, before deployment, on a few hundred images like those the model was trained on; labels are not needed.
    Pass the result, or a file it was saved to, to `neotta.adapt(model, reference=...)`.

    Args:
        model: The classifier. If it is adapted, the plain model is measured; nothing changes.
        images: Prepared images, (N, 3, H, W); or batches of them, as a `DataLoader` gives (of pairs and dictionaries,
            the images are used); or a file written by `Reference.save`.
        head: Name of the linear layer, if it cannot be found.
        example: A batch of images to find the head with, if a blank image does not work; by default some of a tensor of
            images.
        at: `"logits"` measures the output of the model, for `neotta.adapt(model, at="logits")`; by default that is done
            for cosine classifiers, as there.

    Returns:
        The reference: `reference.save(path)` writes it to a file.

    Raises:
        InputError: There are no usable images.
        StateMismatchError: The file is a reference of another model.
    """
    check_module(model)
    if example is None and isinstance(images, Tensor) and images.dim() > 1 and len(images) > 1:
        example = images[:2]
    output = at_logits(at, head)
    found = {} if output else _heads(model, head, example)
    if any(isinstance(layer, CosineView) for layer in found.values()):
        output, found = True, {}
    if output and stand_ins(model):
        raise InputError("the output of an adapted model is not that of the plain one: neotta.restore(model) first")
    fingerprints = fingerprints_of(model, found)
    if isinstance(images, (str, os.PathLike)):
        loaded = Reference.load(images)
        loaded.check_fingerprints(fingerprints)
        return loaded
    sums: dict[str, _HeadSums | _OutputSums] = {name: _HeadSums(linear) for name, linear in found.items()}
    if output:
        sums[OUTPUT] = _OutputSums(model, example)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.inference_mode(), evaluating(list(model.modules())), untouched(model), ExitStack() as hooks:
        for each in sums.values():
            hooks.enter_context(each.watch(model))
        for batch in _batches(images):
            model(batch.to(device))
    return Reference({name: each.result(name) for name, each in sums.items()}, fingerprints)


def measured(linear: nn.Linear, embeddings: Tensor, name: str) -> HeadReference:
    """Measure where clean embeddings, (N, d), lie, as a head of this name sees them."""
    sums = _HeadSums(linear)
    with torch.inference_mode():
        sums.see(linear, (embeddings,))
    return sums.result(name)


class _Sums:
    """Sums over clean embeddings and logits."""

    def __init__(self, features: int, classes: int, bias: Tensor | None) -> None:
        known = np.zeros(classes) if bias is None else bias.detach().cpu().double().numpy()
        self._bias = known - known.mean()
        self._embeddings, self._logits, self._predicted = np.zeros(features), np.zeros(classes), np.zeros(classes)
        self._peak, self._count, self._rejected = 0.0, 0, 0

    def add(self, embeddings: Tensor, logits: Tensor) -> None:
        """Add rows, (N, d) and (N, C)."""
        finite = embeddings.isfinite().all(1)
        self._rejected += int((~finite).sum())
        self._embeddings += embeddings[finite].cpu().double().sum(0).numpy()
        centred = logits[finite].cpu().double()
        centred = centred - centred.mean(1, keepdim=True)
        chances = centred.softmax(1)
        self._count += len(centred)
        self._logits += centred.sum(0).numpy()
        self._predicted += chances.sum(0).numpy()
        self._peak += float((chances * centred).sum())

    def result(self, name: str) -> HeadReference:
        count = self._count
        if count < 2:
            raise InputError(f"the head {name!r} got {count} clean samples: pass at least two, better a few hundred")
        if self._rejected:
            warn(f"{self._rejected} clean samples contain NaN or Inf and were left out of the reference")
        if count < FEW:
            warn(f"a reference of {count} clean samples is rough: use a few hundred")
        origin = self._logits / count
        prior = (self._predicted + 1 / len(origin)) / (count + 1)
        return HeadReference(count, self._embeddings / count, origin, prior, self._peak / count, origin - self._bias)


class _HeadSums(_Sums):
    """Sums over what one head gets and returns."""

    def __init__(self, head: Head) -> None:
        self._head, self._linear = head, linear_view(head)
        super().__init__(self._linear.in_features, self._linear.out_features, self._linear.bias)

    def see(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        rows = embeddings_of(self._head, args[0])
        self.add(rows, nn.functional.linear(rows, self._linear.weight, self._linear.bias))

    def watch(self, model: nn.Module) -> RemovableHandle:
        return self._head.register_forward_pre_hook(self.see)


class _OutputSums(_Sums):
    """Sums over what a model returns."""

    def __init__(self, model: nn.Module, example: Inputs | None) -> None:
        classes, _, self._given_bias = read_output(model, example)
        super().__init__(classes, classes, self._given_bias)

    def see(self, model: nn.Module, args: Any, output: Any) -> None:
        rows = logits_of(output)
        self.add(rows if self._given_bias is None else rows - self._given_bias, rows)

    def watch(self, model: nn.Module) -> RemovableHandle:
        return model.register_forward_hook(self.see)


def _heads(model: nn.Module, head: str | None, example: Inputs | None) -> dict[str, Head]:
    """The heads by name; of an adapted model, those that adapt."""
    if not stand_ins(model):
        return find_heads(model, head, example)
    found: dict[str, Head] = {name: module for name, module in model.named_modules() if isinstance(module, NEOHead)}
    if any(type(neo) is not NEOHead for neo in found.values()):
        raise InputError("this model is not adapted at a linear layer: neotta.restore(model) first")
    if any(neo.followers for neo in found.values() if isinstance(neo, NEOHead)):
        raise InputError("this model is adapted with neo-bn, which changes its embeddings: neotta.restore(model) first")
    return found


def _batches(images: Tensor | Iterable[Any]) -> Iterator[Tensor]:
    if isinstance(images, Tensor):
        if images.dim() < 2:
            raise InputError(f"expected a batch of images, got a tensor of shape {tuple(images.shape)}")
        yield from (images[start : start + _BATCH] for start in range(0, len(images), _BATCH))
        return
    if not isinstance(images, Iterable):
        raise InputError(f"expected images, batches of images or a file, got {type(images).__name__}")
    for batch in images:
        if isinstance(batch, Mapping):
            batch = batch.get("pixel_values", batch.get("images", batch.get("image")))
        elif isinstance(batch, (tuple, list)) and batch:
            batch = batch[0]
        if not isinstance(batch, Tensor):
            raise InputError(f"expected batches of images as tensors, got {type(batch).__name__}")
        yield batch
