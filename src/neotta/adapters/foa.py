"""FOA: search, by forward passes alone, for prompts that make test features of a ViT resemble source features.

Paper: Niu et al., "Test-Time Model Adaptation with Only Forward Passes", ICML 2024.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from neotta.adapters._evolution import Evolution
from neotta.adapters._inputs import check_source
from neotta.adapters._methods import register
from neotta.adapters.base import Adapter
from neotta.adapters.declaration import Declaration
from neotta.adapters.losses import entropy
from neotta.errors import OptionError, UnsupportedModelError
from neotta.neo.find_head import logits_of
from neotta.neo.split import Encoder
from neotta.options import Options

CHUNK = 64
"""Number of source images that are run at a time; also the batch size for which the paper gives `lambda_`."""
FIRST_NORMS = ("norm1", "layernorm_before", "ln_1", "layer_norm1")
"""What timm, Hugging Face and torchvision call the first norm layer of a block."""


class FOAOptions(Options):
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
    """The result of one candidate on a batch."""

    fitness: float  # distance to the source statistics plus entropy; lower is better, infinite if not finite
    entropy: float  # the entropy in it, summed over the batch
    logits: Tensor  # the prediction, (B, C)
    mean: Tensor  # mean embedding, (d,)


@register
class FOA(Adapter[FOAOptions]):
    """Forward-only adaptation: prompts by evolution, and embeddings shifted towards the source mean."""

    name = "foa"
    title = "FOA"
    paper = "Test-Time Model Adaptation with Only Forward Passes, ICML 2024"
    declaration = Declaration(
        needs="images", pixels=True, source_images=32, random=True, forward_passes=3, published_passes=2
    )
    Options = FOAOptions

    best: Tensor
    """The prompts of the lowest fitness on the last batch, (P, width), float32."""
    hist: Tensor
    """The running mean of test embeddings, (d,); NaN while undefined."""
    search: Evolution

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
        source, weight = self.options.source, self.head.weight
        if isinstance(source, Tensor):
            chunks = torch.split(source.to(weight), CHUNK)
            features = torch.cat([self.vit.features(images, None) for images in chunks])
            statistics = Statistics(features.std(dim=0), features.mean(dim=0))
        else:
            dtype = torch.promote_types(weight.dtype, torch.float32)
            statistics = Statistics(*(part.to(weight.device, dtype) for part in source or ()))
        if not all(bool(torch.isfinite(part).all()) for part in statistics):
            raise OptionError("option 'source' gives NaN or Inf as statistics: look for damaged source images")
        return statistics

    def _start(self) -> None:
        chosen = self.options
        bound = self.vit.prompt_bound()
        random = torch.Generator().manual_seed(chosen.seed)
        prompts = torch.rand(chosen.num_prompts, self.vit.width, generator=random)
        self.add_state("best", (prompts * 2 * bound - bound).to(self.head.weight.device))
        if "source" not in self.__dict__:  # not so after a reset
            self._check_source()
        unknown = torch.full_like(self.source.mean[-self.head.in_features :], math.nan)
        self.add_state("hist", unknown, any_value=True)
        self.add_state("search", Evolution(prompts.numel(), chosen.population, chosen.sigma0, chosen.seed))

    # ---- the source

    def _check_source(self) -> None:
        """Raise an error now, rather than at the first batch, if the source images cannot be used."""
        source = self.options.source
        if source is None:
            raise OptionError(
                "FOA needs a few clean images of the source domain, such as 32, preprocessed for the model: "
                "source=images of (32, 3, H, W)"
            )
        if isinstance(source, Tensor):
            check_source(source, least=2)
            image: Tensor | None = source[:1].to(self.head.weight)
        elif any(part.shape != (self.vit.num_features,) for part in source):
            raise OptionError(
                f"option 'source' has shapes {tuple(source[0].shape)} and {tuple(source[1].shape)}: the features of "
                f"this model have a standard deviation and a mean of ({self.vit.num_features},)"
            )
        else:
            image = self.vit.blank()
        if image is not None:
            self.vit.check(image, self.best)

    # ---- one batch

    def _adapt(self, images: Tensor) -> Tensor:
        features = self.vit.features(images, self.best)
        if not self.usable(features):
            return self._classify(self._embeddings(features), self._shift())
        before = self._judge(features)
        proposed = self.search.ask()
        candidates = [*proposed.to(self.best).view(-1, *self.best.shape), self.best]
        trials = [*(self._judge(self.vit.features(images, prompts)) for prompts in candidates[:-1]), before]
        chosen = min(range(len(trials)), key=lambda index: trials[index].fitness)  # the first of equals
        self.search.tell(torch.stack(candidates).flatten(1), [trial.fitness for trial in trials])
        mean = torch.stack([trial.mean for trial in trials if math.isfinite(trial.fitness)]).mean(dim=0)
        momentum = self.options.hist_momentum
        self.hist = mean if bool(self.hist.isnan().any()) else momentum * self.hist + (1 - momentum) * mean
        self.best = candidates[chosen]
        answer = trials[chosen].logits
        self.watch(answer)
        return answer

    def _predict(self, images: Tensor) -> Tensor:
        return self._classify(self.vit.embeddings(images, self.best), self._shift())

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


# ---- vision transformers with prompts


class PromptedViT:
    """Runs a vision transformer with prompts, and records its class token after every block.

    The tokens become [class, prompts, patches] after the position embeddings are added, and before a norm in front
    of the blocks. After a call the model is as before. It is of timm, Hugging Face or torchvision, or built alike.
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

        with contextlib.ExitStack() as hooks:
            for norm in self.norms:
                hooks.enter_context(norm.register_forward_hook(catch))
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
        """Check, with one image, that prompts can be inserted and that the head reads only the class token."""
        self.encoder(image)  # errors of the image itself are raised here
        try:
            with self._prompted(prompts):
                logits = logits_of(self.model(image))
            embeddings = self.embeddings(image, prompts)
        except (RuntimeError, ValueError, IndexError) as error:
            raise _unsupported(self.model, f"it does not take further tokens ({error})") from error
        with self.blocks[-1].register_forward_hook(_class_token_alone):
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

        with self.entry.register_forward_pre_hook(insert):
            yield


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
