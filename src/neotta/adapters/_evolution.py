"""CMA-ES, as the package `cma` does it, with a state that can be saved and a random generator of its own."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neotta._extras import need

_ARRAYS = ("mean", "pc", "adapt_sigma.ps", "sm.C", "sm.B", "sm.D")
_COUNTERS = ("countiter", "sm.count_tell", "sm.last_update")


class Evolution:
    """A population of vectors that moves towards lower fitness, starting at zero with full covariance.

    The state is what later populations depend on: the distribution, its paths and counters, mirrored samples that
    wait to be proposed, and the random generator. Everything else that the package keeps is for its stopping rules,
    its log, and solutions told exactly as they were asked, which rounding to float32 rules out.

    At least two vectors are proposed at a time. numpy's global random generator is not used.
    """

    def __init__(self, dimension: int, population: int, sigma: float, seed: int) -> None:
        self.dimension = dimension
        self._settings = (population, sigma)
        self._random = np.random.RandomState(seed)
        self._strategy = self._fresh()

    def _fresh(self) -> Any:
        population, sigma = self._settings
        with warnings.catch_warnings():  # the package adds filters of its own to the global ones
            cma = need("cma", "FOA")
            options = {
                "popsize": population,
                "randn": self._random.randn,
                "seed": float("nan"),  # leave numpy's global generator alone
                "verbose": -9,
                # From 300 dimensions on the package would take TPA, whose two samples per step on one line are
                # the whole of a population of 2.
                "AdaptSigma": cma.sigma_adaptation.CMAAdaptSigmaCSA,
                "mindx": 1e-12,  # a smaller step is lost in float32, and would underflow on an endless stream
                "conditioncov_alleviate": False,  # it would move part of the state into a transformation
            }
            strategy = cma.CMAEvolutionStrategy(np.zeros(self.dimension), sigma, options)
            strategy.adapt_sigma.initialize(strategy)  # some versions do it at the first `tell`
            return strategy

    @property
    def sigma(self) -> float:
        """The step size."""
        return float(self._strategy.sigma)

    def ask(self) -> Tensor:
        """Propose vectors: (population, dimension), float32."""
        return torch.from_numpy(np.stack(self._strategy.ask()).astype(np.float32))

    def tell(self, vectors: Tensor, fitness: list[float]) -> None:
        """Learn how fit vectors are, (n, dimension): those of `ask`, and perhaps one more; lower is better.

        Infinite is worst of all; at least one is finite.
        """
        worst = max(value for value in fitness if np.isfinite(value))
        ranked = [value if np.isfinite(value) else abs(worst) * 2 + 1 for value in fitness]  # only ranks count
        for archive in ("sent_solutions", "_injected_solutions_archive"):  # never found again: see the class
            setattr(self._strategy, archive, type(getattr(self._strategy, archive))())
        self._strategy.tell(list(vectors.cpu().numpy().astype(np.float64)), ranked)

    # ---- the state

    def state(self) -> dict[str, Tensor]:
        """Everything later populations depend on, by name; float64 and int64."""
        strategy = self._strategy
        mirrors = np.zeros((strategy.sp.lam_mirr, self.dimension))
        waiting = strategy.pop_injection_directions[: len(mirrors)]
        for row, direction in zip(mirrors, waiting, strict=False):
            row[:] = direction
        _, key, position, has_normal, normal = self._random.get_state(legacy=True)
        return {
            **{name: torch.from_numpy(np.array(_get(strategy, name), dtype=np.float64)) for name in _ARRAYS},
            "counters": torch.tensor([len(waiting), *(int(_get(strategy, name)) for name in _COUNTERS)]),
            "sigma": torch.tensor(self.sigma, dtype=torch.float64),
            "mirrors": torch.from_numpy(mirrors),
            "random.key": torch.from_numpy(np.asarray(key).astype(np.int64)),
            "random.position": torch.tensor([int(position), int(has_normal)]),
            "random.normal": torch.tensor(float(normal), dtype=torch.float64),
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state of the same shapes."""
        from cma.utilities.utils import ElapsedWCTime

        values = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        strategy = self._fresh()
        for name in _ARRAYS:
            like = np.empty_like(_get(strategy, name))  # sums depend on the order in memory
            np.copyto(like, values[name])
            _set(strategy, name, like)
        mirrored, *counters = map(int, values["counters"])
        for name, count in zip(_COUNTERS, counters, strict=True):
            _set(strategy, name, count)
        strategy.sigma = float(values["sigma"])
        waiting = [row.copy() for row in values["mirrors"][:mirrored]]
        strategy.pop_injection_directions = waiting
        strategy._indices_of_selective_mirrors = range(len(waiting))
        strategy.mean_old = strategy.mean.copy()
        strategy.timer = ElapsedWCTime()
        position, has_normal = values["random.position"]
        key = values["random.key"].astype(np.uint32)
        self._random.set_state(("MT19937", key, int(position), int(has_normal), float(values["random.normal"])))
        self._strategy = strategy


def _get(owner: Any, name: str) -> Any:
    return operator.attrgetter(name)(owner)


def _set(owner: Any, name: str, value: Any) -> None:
    path, _, last = name.rpartition(".")
    setattr(_get(owner, path) if path else owner, last, value)
