"""What the result of a run depends on: the one place where its key, and the options of its method, are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from neotta.adapters.declaration import DataFacts
from neotta.adapters.registry import find
from neotta.evaluate.domains import Domains
from neotta.evaluate.plan import Run
from neotta.evaluate.protocols import ProtocolOrders, separate_states
from neotta.evaluate.provenance import code_of
from neotta.evaluate.records import content_key


class RunKeys:
    """The options and keys of runs on one model and data.

    Args:
        data: Where the samples are.
        orders: The orders of runs.
        weights: A hash of the model.
    """

    def __init__(self, data: Domains, orders: ProtocolOrders, weights: str) -> None:
        self._data, self._orders, self._weights = data, orders, weights
        self.clean_images: Callable[[int], Tensor] = functools.cache(lambda count: data.clean.images(count))
        self._clean_digest: Callable[[int], str] = functools.cache(lambda count: data.clean.digest(count))
        self._preprocess = data.preprocess.to_dict()

    def content(self, run: Run) -> dict[str, Any]:
        """Everything that the result of a run depends on; its hash is the key."""
        hashes = self._orders.hashes(run)
        last = len(hashes) - 1
        asked: list[int] = []
        options = self.options(run, asked)
        return {
            **({"source": self._clean_digest(max(asked))} if asked else {}),
            **({"separate": True} if separate_states(run) else {}),
            **({"tuned": run.tuned} if run.tuned is not None else {}),
            "code": code_of(run.method),
            "weights": self._weights,
            "preprocess": self._preprocess,
            "classes": None if self._data.kept is None else [int(index) for index in self._data.kept],
            "manifests": [(found, place == 0, place == last) for place, found in enumerate(hashes)],
            "protocol": run.protocol,
            "samples": run.samples,
            "seed": run.seed,
            "method": run.method,
            "options": options,
        }

    def question(self, run: Run, content: Mapping[str, Any]) -> str:
        """A hash of the content without the code, so that records of other code can be found.

        Records from before seeds and source images were in the key answer it, too: they had the method's own seed, and
        clean images of the data.
        """
        kind, options = find(run.method), content["options"]
        if kind.declaration.random:
            options = {"seed": str(kind.Options.model_fields["seed"].default), **options}
        new = ("code",) if self._data.has_source_data else ("code", "source")
        return content_key({**{name: content[name] for name in content if name not in new}, "options": options})

    def options(self, run: Run, asked: list[int] | None = None) -> dict[str, str]:
        """All options of a run as records write them, without those that follow from model, data and seed.

        Args:
            run: The run.
            asked: The numbers of clean images that the method asks for are added to it.
        """
        needed = self.needed(run, functools.partial(self.blank_images, asked=[] if asked is None else asked))
        chosen = find(run.method).Options.make(run.method, {**needed, **run.options}, run.preset)
        kept = {name: value for name, value in chosen.given().items() if name not in needed}
        return {name: str(value) for name, value in kept.items() if not isinstance(value, Tensor)}

    def needed(self, run: Run, source: Callable[[int], Tensor]) -> dict[str, Any]:
        """Options that follow from the model, the data and the seed, unless the run gives them."""
        preprocess = self._data.preprocess
        facts = DataFacts(mean=preprocess.mean, std=preprocess.std, source=source, seed=run.seed)
        return find(run.method).declaration.data_options(facts, run.options)

    def blank_images(self, count: int, asked: list[int]) -> Tensor:
        """Two placeholder images, where only their shape matters; records how many were asked for."""
        asked.append(count)
        return torch.zeros(2, 3, *self._data.preprocess.size)
