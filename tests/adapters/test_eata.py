"""ETA and EATA: what is selected, what is minimised, and what holds the weights."""

from __future__ import annotations

import pytest
import torch
from support.states import same
from support.tiny_vit import batches, confident_vit, entropies
from torch.func import functional_call
from torch.nn import functional

import neotta
from neotta.errors import OptionError


def test_two_steps_by_hand():
    model, (first, second) = confident_vit(), batches(2)
    with torch.no_grad():
        margin = float(entropies(model(first)).quantile(0.7))
    adapter = neotta.create("eta", model, lr=0.01, momentum=0.0, e_margin=margin, d_margin=0.6)
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
    mean = None
    for images in (first, second):
        logits = functional_call(model, params, images)
        entropy, probabilities = entropies(logits), logits.detach().softmax(1)
        chosen = entropy < margin
        if mean is not None:
            redundant = functional.cosine_similarity(mean[None], probabilities) >= 0.6
            assert (chosen & redundant).any()
            chosen = chosen & ~redundant
        assert 0 < chosen.sum() < len(images)
        new = probabilities[chosen].mean(0)
        mean = new if mean is None else 0.9 * mean + 0.1 * new
        loss = ((margin - entropy.detach()).exp() * entropy)[chosen].mean()
        grads = torch.autograd.grad(loss, list(params.values()))
        steps = zip(params.items(), grads, strict=True)
        params = {name: (tensor - 0.01 * grad).detach().requires_grad_() for (name, tensor), grad in steps}
        torch.testing.assert_close(adapter(images), logits.detach())
        torch.testing.assert_close(adapter.mean_probabilities, mean)
    for name, tensor in params.items():
        torch.testing.assert_close(adapter.params[name], tensor)


@pytest.mark.parametrize("options", [{"e_margin": 0.0}, {"d_margin": 0.0}])
def test_a_batch_without_selected_samples_changes_nothing(options):
    adapter, (first, second) = neotta.create("eta", confident_vit(), lr=0.1, **options), batches(2)
    adapter(first)
    before = adapter.state_dict()
    adapter(second)
    assert same(before, adapter.state_dict())


def test_reset_forgets_the_mean_prediction_unless_told_otherwise():
    (images,) = batches(1)
    for compat, forgotten in (((), True), ("eata_reset_keeps_probs", False)):
        adapter = neotta.create("eta", confident_vit(), e_margin=10.0, compat=compat)
        adapter(images)
        adapter.reset()
        assert bool(adapter.mean_probabilities.isnan().all()) == forgotten


def eata(**options):
    (source,) = batches(1, size=10, seed=5)
    return neotta.create("eata", confident_vit(), **{"source": source, "fisher_batch": 4, "e_margin": 10.0, **options})


def test_fisher_information_is_the_mean_of_squared_batch_gradients():
    adapter, (source,) = eata(), batches(1, size=10, seed=5)
    wanted = {name: torch.zeros_like(tensor) for name, tensor in adapter.params.items()}
    for part in (source[:4], source[4:8], source[8:]):
        params = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
        logits = functional_call(adapter.model, params, part)
        loss = functional.cross_entropy(logits, logits.argmax(1))
        for name, grad in zip(params, torch.autograd.grad(loss, list(params.values())), strict=True):
            wanted[name] += grad**2 / 3
    for name, tensor in wanted.items():
        torch.testing.assert_close(adapter.fisher[name], tensor)


def moved(adapter):
    for images in batches(4):
        adapter(images)
    pairs = [(tensor, adapter.model.get_parameter(name)) for name, tensor in adapter.params.items()]
    return sum(float((tensor - source).detach().square().sum()) for tensor, source in pairs)


def test_the_anchor_holds_the_weights():
    free, held = (eata(lr=0.01, d_margin=1.1, fisher_alpha=alpha) for alpha in (0.0, 100.0))
    assert moved(held) < moved(free)
    plain = neotta.create("eta", confident_vit(), lr=0.01, d_margin=1.1, e_margin=10.0)
    moved(plain)
    for name, tensor in plain.params.items():
        assert torch.equal(tensor, free.params[name]), "without the anchor it is ETA"


def test_source_images_are_needed_and_checked():
    with pytest.raises(OptionError, match=r"EATA needs clean images .* 'eta' needs none"):
        neotta.create("eata", confident_vit())
    with pytest.raises(OptionError, match="floating point images of"):
        eata(source=torch.zeros(3, 32, 32))
    with pytest.raises(OptionError, match="damaged"):
        eata(source=torch.full((4, 3, 32, 32), torch.nan))
