"""Vision transformers with prompts among their tokens, and their class token after every block."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from neotta.errors import UnsupportedModelError
from neotta.neo.find_head import logits_of
from neotta.neo.split import Encoder

FIRST_NORMS = ("norm1", "layernorm_before", "ln_1", "layer_norm1")
"""What timm, Hugging Face and torchvision call the first norm layer of a block."""


class PromptedViT:
    """Runs a vision transformer with prompts, and records its class token after every block.

    The tokens become [class, prompts, patches] after the position embeddings are added, and before a norm in front
    of the blocks. After a call the model is as before.

    Args:
        model: The classifier: of timm, Hugging Face or torchvision, or built alike.
        encoder: Its encoder.

    Raises:
        UnsupportedModelError: The model is not one plain stack of transformer blocks.
    """

    def __init__(self, model: nn.Module, encoder: Encoder) -> None:
        stacks = list(_stacks(model))
        if len(stacks) != 1:
            raise _unsupported(model, f"it has {len(stacks) or 'no'} stacks of transformer blocks")
        owner, self.blocks = stacks[0]
        self.model = model
        self.encoder = encoder
        self.norms = [_first_norm(block) for block in self.blocks]
        norm_before = getattr(owner, "norm_pre", None)
        self.entry = norm_before if isinstance(norm_before, nn.Module) else self.blocks[0]

    @property
    def width(self) -> int:
        """Length of a token."""
        return int(self.norms[0].normalized_shape[-1])

    @property
    def num_features(self) -> int:
        """Length of the features of a sample: a token for each block, the last as the head reads it."""
        return self.width * (len(self.blocks) - 1) + self.encoder.head.in_features

    def prompt_bound(self) -> float:
        """Largest magnitude in an initial prompt: that of Xavier initialisation from a patch to a token."""
        layers = (layer for layer in self.model.modules() if isinstance(layer, (nn.Conv2d, nn.Linear)))
        patch = next(layers).weight[0].numel()
        return math.sqrt(6 / (patch + self.width))

    def embeddings(self, images: Tensor, prompts: Tensor | None) -> Tensor:
        """Embeddings, (B, d), with prompts, (P, width), among the tokens."""
        with self._prompted(prompts):
            return self.encoder(images)  # type: ignore[no-any-return]

    def features(self, images: Tensor, prompts: Tensor | None) -> Tensor:
        """The class token after every block, normalised, in float32 at least: (B, num_features)."""
        tokens: list[Tensor] = []

        def catch(module: nn.Module, args: Any, output: Tensor) -> None:
            tokens.append(output[:, 0].clone())  # a view would keep all tokens of all blocks in memory

        with _hooks([norm.register_forward_hook(catch) for norm in self.norms]):
            last = self.embeddings(images, prompts)
        together = torch.cat([*tokens[1:], last], dim=1)  # the first norm is in front of all blocks
        return together.float() if together.dtype.itemsize < 4 else together

    def blank(self) -> Tensor | None:
        """A black image of the size that the model declares, (1, 3, H, W); None if it declares none."""
        for owner in (getattr(self.model, "patch_embed", None), getattr(self.model, "config", None), self.model):
            size = getattr(owner, "img_size", None) or getattr(owner, "image_size", None)
            if size:
                height, width = (size, size) if isinstance(size, int) else size
                return self.encoder.head.weight.new_zeros(1, 3, height, width)
        return None

    def check(self, image: Tensor, prompts: Tensor) -> None:
        """Check, with one image, that prompts can be inserted and that the head reads only the class token.

        Raises:
            UnsupportedModelError: The model does not work this way.
        """
        self.encoder(image)  # errors of the image itself are raised here
        try:
            with self._prompted(prompts):
                logits = logits_of(self.model(image))
            embeddings = self.embeddings(image, prompts)
        except (RuntimeError, ValueError, IndexError) as error:
            raise _unsupported(self.model, f"it does not take further tokens ({error})") from error
        with _hooks([self.blocks[-1].register_forward_hook(_class_token_alone)]):
            alone = self.embeddings(image, prompts)
        if not _alike(alone, embeddings):
            raise _unsupported(self.model, "its head reads more than the class token")
        head = self.encoder.head
        if not _alike(F.linear(embeddings, head.weight, head.bias), logits):
            raise _unsupported(self.model, "its answer is not that of one linear head")

    @contextlib.contextmanager
    def _prompted(self, prompts: Tensor | None) -> Iterator[None]:
        if prompts is None:
            yield
            return

        def insert(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            tokens, *rest = args
            new = prompts.to(tokens).expand(len(tokens), -1, -1)
            return torch.cat([tokens[:, :1], new, tokens[:, 1:]], dim=1), *rest

        with _hooks([self.entry.register_forward_pre_hook(insert)]):
            yield


@contextlib.contextmanager
def _hooks(handles: list[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _stacks(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    """The lists of transformer blocks in a model, each with the module that it belongs to."""
    for owner in model.modules():
        for child in owner.children():
            blocks = list(child) if isinstance(child, (nn.Sequential, nn.ModuleList)) else []
            if blocks and all(_first_norm(block) is not None for block in blocks):
                yield owner, blocks


def _first_norm(block: nn.Module) -> Any:
    norms = (getattr(block, name, None) for name in FIRST_NORMS)
    return next((norm for norm in norms if hasattr(norm, "normalized_shape")), None)


def _class_token_alone(module: nn.Module, args: Any, output: Any) -> Any:
    """A hook that sets all other tokens to zero."""
    tokens = output[0] if isinstance(output, tuple) else output
    alone = torch.zeros_like(tokens)
    alone[:, 0] = tokens[:, 0]
    return (alone, *output[1:]) if isinstance(output, tuple) else alone


def _alike(got: Tensor, wanted: Tensor) -> bool:
    """Whether two tensors are equal up to rounding; NaN is ignored."""
    close = math.sqrt(torch.finfo(wanted.dtype).eps) * wanted.abs().max()
    return not bool((got - wanted).abs().max() > close)


def _unsupported(model: nn.Module, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"FOA needs a vision transformer whose head reads the class token, and {type(model).__name__} is not one: {why}"
    )
