"""Split a classifier into an encoder and its linear head."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from neotta.errors import ModelError, UnsupportedModelError
from neotta.neo.find_head import find_heads, joined_heads
from neotta.neo.head_views import embeddings_of, layer_of, linear_view
from neotta.neo.model_inputs import Inputs, call


class Encoder(nn.Module):
    """Computes embeddings: runs the model and captures the input of its head.

    The encoder refers to the model; it does not copy it.
    """

    def __init__(self, model: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, inputs: Inputs) -> Tensor:
        """Encode a batch, such as images (B, 3, H, W), to embeddings, (B, d)."""
        caught: list[Tensor] = []
        with layer_of(self.head).register_forward_pre_hook(lambda module, args: caught.append(args[0])):
            call(self.model, inputs)
        if len(caught) != 1:
            raise ModelError(f"the head ran {len(caught)} times in one forward pass: expected once")
        embeddings = embeddings_of(self.head, caught[0])
        if embeddings.dim() != 2:
            raise ModelError(
                f"the input of the head has shape {tuple(embeddings.shape)}: expected (batch, features). Methods that "
                "work on embeddings need one per sample; neotta.adapt(model, at='logits') needs the logits alone"
            )
        return embeddings


class Split(NamedTuple):
    """The two parts of a classifier: `head(encoder(images))` gives the logits.

    For a 1x1 convolution or a cosine classifier, `head` is a view of it as a linear layer.
    """

    encoder: Encoder
    head: nn.Linear


def split(model: nn.Module, *, head: str | None = None, example: Inputs | None = None) -> Split:
    """Split a classifier into its encoder and its linear head; both refer to the model itself.

    Args:
        model: A classifier.
        head: Name of the linear layer, if it cannot be found.
        example: A batch that the model takes, a tensor or a dict of tensors, if noise does not work.

    Raises:
        HeadNotFoundError: There is no linear head.
        AmbiguousHeadError: Several layers could be the head.
        UnsupportedModelError: The model has several heads, as a distilled model does.
    """
    layers = find_heads(model, head, example)
    joined = list(layers) if head is None else joined_heads(model, example)
    if len(layers) > 1 or (len(joined) > 1 and set(layers) <= set(joined)):
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(joined)} heads ({', '.join(joined)}), each with its own embedding: "
            "methods that work on one embedding do not support it, but neotta.adapt re-centers all of them"
        )
    linear = linear_view(next(iter(layers.values())))
    return Split(Encoder(model, linear), linear)
