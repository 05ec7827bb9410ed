"""`neotta.zero_shot`: a CLIP-like model and a list of class names as an ordinary classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.errors import OptionError, UnsupportedModelError
from neotta.neo.find_head import compares_with_texts
from neotta.neo.surgery import check_module

_TEXTS = 256  # that are embedded at a time


class ZeroShotClassifier(nn.Module):
    """Images to logits of classes that are given by their names: `head(normalize(image embedding))`.

    The head is a plain linear layer: its rows are the normalised text embeddings times the model's temperature, its
    bias is that of SigLIP. The cosine is linear in the normalised embedding, so whatever takes a classifier with a
    linear head takes this one.

    Attributes:
        model: The CLIP-like model, not a copy.
        head: The linear head.
        classes: The names of the classes.
        templates: The prompts, with `{}` for the name.
    """

    main_input_name = "pixel_values"

    def __init__(self, model: nn.Module, head: nn.Linear, classes: Sequence[str], templates: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.head = head
        self.classes = tuple(classes)
        self.templates = tuple(templates)
        self.config = SimpleNamespace(image_size=_image_size(model))
        self.training = model.training

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Classify images, (B, 3, H, W), prepared as the model's processor does. Returns logits, (B, C)."""
        model: Any = self.model
        if hasattr(model, "encode_image"):  # of open_clip
            features = model.encode_image(pixel_values)
        else:
            features = model.get_image_features(pixel_values=pixel_values)
        logits: Tensor = self.head(F.normalize(_tensor(features), dim=-1))
        return logits


def zero_shot(
    model: nn.Module, processor: Any, templates: str | Sequence[str], classes: Sequence[str]
) -> ZeroShotClassifier:
    """Make an ordinary classifier from a CLIP-like model and the names of classes.

    The text embeddings of each class, one per template, are normalised, averaged and normalised again.

    ```python
    classifier = neotta.zero_shot(clip, processor, ["a photo of a {}"], ["cat", "dog", "horse"])
    neotta.adapt(classifier)
    logits = classifier(processor(images=images, return_tensors="pt")["pixel_values"])
    ```

    Args:
        model: A `CLIPModel` or `SiglipModel` of transformers, or one built alike; or a model of open_clip.
        processor: The model's processor or tokenizer.
        templates: One or more prompts, with `{}` for the name of a class.
        classes: The names.

    Returns:
        A module from images to logits; `neotta.adapt`, `neotta.create` and `neotta.split` take it.

    Raises:
        UnsupportedModelError: The model does not embed images and texts.
        OptionError: The templates or the classes cannot be used.
    """
    check_module(model)
    prompts = [templates] if isinstance(templates, str) else list(templates)
    names = list(classes) if not isinstance(classes, str) else []
    _check(prompts, names)
    if not compares_with_texts(model):
        raise UnsupportedModelError(
            f"{type(model).__name__} does not embed images and texts: expected a CLIPModel or SiglipModel of "
            "transformers, or a model of open_clip"
        )
    with torch.no_grad(), torch.inference_mode(False):
        scale: Any = model.logit_scale
        rows = _class_embeddings(model, processor, prompts, names) * scale.detach().exp()
        bias = getattr(model, "logit_bias", None)
        head = nn.Linear(rows.shape[1], len(names), bias=bias is not None, device="meta")
        head.weight = nn.Parameter(rows, requires_grad=False)
        if bias is not None:
            head.bias = nn.Parameter(bias.detach().reshape(1).expand(len(names)).clone(), requires_grad=False)
    return ZeroShotClassifier(model, head, names, prompts)


def _check(prompts: list[str], names: list[str]) -> None:
    if not prompts or not all(isinstance(prompt, str) and "{}" in prompt for prompt in prompts):
        raise OptionError(f"templates are {prompts!r}: expected prompts with {{}} for the name of a class")
    if len(names) < 2 or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise OptionError("classes must be at least two different names")


def _class_embeddings(model: Any, processor: Any, prompts: list[str], names: list[str]) -> Tensor:
    texts = [prompt.replace("{}", name) for name in names for prompt in prompts]
    of_open_clip, parts = hasattr(model, "encode_text"), []
    for tokens in _tokens(model, processor, texts):
        features = model.encode_text(tokens) if of_open_clip else model.get_text_features(**tokens)
        parts.append(F.normalize(_tensor(features), dim=-1))
    return F.normalize(torch.cat(parts).reshape(len(names), len(prompts), -1).mean(dim=1), dim=-1)


def _tokens(model: nn.Module, processor: Any, texts: list[str]) -> Iterator[Any]:
    device = next(model.parameters()).device
    tokenizer = getattr(processor, "tokenizer", processor)
    for start in range(0, len(texts), _TEXTS):
        part = texts[start : start + _TEXTS]
        if hasattr(model, "encode_text"):
            yield tokenizer(part).to(device)
            continue
        # SigLIP was trained with texts that are all padded to one length, and has no mask.
        padding = "max_length" if "siglip" in type(model).__name__.lower() else True
        length = getattr(getattr(getattr(model, "config", None), "text_config", None), "max_position_embeddings", None)
        made = tokenizer(part, padding=padding, truncation=True, max_length=length, return_tensors="pt")
        yield {name: value.to(device) for name, value in made.items() if name in ("input_ids", "attention_mask")}


def _tensor(features: Any) -> Tensor:
    """The features themselves; some versions of transformers return them in an output with more."""
    tensor = features if isinstance(features, Tensor) else features.pooler_output
    assert isinstance(tensor, Tensor)
    return tensor


def _image_size(model: nn.Module) -> int | None:
    vision = getattr(getattr(model, "config", None), "vision_config", None) or getattr(model, "visual", None)
    size = getattr(vision, "image_size", None)
    size = size[-1] if isinstance(size, (tuple, list)) else size
    return int(size) if isinstance(size, (int, float)) and math.isfinite(size) else None
