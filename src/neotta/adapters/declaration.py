"""What a method needs and promises, declared once: engines, costs and reports read it, and nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from neotta.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known of the data that a method will meet.

    Attributes:
        mean: Mean of the model's normalisation, for each colour; None if it is not known.
        std: Standard deviation of the model's normalisation, for each colour; None if it is not known.
        source: Returns clean images of the source domain, preprocessed, (n, 3, H, W); it is given the number wanted.
        seed: Seed of the run; None leaves each method its own default.
    """

    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    source: Callable[[int], Tensor]
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a method needs and promises.

    Attributes:
        needs: `"embeddings"` if it can run from embeddings alone, else `"images"`.
        pixels: Whether it takes images, (B, 3, H, W), alone, because it augments or cuts them or puts prompts between
            their patches; otherwise it takes whatever the model takes.
        gradients: Whether it needs backpropagation.
        batch_norm: Whether it works only on models with BatchNorm layers.
        source_images: Number of clean source images it needs, as the option `source`; 0 if none.
        normalisation: Whether it needs the model's normalisation, as the options `mean` and `std`.
        random: Whether it draws random numbers: all of them from the option `seed`, which a run sets to its own seed.
        options_from_data: Makes further options from facts about the data; None if there are none.
        hyperparameter_free: Whether there is nothing to tune.
        optimization_free: Whether it predicts without an iterative optimisation.
        batch_size_independent: Whether the batch size does not affect its predictions.
        row_weights: Whether the rows of a batch may have weights (`neotta.rows`).
        forward_passes: The largest number for a batch with the default options, as the contract tests count it.
        published_passes: The number that the NEO paper prints, if it prints another.
    """

    needs: Literal["embeddings", "images"]
    pixels: bool = False
    gradients: bool = False
    batch_norm: bool = False
    source_images: int = 0
    normalisation: bool = False
    random: bool = False
    options_from_data: Callable[[DataFacts], Mapping[str, Any]] | None = None
    hyperparameter_free: bool = False
    optimization_free: bool = False
    batch_size_independent: bool = False
    row_weights: bool = False
    forward_passes: int = 1
    published_passes: int | None = None

    @property
    def fully_test_time(self) -> bool:
        """Whether it needs no source data."""
        return self.source_images == 0

    @property
    def backprop_free(self) -> bool:
        """Whether it needs no backpropagation."""
        return not self.gradients

    def data_options(self, facts: DataFacts, chosen: Collection[str] = ()) -> dict[str, Any]:
        """The options that follow from the data.

        Args:
            facts: What is known of the data.
            chosen: Names of options that the caller sets; they are left out, and no source images are read for them.

        Raises:
            ModelError: The method needs the model's normalisation, which is not known.
        """
        if self.normalisation and facts.mean is None and not {"mean", "std"} <= set(chosen):
            raise ModelError(
                "it changes images and needs the model's normalisation: pass preprocess=neotta.Preprocess(...) and "
                "images that are not normalised"
            )
        options = {} if self.options_from_data is None else dict(self.options_from_data(facts))
        if self.normalisation:
            options |= {"mean": facts.mean, "std": facts.std}
        if self.random and facts.seed is not None:
            options["seed"] = facts.seed
        if self.source_images and "source" not in chosen:
            options["source"] = facts.source(self.source_images)
        return {name: value for name, value in options.items() if name not in chosen}
