"""A classifier as two parts: an encoder that makes embeddings, and the linear head that reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from neotta.errors import ModelError, UnsupportedModelError
from neotta.neo.find_head import find_heads, joined_heads


class Encoder(nn.Module):
    """Images to embeddings: the input of the head, caught while the model runs.

    This is the same tensor for every architecture, whatever lies between the backbone and the head. The encoder
    refers to the model; it does not copy it.
    """

    def __init__(self, model: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Encode images, (B, 3, H, W), as embeddings, (B, d)."""
        caught: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
        try:
            self.model(images)
        finally:
            hook.remove()
        if len(caught) != 1:
            raise ModelError(f"the head was executed {len(caught)} times in one forward pass: once was expected")
        if caught[0].dim() != 2:
            raise ModelError(f"the head reads a tensor of {tuple(caught[0].shape)}: (batch, features) was expected")
        return caught[0]


class Split(NamedTuple):
    """The two parts of a classifier: `head(encoder(images))` are its logits."""

    encoder: Encoder
    head: nn.Linear


def split(model: nn.Module, *, head: str | None = None, example: Tensor | None = None) -> Split:
    """Split a classifier into its encoder and its linear head; both refer to the model itself.

    Args:
        model: A classifier.
        head: The name of the linear layer, if it cannot be found.
        example: A batch of images to run the model with, if that is what it takes to find the head.

    Raises:
        HeadNotFoundError: There is no linear head.
        AmbiguousHeadError: Several layers could be it.
        UnsupportedModelError: The answer comes from two heads, as in a distilled model.
    """
    found = find_heads(model, head, example)
    joined = list(found) if head is None else joined_heads(model, example)
    if len(found) > 1 or (len(joined) > 1 and set(found) <= set(joined)):
        raise UnsupportedModelError(
            f"the answer of {type(model).__name__} is made of {len(joined)} heads together ({', '.join(joined)}), each "
            "with an embedding of its own: what works on one embedding cannot be used with it, but neotta.adapt "
            "re-centers all of them"
        )
    linear = next(iter(found.values()))
    return Split(Encoder(model, linear), linear)


@contextlib.contextmanager
def evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode for a while: dropout and stochastic depth off, batch-norm statistics fixed."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
