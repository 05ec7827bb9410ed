"""What a model takes: a tensor, or tensors by name, as Hugging Face models do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from neotta.errors import InputError

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]

_BATCH = 2  # two samples show which axis counts them
_TOKENS, _SAMPLES_OF_SOUND = 8, 16000


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a model with a tensor, or with tensors by name."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def tensors(inputs: Any, what: str = "a batch") -> list[Tensor]:
    """The tensors of a batch, which all have the samples on their first axis.

    Raises:
        InputError: It is neither a tensor nor a mapping of tensors, or they differ in the number of samples.
    """
    if isinstance(inputs, Tensor):
        return [inputs]
    if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise InputError(f"{what} must be a tensor, or a dict of tensors by name, got {type(inputs).__name__}")
    found = [value for value in inputs.values() if value.dim()]
    if not found or len({len(value) for value in found}) > 1:
        shapes = {name: tuple(value.shape) for name, value in inputs.items()}
        raise InputError(f"the tensors of a batch have one row per sample, got {shapes}")
    return found


def batch_size(inputs: Inputs) -> int:
    """Number of samples in a batch."""
    return len(tensors(inputs)[0])


def each(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """A batch of changed tensors; those without a batch axis stay as they are."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    return {name: change(value) if value.dim() else value for name, value in inputs.items()}


def rows(inputs: Inputs, chosen: Any) -> Inputs:
    """Some samples of a batch, chosen by indices, a mask or a slice."""
    return each(inputs, lambda tensor: tensor[chosen])


def examples(model: nn.Module) -> Iterator[Inputs]:
    """Made-up batches of noise that a model may take, the likeliest first."""
    like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), torch.zeros(()))
    made = [*_of_transformers(model), *_by_first_layer(model), *_images(model)]
    for inputs in made:
        yield each(inputs, lambda tensor: tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device))


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _tokens(vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(min(1, vocabulary - 1), vocabulary, (_BATCH, _TOKENS), generator=generator)


def _of_transformers(model: nn.Module) -> Iterator[Inputs]:
    config, name = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is None or not isinstance(name, str):
        return
    if name == "input_ids":
        ids = _tokens(getattr(config, "vocab_size", 2))
        yield {name: ids, "attention_mask": torch.ones_like(ids)}
        yield {name: ids[:1], "attention_mask": torch.ones_like(ids[:1])}  # without a padding token, one at a time
    mels, length = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    if name == "input_values":
        if isinstance(mels, int) and isinstance(length, int):
            yield {name: _noise(_BATCH, length, mels)}
        yield {name: _noise(_BATCH, _SAMPLES_OF_SOUND)}
    positions = getattr(config, "max_source_positions", None)
    if name == "input_features" and isinstance(mels, int) and isinstance(positions, int):
        yield {name: _noise(_BATCH, mels, 2 * positions)}
    frames = getattr(config, "num_frames", None)
    if name == "pixel_values" and isinstance(frames, int):
        for images in _images(model):
            yield {name: images[:, None].expand(-1, frames, -1, -1, -1).contiguous()}


def _by_first_layer(model: nn.Module) -> Iterator[Inputs]:
    kinds = (nn.Linear, nn.Embedding, nn.EmbeddingBag, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    first = next((module for module in model.modules() if isinstance(module, kinds)), None)
    if isinstance(first, (nn.Embedding, nn.EmbeddingBag)):
        yield _tokens(first.num_embeddings)
    elif isinstance(first, nn.Conv1d):
        yield _noise(_BATCH, first.in_channels, _SAMPLES_OF_SOUND)
    elif isinstance(first, nn.Conv3d):
        yield _noise(_BATCH, first.in_channels, 8, 64, 64)
    elif isinstance(first, nn.Linear) and isinstance(first.in_features, int):
        yield _noise(_BATCH, first.in_features)


def _images(model: nn.Module) -> list[Tensor]:
    """Images of the likely sizes, the one that the model declares first."""
    conv = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    told = [getattr(getattr(model, "patch_embed", None), "img_size", None)]
    told.append((getattr(model, "pretrained_cfg", None) or {}).get("input_size"))
    told.append(getattr(getattr(model, "config", None), "image_size", None))
    sides = [size[-1] if isinstance(size, (tuple, list)) else size for size in told] + [224, 32]
    channels = conv.in_channels if conv is not None else 3
    return [
        _noise(_BATCH, channels, side, side) for side in dict.fromkeys(side for side in sides if isinstance(side, int))
    ]
