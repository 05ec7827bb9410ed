"""COME: the entropy of opinions, as an option of TENT, ETA, EATA and SAR."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_vit import batches, confident_vit

import neotta
from neotta.adapters.losses import opinion_entropy


def random(rows, classes, seed, scale=3.0):
    return scale * torch.randn(rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(2, 12), prior=st.integers(1, 1000), seed=st.integers(0, 99))
def test_it_is_the_entropy_of_beliefs_and_uncertainty(classes, prior, seed):
    logits = random(4, classes, seed)
    evidence = logits.exp()
    strength = evidence.sum(1, keepdim=True) + prior
    opinion = torch.cat([evidence / strength, prior / strength], dim=1) + 1e-7
    torch.testing.assert_close(opinion_entropy(logits, prior), -(opinion * opinion.log()).sum(1))


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(2, 12), seed=st.integers(0, 99))
def test_the_gradient_does_not_change_the_length_of_the_logits(classes, seed):
    logits = random(4, classes, seed).requires_grad_()
    (grad,) = torch.autograd.grad(opinion_entropy(logits, classes).sum(), logits)
    torch.testing.assert_close((grad * logits.detach()).sum(1), torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("logits", [torch.full((2, 3), 500.0), torch.zeros(2, 3), torch.tensor([[-900.0, 0, 900]])])
def test_extreme_logits_are_finite(logits):
    logits = logits.clone().requires_grad_()
    found = opinion_entropy(logits, 3)
    (grad,) = torch.autograd.grad(found.sum(), logits)
    assert found.isfinite().all()
    assert grad.isfinite().all()


def test_without_evidence_nothing_is_known():
    assert float(opinion_entropy(torch.full((1, 5), -50.0), 5)) < 1e-4
    assert float(opinion_entropy(torch.zeros(1, 5, dtype=torch.float64), 5)) == pytest.approx(
        math.log(2) + math.log(5) / 2, abs=1e-4
    )


@pytest.mark.parametrize("method", ["tent", "eta", "eata", "sar"])
def test_it_changes_what_is_learnt_and_nothing_else(method):
    stream = batches(3)
    given = {"source": batches(1, seed=7)[0]} if method == "eata" else {}
    margin = {"tent": {}, "sar": {"margin": 10.0}}.get(method, {"e_margin": 10.0})
    plain, come = (
        neotta.create(method, confident_vit(), lr=0.01, uncertainty=each, **given, **margin)
        for each in ("entropy", "come")
    )
    assert torch.equal(plain(stream[0]), come(stream[0])), "the first answer comes before any step"
    assert not torch.equal(plain(stream[1]), come(stream[1]))
    assert neotta.create(method, confident_vit(), preset="come", **given).options.uncertainty == "come"
