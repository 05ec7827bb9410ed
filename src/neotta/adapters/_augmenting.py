"""The base of methods that use augmented images: how views are made, with a generator that can be saved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import Field, Strict
from torch import Tensor, nn

from neotta.adapters.augment import Augmentation
from neotta.adapters.gradient import GradientAdapter
from neotta.errors import InputError, OptionError, StateMismatchError
from neotta.options import Options

Positive = Annotated[float, Field(gt=0)]
A = TypeVar("A", bound="AugmentingOptions")


class AugmentingOptions(Options):
    """Options of methods that use augmented images."""

    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness.")
    mean: float | Annotated[tuple[float, ...], Strict(False)] = Field(
        0.5, description="Mean of the model's normalisation: one number, or one per channel."
    )
    std: Positive | Annotated[tuple[Positive, ...], Strict(False)] = Field(
        0.5, description="Standard deviation of the model's normalisation: one number, or one per channel."
    )
    augment_domain: Literal["pixel", "normalised"] = Field(
        "pixel",
        description='"pixel" undoes the normalisation, augments, and normalises again. "normalised" augments the '
        "images as they come, which cuts off all that is darker than the mean; the reference code does that.",
    )
    augmentation: Callable[[Tensor], Tensor] | None = Field(
        None,
        description="Takes and returns a batch of images in that domain; None is the method's own. Saving its state, "
        "if any, is up to the caller.",
    )


class AugmentingAdapter(GradientAdapter[A]):
    """A method that trains on augmented images, with a random generator of its own."""

    generator: torch.Generator

    @abstractmethod
    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        """Predict a batch and learn from it. Returns logits, (B, C), and whether the batch could be learnt from."""

    def _start(self) -> None:
        super()._start()
        self._check_channels()
        self.generator = torch.Generator().manual_seed(self.options.seed)

    def _adapt(self, images: Tensor) -> Tensor:
        before = self.generator.get_state()
        logits, learnt = self._learn(images)
        if learnt:
            self.watch(logits)
        else:  # a bad batch must not affect later draws either
            self.generator.set_state(before)
        return logits

    @torch.no_grad()
    def view(self, images: Tensor) -> Tensor:
        """An augmented view of normalised images, (B, 3, H, W) to the same."""
        given = self.options.augmentation
        if self.options.augment_domain == "normalised":
            return (given or Augmentation(self.generator))(images)
        mean, std = (self._per_channel(name, images) for name in ("mean", "std"))
        if given is None:
            return Augmentation(self.generator, mean=mean, std=std)(images)
        return (given(images * std + mean) - mean) / std

    def _check_channels(self) -> None:
        """Raise an error now, rather than at the first view, if no layer takes this number of channels."""
        read = {layer.in_channels for layer in self._modules if isinstance(layer, nn.Conv2d)}
        for name in ("mean", "std"):
            given = getattr(self.options, name)
            if read and isinstance(given, tuple) and len(given) not in read:
                raise OptionError(
                    f"option {name!r} of method {self.name!r} has {len(given)} numbers, but no layer of the model "
                    "takes images with that many channels: give one number, or one per channel"
                )

    def _per_channel(self, name: str, images: Tensor) -> Tensor:
        given = torch.as_tensor(getattr(self.options, name), dtype=images.dtype, device=images.device)
        if given.dim() and len(given) != images.shape[1]:
            raise InputError(f"option {name!r} has {len(given)} numbers, the images have {images.shape[1]} channels")
        return given.reshape(-1, 1, 1)

    def configure(self, **changes: Any) -> None:
        """Change options in the middle of a stream; a new seed restarts the generator."""
        super().configure(**changes)
        if "seed" in changes:
            self.generator.manual_seed(self.options.seed)

    def _state(self) -> dict[str, Tensor]:
        return {**super()._state(), "generator": self.generator.get_state()}

    def _load(self, state: Mapping[str, Tensor]) -> None:
        try:
            self.generator.set_state(state["generator"].cpu())
        except (RuntimeError, TypeError) as error:
            raise StateMismatchError(f"entry 'generator' of this state is not that of a generator: {error}") from error
        super()._load(state)
