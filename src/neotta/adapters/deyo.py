"""DeYO: learn from samples whose prediction depends on the shape of the object.

Paper: Lee et al., "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors", ICLR
2024.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import Objective, SeededAdapter, SeededOptions, StepOptions, norm_affine
from neotta.adapters.losses import EntropyMargin, Selection, entropy, entropy_margin, surer_weigh_more
from neotta.adapters.sar import frozen_by_name


class DeYOOptions(StepOptions, SeededOptions):
    presets: ClassVar = {
        "original": {"lr": 2.5e-4, "plpd_threshold": 0.3},
        "cifar": {"optimizer": "adam", "lr": 1e-3},
    }

    deyo_margin: EntropyMargin | None = Field(
        None, description="Samples of lower entropy are reliable; None is 0.5 ln C for C classes."
    )
    margin_e0: EntropyMargin | None = Field(
        None, description="E0 of the weights exp(E0 - entropy); None is 0.4 ln C for C classes."
    )
    plpd_threshold: float = Field(
        0.2,
        ge=-1,
        le=1,
        description="Samples are learnt from if destroying the image takes more than that from the probability of the "
        "predicted class.",
    )
    reweight_ent: bool = Field(True, description="Whether surer samples weigh more.")
    reweight_plpd: bool = Field(True, description="Whether samples weigh more that lose more of their probability.")
    aug_type: Literal["patch", "pixel", "occ"] = Field(
        "patch",
        description='How images are destroyed: "patch" shuffles patches, "pixel" pixels, "occ" hides a square.',
    )
    patch_len: int = Field(4, ge=1, description="Number of patches per side.")
    antialias: bool = Field(True, description="Whether resizing for the patches avoids aliasing (old code did not).")
    occlusion_size: int = Field(112, ge=1, description="Side of the hidden square, in pixels; the default suits 224.")
    row_start: int = Field(56, ge=0, description="First row of the hidden square.")
    column_start: int = Field(56, ge=0, description="First column of the hidden square.")


@register
class DeYO(SeededAdapter[DeYOOptions]):
    """Entropy minimisation over the norm layers, on confident samples whose prediction depends on shapes."""

    name = "deyo"
    title = "DeYO"
    paper = "Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors, ICLR 2024"
    declaration = Declaration(needs="images", pixels=True, gradients=True, random=True, forward_passes=2)
    Options = DeYOOptions

    def _trained(self) -> dict[str, nn.Parameter]:
        return norm_affine(self.model, lambda name: not frozen_by_name(name))

    def _learn(self, images: Tensor) -> tuple[Tensor, bool]:
        return self.take_steps(images, self._objective)

    def _objective(self, images: Tensor, logits: Tensor) -> Objective | None:
        uncertainty = entropy(logits)
        chosen, drops = self._select(images, logits.detach(), uncertainty.detach())
        if not bool(chosen.selected.any()):
            return None
        losses = uncertainty[chosen.selected]
        weights = torch.zeros_like(losses, requires_grad=False)
        if self.options.reweight_ent:
            weights += surer_weigh_more(losses, entropy_margin(self.options.margin_e0, self.num_classes))
        if self.options.reweight_plpd:
            weights += drops[chosen.selected].exp()
        if not (self.options.reweight_ent or self.options.reweight_plpd):
            weights += 1
        return Objective((weights * losses).mean())

    @torch.no_grad()
    def _select(self, images: Tensor, logits: Tensor, uncertainty: Tensor) -> tuple[Selection, Tensor]:
        """What is selected, and by how much the probability of each predicted class drops, (B,); 0 if not reliable."""
        reliable = uncertainty < entropy_margin(self.options.deyo_margin, self.num_classes, share=0.5)
        drops = torch.zeros_like(uncertainty)
        if not bool(reliable.any()):
            return Selection(reliable, reliable), drops
        destroyed = self.forward(self._destroy(images[reliable])).softmax(dim=1)
        before, predicted = logits[reliable].softmax(dim=1).max(dim=1)
        drops[reliable] = before - destroyed.gather(1, predicted.unsqueeze(1)).squeeze(1)
        return Selection(reliable, reliable & (drops > self.options.plpd_threshold)), drops

    def _destroy(self, images: Tensor) -> Tensor:
        chosen = self.options
        if chosen.aug_type == "occ":
            return occlude(images, chosen.occlusion_size, chosen.row_start, chosen.column_start)
        if chosen.aug_type == "pixel":
            return shuffle_pixels(images, self._permutations(1, images.shape[2] * images.shape[3])[0])
        return shuffle_patches(images, self._permutations(len(images), chosen.patch_len**2), chosen.antialias)

    def _permutations(self, count: int, length: int) -> Tensor:
        return torch.rand(count, length, generator=self.generator).argsort(dim=1)


def shuffle_patches(images: Tensor, permutations: Tensor, antialias: bool = True) -> Tensor:
    """Cut images, (B, C, H, W), into a grid of patches and rearrange them; they are resized if it does not fit them.

    The permutations, (B, L * L), say which patch, counted row by row, comes to each position.
    """
    count, channels, height, width = images.shape
    side = round(permutations.shape[1] ** 0.5)
    rows, columns = max(height // side, 1), max(width // side, 1)
    fitting = _resize(images, (rows * side, columns * side), antialias)
    patches = fitting.reshape(count, channels, side, rows, side, columns).permute(0, 2, 4, 1, 3, 5)
    chosen = permutations.to(images.device).view(count, -1, 1, 1, 1).expand(-1, -1, channels, rows, columns)
    moved = patches.reshape(count, side * side, channels, rows, columns).gather(1, chosen)
    back = moved.view(count, side, side, channels, rows, columns).permute(0, 3, 1, 4, 2, 5)
    return _resize(back.reshape(fitting.shape), (height, width), antialias)


def shuffle_pixels(images: Tensor, permutation: Tensor) -> Tensor:
    """Rearrange the pixels of all images, (B, C, H, W), alike; the permutation is (H * W,)."""
    return images.flatten(2)[:, :, permutation.to(images.device)].view(images.shape)


def occlude(images: Tensor, size: int, row: int, column: int) -> Tensor:
    """Replace a square of each image, (B, C, H, W), by the image's mean colour."""
    hidden = images.clone()
    hidden[:, :, row : row + size, column : column + size] = images.mean(dim=(2, 3), keepdim=True)
    return hidden


def _resize(images: Tensor, size: tuple[int, int], antialias: bool) -> Tensor:
    if images.shape[2:] == torch.Size(size):
        return images
    return functional.interpolate(images, size, mode="bilinear", antialias=antialias, align_corners=False)
