"""The base of methods that use augmented images: how views are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, Strict
from torch import Tensor, nn

from neotta.adapters._seeded import SeededAdapter, SeededOptions
from neotta.adapters.augment import FULL, Augmentation, Style
from neotta.errors import InputError, OptionError

Positive = Annotated[float, Field(gt=0)]
A = TypeVar("A", bound="AugmentingOptions")


class AugmentingOptions(SeededOptions):
    """Options of methods that use augmented images."""

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


class AugmentingAdapter(SeededAdapter[A]):
    """A method that trains on augmented images."""

    style: ClassVar[Style] = FULL
    """The method's own augmentation."""

    def _start(self) -> None:
        super()._start()
        self._check_channels()

    @torch.no_grad()
    def view(self, images: Tensor) -> Tensor:
        """An augmented view of normalised images, (B, 3, H, W) to the same."""
        given = self.options.augmentation
        if self.options.augment_domain == "normalised":
            return (given or Augmentation(self.generator, style=self.style))(images)
        mean, std = (self._per_channel(name, images) for name in ("mean", "std"))
        if given is None:
            return Augmentation(self.generator, mean=mean, std=std, style=self.style)(images)
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
