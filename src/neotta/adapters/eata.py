"""EATA: ETA, with the weights that matter to the source domain held near their source values.

Paper: Niu et al., "Efficient Test-Time Model Adaptation without Forgetting", ICML 2022.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from neotta.adapters._anchor import distance, fisher_information
from neotta.adapters._methods import register
from neotta.adapters.declaration import Declaration
from neotta.adapters.eta import ETAOptions, Selective
from neotta.errors import OptionError


class EATAOptions(ETAOptions):
    """Options of EATA."""

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
class EATA(Selective[EATAOptions]):
    """ETA, with a penalty on moving weights that matter to the source domain."""

    name = "eata"
    title = "EATA"
    declaration = Declaration(needs="images", gradients=True, source_images=2000)
    Options = EATAOptions
    fixed = frozenset({"source", "fisher_batch"})

    fisher: dict[str, Tensor]
    """The Fisher information of each trained tensor; it is found once and not part of the state."""

    def _start(self) -> None:
        super()._start()
        if not hasattr(self, "fisher"):  # so after a reset
            self.fisher = fisher_information(self, self._source(), self.options.fisher_batch)

    def _source(self) -> Tensor:
        given = self.options.source
        if given is None:
            raise OptionError(
                "EATA needs clean images of the source domain, such as 2000, preprocessed for the model: "
                "source=images of (2000, 3, H, W); 'eta' needs none"
            )
        if given.dim() != 4 or len(given) == 0 or not given.is_floating_point():
            raise OptionError(
                f"option 'source' is {given.dtype} of {tuple(given.shape)}: floating point images of (N, 3, H, W) were "
                "expected"
            )
        return given.to(self.head.weight)

    def _anchored(self) -> Tensor | float:
        source = {name: self.model.get_parameter(name) for name in self.params}
        return self.options.fisher_alpha * distance(self.fisher, self.params, source)
