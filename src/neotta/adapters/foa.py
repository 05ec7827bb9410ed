"""FOA: search, by forward passes alone, for prompts that make test features of a ViT resemble source features.

Paper: Niu et al., "Test-Time Model Adaptation with Only Forward Passes", ICML 2024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from neotta.adapters._evolution import Evolution
from neotta.adapters._methods import register
from neotta.adapters._prompts import PromptedViT
from neotta.adapters._safety import GuardedAdapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.gradient import entropy
from neotta.errors import OptionError
from neotta.options import Options

CHUNK = 64
"""Number of source images that are run at a time; also the batch size for which the paper gives `lambda_`."""


class FOAOptions(Options):
    """Options of FOA."""

    presets: ClassVar = {"original": {"num_prompts": 3, "population": 27}}

    source: Tensor | tuple[Tensor, Tensor] | None = Field(
        None,
        repr=False,
        description="A few clean images of the source domain, preprocessed, (N, 3, H, W), such as 32; or the standard "
        "deviation and mean of their features, as adapter.source gives them. Required.",
    )
    num_prompts: int = Field(2, ge=1, description="Number of prompts among the tokens, P.")
    population: int = Field(
        2, ge=2, description="Number of candidates per batch, K; with the best so far, K + 1 forward passes."
    )
    lambda_: float = Field(
        0.4, ge=0, description="Weight of the distance to the source statistics against the entropy."
    )
    sigma0: float = Field(1.0, gt=0, description="Initial step size of CMA-ES.")
    seed: int = Field(2020, ge=0, lt=2**32, description="Seed of CMA-ES and of the first prompts.")
    hist_momentum: float = Field(
        0.9, ge=0, lt=1, description="How much of the running mean of test embeddings is kept at each batch."
    )
    shift_step: float = Field(
        1.0, ge=0, description="How far embeddings are shifted to the source mean; 0 is not at all."
    )


class Statistics(NamedTuple):
    """Standard deviation (unbiased) and mean of the features of some samples, (n,) each."""

    std: Tensor
    mean: Tensor


class Trial(NamedTuple):
    """The result of one candidate on a batch.

    Attributes:
        fitness: Distance to the source statistics plus entropy; lower is better, infinite if not finite.
        entropy: The entropy in it, summed over the batch.
        logits: The prediction, (B, C).
        mean: Of the embeddings, (d,).
    """

    fitness: float
    entropy: float
    logits: Tensor
    mean: Tensor


@register
class FOA(GuardedAdapter[FOAOptions]):
    """Forward-only adaptation: prompts by evolution, and embeddings shifted towards the source mean."""

    name = "foa"
    title = "FOA"
    paper = "Test-Time Model Adaptation with Only Forward Passes, ICML 2024"
    declaration = Declaration(
        needs="images",
        pixels=True,
        source_images=32,
        random=True,
        forward_passes=3,
        published_passes=2,
    )
    Options = FOAOptions
    fixed = frozenset({"source", "num_prompts", "population", "sigma0", "seed"})

    best: Tensor
    """The prompts of the lowest fitness on the last batch, (P, width), float32."""
    hist: Tensor
    """The running mean of test embeddings, (d,); NaN while undefined."""

    @property
    def forward_passes(self) -> int:
        """One for each candidate, and one for the best so far."""
        return self.options.population + 1

    @cached_property
    def vit(self) -> PromptedViT:
        """The model, run with prompts."""
        return PromptedViT(self.model, self.encoder)

    @cached_property
    def source(self) -> Statistics:
        """Statistics of the source features without prompts; they can be given as the option `source` again."""
        return self._source_statistics()

    def _start(self) -> None:
        chosen = self.options
        bound = self.vit.prompt_bound()
        random = torch.Generator().manual_seed(chosen.seed)
        prompts = torch.rand(chosen.num_prompts, self.vit.width, generator=random)
        self.best = (prompts * 2 * bound - bound).to(self.head.weight.device)
        if "source" not in self.__dict__:  # not so after a reset
            self._check_source()
        self.hist = torch.full_like(self.source.mean[-self.head.in_features :], math.nan)
        self.search = Evolution(prompts.numel(), chosen.population, chosen.sigma0, chosen.seed)

    # ---- the source

    def _check_source(self) -> None:
        """Raise an error now, rather than at the first batch, if the source images cannot be used."""
        given = self.options.source
        if given is None:
            raise OptionError(
                "FOA needs a few clean images of the source domain, such as 32, preprocessed for the model: "
                "source=images of (32, 3, H, W)"
            )
        if isinstance(given, Tensor):
            if given.dim() != 4 or len(given) < 2 or not given.is_floating_point():
                raise OptionError(
                    f"option 'source' is {given.dtype} of {tuple(given.shape)}: floating point images of "
                    "(N, 3, H, W) were expected, at least 2"
                )
            image: Tensor | None = given[:1].to(self.head.weight)
        elif any(part.shape != (self.vit.num_features,) for part in given):
            raise OptionError(
                f"option 'source' has shapes {tuple(given[0].shape)} and {tuple(given[1].shape)}: the features of "
                f"this model have a standard deviation and a mean of ({self.vit.num_features},)"
            )
        else:
            image = self.vit.blank()
        if image is not None:
            self.vit.check(image, self.best)

    def _source_statistics(self) -> Statistics:
        given = self.options.source
        weight = self.head.weight
        if isinstance(given, Tensor):
            chunks = torch.split(given.to(weight), CHUNK)
            features = torch.cat([self.vit.features(images, None) for images in chunks])
            found = Statistics(features.std(dim=0), features.mean(dim=0))
        else:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            found = Statistics(*(part.to(weight.device, dtype) for part in given or ()))
        if not all(bool(torch.isfinite(part).all()) for part in found):
            raise OptionError("option 'source' gives NaN or Inf as statistics: look for damaged source images")
        return found

    # ---- one batch

    def _adapt(self, images: Tensor) -> Tensor:
        features = self.vit.features(images, self.best)
        if not self.usable(features):
            return self._classify(self._embeddings(features), self._shift())
        before = self._judge(features)
        proposed = self.search.ask()
        candidates = [*proposed.to(self.best).view(-1, *self.best.shape), self.best]
        trials = [*(self._attempt(images, prompts) for prompts in candidates[:-1]), before]
        chosen = min(range(len(trials)), key=lambda index: trials[index].fitness)  # the first of equals
        self.search.tell(torch.stack(candidates).flatten(1), [trial.fitness for trial in trials])
        self._remember([trial.mean for trial in trials if math.isfinite(trial.fitness)])
        self.best = candidates[chosen]
        answer = trials[chosen].logits
        self.watch(answer)
        return answer

    def _predict(self, images: Tensor) -> Tensor:
        return self._classify(self.vit.embeddings(images, self.best), self._shift())

    def _attempt(self, images: Tensor, prompts: Tensor) -> Trial:
        """Evaluate prompts, (P, width), on a batch."""
        return self._judge(self.vit.features(images, prompts))

    def _judge(self, features: Tensor) -> Trial:
        """The fitness of features, (B, n), and the prediction from them."""
        batch = len(features)
        embeddings = self._embeddings(features)
        unlike = (features.mean(dim=0) - self.source.mean).square().sum()
        if batch > 1:  # a single sample has no standard deviation
            unlike = unlike + (features.std(dim=0) - self.source.std).square().sum()
        unsure = entropy(self._classify(embeddings, None).to(features.dtype)).sum()
        fitness = float(self.options.lambda_ * unlike * batch / CHUNK + unsure)
        return Trial(
            fitness if math.isfinite(fitness) else math.inf,
            float(unsure),
            self._classify(embeddings, self._shift()),
            embeddings.mean(dim=0),
        )

    def _embeddings(self, features: Tensor) -> Tensor:
        return features[:, -self.head.in_features :]

    def _shift(self) -> Tensor | None:
        """From the running test mean to the source mean, (d,); None before the first batch."""
        if bool(self.hist.isnan().any()):
            return None
        return self.options.shift_step * (self.source.mean[-len(self.hist) :] - self.hist)

    def _classify(self, embeddings: Tensor, shift: Tensor | None) -> Tensor:
        if shift is not None:
            embeddings = embeddings + shift
        return self.classify(embeddings.to(self.head.weight.dtype))

    def _remember(self, means: list[Tensor]) -> None:
        mean = torch.stack(means).mean(dim=0)
        kept = self.options.hist_momentum
        self.hist = mean if bool(self.hist.isnan().any()) else kept * self.hist + (1 - kept) * mean

    # ---- the state

    def _state(self) -> dict[str, Tensor]:
        search = {f"search/{name}": tensor for name, tensor in self.search.state().items()}
        return {"best": self.best, "hist": self.hist, **search}

    def _any_value(self, name: str) -> bool:
        return name in ("hist", "search/mirrors")  # NaN before the first batch, and where there are fewer

    def _load(self, state: Mapping[str, Tensor]) -> None:
        prefix = "search/"
        self.search.load({name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)})
        self.best = state["best"].to(self.best).clone()
        self.hist = state["hist"].to(self.hist).clone()
