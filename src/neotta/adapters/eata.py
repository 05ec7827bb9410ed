"""EATA: ETA, with the weights that matter to the source domain held near their source values.

Paper: Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from neotta.adapters._inputs import check_source
from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.eta import ETA, ETAOptions
from neotta.adapters.gradient import all_finite
from neotta.errors import OptionError


class EATAOptions(ETAOptions):
    presets: ClassVar = {
        "original": {"lr": 2.5e-4},
        "come": {"uncertainty": "come"},
        "cifar": {"optimizer": "adam", "lr": 1e-3, "d_margin": 0.4, "fisher_alpha": 1.0},
        "cifar100": {"optimizer": "adam", "lr": 1e-3, "d_margin": 0.1, "fisher_alpha": 1.0},
    }

    source: Tensor | None = Field(
        None,
        repr=False,
        description="Clean images of the source domain, preprocessed, (N, 3, H, W), such as 2000; labels are not "
        "needed. Required.",
    )
    fisher_alpha: float = Field(2000.0, ge=0, description="Weight of the anchor, beta.")
    fisher_batch: int = Field(64, ge=1, description="Number of source images in a batch of the Fisher information.")


@register
class EATA(ETA[EATAOptions]):
    """ETA, with a penalty on moving weights that matter to the source domain."""

    name = "eata"
    title = "EATA"
    declaration = Declaration(needs="images", gradients=True, source_images=2000)
    Options = EATAOptions

    fisher: dict[str, Tensor]
    """The Fisher information of each trained tensor; it is found once and not part of the state."""

    def _start(self) -> None:
        super()._start()
        if hasattr(self, "fisher"):  # so after a reset
            return
        source = self.options.source
        if source is None:
            raise OptionError(
                "EATA needs clean images of the source domain, such as 2000, preprocessed for the model: "
                "source=images of (2000, 3, H, W); 'eta' needs none"
            )
        check_source(source, least=1)
        self.fisher = self._fisher_information(source.to(self.head.weight))

    def _fisher_information(self, images: Tensor) -> dict[str, Tensor]:
        """The diagonal Fisher information of what is trained, at the source weights.

        It is the mean over batches of the squared gradient of a batch's mean cross-entropy against its own predictions:
        every batch counts alike, a shorter last one too, and so the batch size matters.
        """
        batches = torch.split(images, self.options.fisher_batch)
        total = [torch.zeros_like(tensor, requires_grad=False) for tensor in self.params.values()]
        for batch in batches:
            with torch.enable_grad():
                logits = self.forward(batch)
                grads = self.gradients(functional.cross_entropy(logits, logits.argmax(dim=1)))
            for squares, grad in zip(total, grads, strict=True):
                squares.addcmul_(grad, grad)
        if not all_finite(total):
            raise OptionError("option 'source' gives NaN or Inf as Fisher information: look for damaged source images")
        return {name: squares / len(batches) for name, squares in zip(self.params, total, strict=True)}

    def _anchored(self) -> Tensor | float:
        moved = {name: tensor - self.model.get_parameter(name).detach() for name, tensor in self.params.items()}
        parts = [(weight * moved[name].square()).sum() for name, weight in self.fisher.items()]
        return self.options.fisher_alpha * torch.stack(parts).sum()
