"""The label prior of NEO-Stream: is the next label the last one again?

Two explanations of what comes next compete by evidence: independent draws from the mix of labels so far, or a sticky
chain that repeats the last label. Everything is for a table of streams, (K, ...), of NumPy arrays or torch tensors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from neotta.neo.moments import namespace

START, SHARE = 0.1, 1 / 256  # prior weight of the sticky chain, and how much of it always remains
SMOOTH, RECENT = 3.0, 16.0  # pseudo-samples spread over all classes, and the memory of the recent mix, in samples
BOOST = 1.0  # the prior raises no logit by more than this
_KEEP = math.exp(-1 / RECENT)


class Labels(NamedTuple):
    """What is known of the labels of streams.

    Attributes:
        sticky: Weight w of the sticky chain, (K,).
        last: Distribution of the last label under the chain, (K, C), once a sample was seen.
        mix: Expected counts of the labels, over all time and lately, (K, 2, C).
        seen: Their sums, (K, 2).
    """

    sticky: Any
    last: Any
    mix: Any
    seen: Any


def expected(labels: Labels, stay: float, prior: Any = None) -> tuple[Any, Any, Any]:
    """What the next label is expected to be.

    Args:
        labels: What is known of the labels.
        stay: Probability that a sticky stream repeats its last label.
        prior: How often each class is expected, (C,); None if all are equally likely.

    Returns:
        The mix of labels (K, C), the sticky chain (K, C), and the log prior R (K, C): only what the chain says beyond
        the mix, so that predictions which collapsed because of a shift cancel.
    """
    xp, classes = namespace(labels.mix), labels.mix.shape[-1]
    smooth = SMOOTH / classes if prior is None else SMOOTH * prior
    mix = ((labels.mix + smooth) / (labels.seen + SMOOTH)[..., None]).mean(-2)
    last = xp.where(labels.seen[..., :1] > 0, labels.last, mix)  # before the first sample there is no last label
    chain = (1 - stay) * mix + stay * last
    sticky = labels.sticky[..., None]
    return mix, chain, xp.log(1 - sticky + sticky * chain / mix).clip(max=BOOST)


def observed(labels: Labels, likelihood: Any, weight: Any, mix: Any, chain: Any) -> Labels:
    """The labels after one more sample of each stream.

    Args:
        labels: What was known before.
        likelihood: Class probabilities of the sample, (K, C).
        weight: How much the sample counts, (K,); 0 changes nothing.
        mix: See `expected`.
        chain: See `expected`.
    """
    xp = namespace(mix)
    by_chain, by_mix = (chain * likelihood).sum(-1), (mix * likelihood).sum(-1)
    last = chain * likelihood / by_chain[..., None]
    posterior = mix * likelihood / by_mix[..., None]
    counts, one = weight > 0, xp.ones_like(weight)
    decay = xp.stack([one, xp.where(counts, _KEEP * one, one)], -1)
    odds = labels.sticky * by_chain
    sticky = (1 - SHARE) * odds / (odds + (1 - labels.sticky) * by_mix) + SHARE * START
    return Labels(
        xp.where(counts, sticky, labels.sticky),
        xp.where(counts[..., None], last, labels.last),
        labels.mix * decay[..., None] + (posterior * weight[..., None])[..., None, :],
        labels.seen * decay + weight[..., None],
    )


def followed(labels: Labels, likelihood: Any, weights: Any, stay: float, prior: Any = None) -> tuple[Labels, Any, Any]:
    """Go through the samples of one stream, as `expected` and `observed` do one by one, but without copies.

    Args:
        labels: What was known before, of a table of one stream of NumPy arrays.
        likelihood: Class probabilities of the samples, (N, C).
        weights: How much each sample counts, (N,).
        stay: See `expected`.
        prior: See `expected`.

    Returns:
        The labels afterwards, the log prior of each sample (N, C), and the probability of a fresh draw (N,).
    """
    smooth = SMOOTH / likelihood.shape[1] if prior is None else SMOOTH * prior
    sticky, last = float(labels.sticky[0]), labels.last[0]
    counts, (seen, recent) = labels.mix.copy(), labels.seen[0].tolist()
    ever, lately = counts[0]
    boost, fresh = np.empty_like(likelihood), np.empty_like(weights)
    for row, (sample, weight) in enumerate(zip(likelihood, weights.tolist(), strict=True)):
        one, two = 0.5 / (seen + SMOOTH), 0.5 / (recent + SMOOTH)
        mix = ever * one
        mix += lately * two
        mix += smooth * (one + two)
        chain = (last if seen > 0 else mix) * stay
        chain += (1 - stay) * mix
        ratio = np.divide(chain, mix, out=boost[row])
        ratio *= sticky
        ratio += 1 - sticky
        fresh[row] = 1 - sticky * stay
        if weight <= 0:
            continue
        by_chain, by_mix = float(chain @ sample), float(mix @ sample)
        last = np.multiply(chain, sample, out=chain)
        last /= by_chain
        mix *= sample
        mix *= weight / by_mix
        ever += mix
        lately *= _KEEP
        lately += mix
        seen, recent = seen + weight, recent * _KEEP + weight
        odds = sticky * by_chain
        sticky = (1 - SHARE) * odds / (odds + (1 - sticky) * by_mix) + SHARE * START
    np.log(boost, out=boost)
    after = Labels(np.array([sticky]), last[None], counts, np.array([[seen, recent]]))
    return after, np.minimum(boost, BOOST, out=boost), fresh
