"""How often the intervals of `neotta judge` leave the truth out, and how many answers a verdict takes.

    python benchmarks/judge.py
    python benchmarks/judge.py --reference reference.py   # a file with interval(answers, total), run on the same draws

Each population is judged many times through `neotta.Judgement`, 60 answers each. `missed` is the share of runs whose
interval leaves the truth out at any moment: at most 5 % are allowed. The last two have two rules, which share them.
"""

from __future__ import annotations

import argparse
import runpy
import time

import numpy as np

from neotta.evaluate.judgement import NONE, SKIP, UNSURE, Judgement

POPULATIONS = {
    "the digits of other people": (1797, {(1,): 567, (-1,): 23, (0,): 600}),
    "half and half": (1000, {(1,): 60, (-1,): 60, (0,): 80}),
    "few disagree, equal": (300, {(1,): 8, (-1,): 8, (0,): 4}),
    "a little better": (1000, {(1,): 60, (-1,): 40, (0,): 100}),
    "harm": (500, {(1,): 10, (-1,): 45, (0,): 45}),
    "clearly better, few": (300, {(1,): 30, (-1,): 6, (0,): 20}),
    "two rules that overlap": (1000, {(1, 1): 60, (1, None): 60, (None, -1): 40, (-1, -1): 40, (0, 0): 50}),
    "two rules, one rare": (1000, {(1, None): 200, (-1, None): 100, (None, 1): 5, (None, -1): 15}),
}
"""Images by what they count for each rule; None where the rule agrees with the plain model."""
ANSWERS = 60


def answers(run, images, kinds):
    """What the plain model and the rules answer: where one is right it says `right`."""
    rows = [row for kind, count in kinds.items() for row in [_row(kind)] * count]
    rows += [("right",) * len(rows[0])] * (images - len(rows))
    return {f"{run}/{place}": row for place, row in enumerate(rows)}


def _row(kind):
    plain = "right" if -1 in kind else "wrong"
    return (plain, *(plain if value is None else {1: "right", -1: "wrong", 0: "neither"}[value] for value in kind))


def truths(images, kinds):
    """What each rule gains, in points."""
    rules = len(next(iter(kinds)))
    return [100 / images * sum(count * (kind[place] or 0) for kind, count in kinds.items()) for place in range(rules)]


def judged(run, images, kinds, skipped, reference):
    """Whether an interval left the truth out at any moment, after how many answers the first verdict came; both again
    for the reference on the same draws, if there is one rule.
    """
    said = answers(run, images, kinds)
    rules = [f"rule {place}" for place in range(len(next(iter(kinds))))]
    judgement = Judgement(said, rules, image=lambda name: None, at_most=ANSWERS)
    true = truths(images, kinds)
    rng = np.random.default_rng(sum(run.encode()))
    out, needed, values, other, other_needed = False, np.inf, [], False, np.inf
    total = len(judgement.order)
    for count in range(1, min(ANSWERS, total) + 1):
        name = judgement.next
        right = "right" if "right" in judgement.candidates(name) else NONE
        judgement.answer(name, SKIP if rng.random() < skipped else right)
        gains = judgement.gains
        out |= any(not gain.low - 1e-7 <= truth <= gain.high + 1e-7 for gain, truth in zip(gains, true, strict=True))
        if needed == np.inf and any(gain.verdict != UNSURE for gain in gains):
            needed = count
        if reference is not None and len(rules) == 1:
            row = said[name]
            values.append((row[1] == "right") - (row[0] == "right"))
            low, high = (100 * total / images * end for end in reference(values, total))
            other |= not low - 1e-7 <= true[0] <= high + 1e-7
            if other_needed == np.inf and (low > 0 or high < 0):
                other_needed = count
    return out, needed, other, other_needed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--skipped", type=float, default=0.0, help="share of images that the person skips")
    parser.add_argument("--reference")
    given = parser.parse_args()
    reference = None if given.reference is None else runpy.run_path(given.reference)["interval"]
    start, steps = time.perf_counter(), 0
    print(f"{'':28} {'gain':>12}   missed   answers until a verdict (median, 90 %)   the reference's")
    for name, (images, kinds) in POPULATIONS.items():
        runs = [judged(f"{name} {run}", images, kinds, given.skipped, reference) for run in range(given.runs)]
        steps += given.runs * min(ANSWERS, sum(kinds.values()))
        out, needed, other, other_needed = map(np.array, zip(*runs, strict=True))
        gains = truths(images, kinds)
        told = " ".join(f"{gain:+.1f}" for gain in gains)
        line = f"{name:28} {told:>12}   {100 * out.mean():4.1f} %   {_quantiles(needed):20}"
        if reference is not None and len(gains) == 1:
            line += f"   {100 * other.mean():4.1f} %   {_quantiles(other_needed)}"
        print(line, flush=True)
    took = time.perf_counter() - start
    print(f"{took:.0f} s; {1000 * took / steps:.2f} ms an answer, all in all")


def _quantiles(needed):
    ordered = sorted(needed)
    return f"{ordered[len(ordered) // 2]:5.0f} {ordered[len(ordered) * 9 // 10]:5.0f}"


if __name__ == "__main__":
    main()
