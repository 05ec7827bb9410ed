"""How often a verdict is false, and how often a true difference is found.

Images are a sample of a population, and a verdict is about the population. In each simulated study a pool of images is
drawn, every seed redraws samples from this pool, and two methods answer. Most images are right or wrong for both; on
the others one of them is better, always the same one, up to single answers that change from run to run. Verdicts come
from `neotta.evaluate.statistics.difference`, as in `neotta compare` and `neotta paper`.

    python benchmarks/verdicts.py [--quick]

It fails if more than 6 % of the verdicts on equally good methods are false, or if McNemar's test on the pooled pairs,
where it is valid (all images different), finds a true difference of 2 points more often.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr

from neotta.evaluate.statistics import LEVEL, difference

Bits = NDArray[np.bool_]
SEEDS = (1, 2, 3, 5)
ALLOWED = 0.06


class Setting(NamedTuple):
    """A pool of images, and how many of them each seed draws; without a pool all images are different."""

    name: str
    samples: int
    pool: int | None


class Methods(NamedTuple):
    """Two methods: on which share of images only one of them is right, and how much changes from run to run.

    `flips` is the share of single answers that change, `wander` the deviation of a whole run's accuracy.
    """

    first_only: float
    second_only: float
    both: float = 0.7
    flips: float = 0.005
    wander: float = 0.0

    def answers(self, rng: np.random.Generator, groups: NDArray[np.int64]) -> tuple[Bits, Bits]:
        """Whether each is right, (runs, samples)."""
        kind = rng.random(int(groups.max()) + 1)[groups]
        border = self.both + self.first_only
        first = kind < border
        second = (kind < self.both) | ((kind >= border) & (kind < border + self.second_only))
        if self.wander:  # in each run one of them, by chance, gets more answers wrong
            lost = self.wander * rng.standard_normal((len(groups), 1)) / 0.75
            first = first & (rng.random(groups.shape) >= lost)
            second = second & (rng.random(groups.shape) >= -lost)
        return first ^ (rng.random(groups.shape) < self.flips), second ^ (rng.random(groups.shape) < self.flips)


SETTINGS = (
    Setting("512 of 600", 512, 600),
    Setting("512 of 1,000", 512, 1000),
    Setting("512 of 4,000", 512, 4000),
    Setting("all of 600", 600, 600),
)
EQUAL = {
    "differ on 1 % of images": Methods(0.005, 0.005, flips=0.0),
    "differ on 10 % of images": Methods(0.05, 0.05),
    "differ on 30 % of images": Methods(0.15, 0.15, both=0.5, flips=0.05),
}
WANDERING = {"1 point": 0.01, "5 points": 0.05, "20 points": 0.2}
BETTER = Methods(0.05, 0.03)  # by 2 points


def draw(rng: np.random.Generator, setting: Setting, seeds: int) -> NDArray[np.int64]:
    """The image behind each sample, (seeds, samples)."""
    if setting.pool is None:
        return np.arange(seeds * setting.samples).reshape(seeds, -1)
    return np.stack([rng.permutation(setting.pool)[: setting.samples] for _ in range(seeds)])


def rates(setting: Setting, methods: Methods, seeds: int, studies: int) -> tuple[float, float]:
    """How often `difference` and McNemar's test on the pooled pairs say that the methods differ."""
    rng = np.random.default_rng([setting.samples, setting.pool or 0, seeds])
    ours = theirs = 0
    for _ in range(studies):
        groups = draw(rng, setting, seeds)
        first, second = methods.answers(rng, groups)
        ours += difference(first, second, groups).pvalue < LEVEL
        theirs += mcnemar(first, second) < LEVEL
    return ours / studies, theirs / studies


def mcnemar(first: Bits, second: Bits) -> float:
    """The p-value of the exact test."""
    won, lost = int((first & ~second).sum()), int((second & ~first).sum())
    return min(1.0, 2 * float(bdtr(min(won, lost), won + lost, 0.5))) if won + lost else 1.0


def show(heading: str, methods: Methods, settings: tuple[Setting, ...], studies: int) -> dict[tuple[str, int], float]:
    """Print the rates of both tests, and return ours by setting and number of seeds."""
    print(f"\n{heading}\n{'':16}" + "".join(f"{seeds:>8} seed{'s' if seeds > 1 else ' '} " for seeds in SEEDS))
    found = {}
    for setting in settings:
        line = f"{setting.name:16}"
        for seeds in SEEDS:
            ours, theirs = rates(setting, methods, seeds, studies)
            found[setting.name, seeds] = ours
            line += f"{ours:7.1%} ({theirs:5.1%})"
        print(line, flush=True)
    return found


def main() -> int:
    """Run the simulation; 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the studies, and room for their noise")
    quick = parser.parse_args().quick
    studies = 300 if quick else 3000
    allowed = ALLOWED + (4 * (LEVEL * (1 - LEVEL) / studies) ** 0.5 if quick else 0.0)
    print(f"Share of {studies} studies with a verdict at 5 %; in brackets McNemar's exact test on the pooled pairs.")
    broken = []
    for name, methods in EQUAL.items():
        found = show(f"Equally good, {name}: false verdicts", methods, SETTINGS, studies)
        broken += [f"{place}: {rate:.1%} false verdicts" for place, rate in found.items() if rate > allowed]
    apart = Setting("all different", 512, None)
    show("2 points better: found", BETTER, (apart, *SETTINGS), studies)
    for size, wander in WANDERING.items():
        heading = (
            f"Equally good over seeds, but whole runs vary by {size} (not judged: one or two seeds cannot show it)"
        )
        show(heading, Methods(0.05, 0.05, wander=wander), (apart, SETTINGS[0]), studies)
    ours, theirs = rates(apart, BETTER, 3, studies)
    if ours < theirs:
        broken.append(f"2 points are found in {ours:.1%}, by McNemar's test in {theirs:.1%}")
    print("\n" + ("\n".join(broken) if broken else "All promises are kept."))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
