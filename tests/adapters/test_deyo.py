"""DeYO: how images are destroyed, what is selected, and what is minimised."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.states import same
from support.tiny_vit import batches, confident_vit, entropies
from torch.func import functional_call

import neotta
from neotta.adapters.deyo import occlude, shuffle_patches, shuffle_pixels


def pictures(count, side, seed=0):
    return torch.rand(count, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def permutations(count, length, seed=0):
    return torch.rand(count, length, generator=torch.Generator().manual_seed(seed)).argsort(1)


@settings(max_examples=20, deadline=None)
@given(side=st.integers(1, 5), patch=st.integers(1, 4), seed=st.integers(0, 99))
def test_each_position_takes_the_patch_it_is_told(side, patch, seed):
    images, order = pictures(2, side * patch, seed), permutations(2, side * side, seed)
    shuffled = shuffle_patches(images, order)

    def cut(image, index):
        row, column = divmod(int(index), side)
        return image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch]

    for image, moved, own in zip(images, shuffled, order, strict=True):
        for position, taken in enumerate(own):
            assert torch.equal(cut(moved, position), cut(image, taken))


def test_a_grid_that_does_not_fit_keeps_the_size():
    images = pictures(2, 10)
    still = torch.arange(9).expand(2, 9)
    assert shuffle_patches(images, still).shape == images.shape
    assert not torch.equal(shuffle_patches(images, still), shuffle_patches(images, still, antialias=False))


def test_pixels_and_occlusion():
    images, order = pictures(2, 4), permutations(1, 16)[0]
    assert torch.equal(shuffle_pixels(images, order).flatten(2), images.flatten(2)[:, :, order])
    before = images.clone()
    hidden = occlude(images, 2, 1, 0)
    assert torch.equal(images, before), "the input is not changed"
    means = images.mean((2, 3), keepdim=True)
    torch.testing.assert_close(hidden[:, :, 1:3, :2], means.expand(-1, -1, 2, 2))
    assert torch.equal(hidden[:, :, :, 2:], images[:, :, :, 2:])


def test_one_step_by_hand():
    model, (images,) = confident_vit(), batches(1, size=12)
    with torch.no_grad():
        margin = float(entropies(model(images)).quantile(0.8))
    options = {"deyo_margin": margin, "margin_e0": 0.5, "plpd_threshold": 0.0, "lr": 0.1, "momentum": 0.0}
    adapter, twin = (neotta.create("deyo", model, **options) for _ in range(2))
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
    logits = functional_call(model, params, images)
    entropy, probabilities = entropies(logits), logits.detach().softmax(1)
    reliable = (entropy < margin).nonzero().flatten()
    with torch.no_grad():
        destroyed = model(twin._destroy(images[reliable])).softmax(1)
    predicted = probabilities[reliable].argmax(1)
    drop = probabilities[reliable, predicted] - destroyed[torch.arange(len(reliable)), predicted]
    chosen = drop > 0
    assert 0 < chosen.sum() < len(reliable) < len(images)
    kept = entropy[reliable][chosen]
    loss = (((0.5 - kept.detach()).exp() + drop[chosen].exp()) * kept).mean()
    grads = torch.autograd.grad(loss, list(params.values()))
    torch.testing.assert_close(adapter(images), logits.detach())
    for (name, tensor), grad in zip(params.items(), grads, strict=True):
        torch.testing.assert_close(adapter.params[name].detach(), (tensor - 0.1 * grad).detach())


@pytest.mark.parametrize("options", [{"deyo_margin": 0.0}, {"plpd_threshold": 1.0}])
def test_a_batch_without_selected_samples_trains_nothing(options):
    adapter, (images,) = neotta.create("deyo", confident_vit(), lr=0.1, **options), batches(1)
    before = adapter.state_dict()
    adapter(images)
    after = adapter.state_dict()
    before.pop("generator"), after.pop("generator")
    assert same(before, after)


def test_the_seed_decides():
    first, second = batches(2)
    options = {"deyo_margin": 10.0, "plpd_threshold": -1.0, "lr": 0.1}
    one, same_seed, other = (neotta.create("deyo", confident_vit(), seed=seed, **options) for seed in (1, 1, 2))
    for adapter in (one, same_seed, other):
        adapter(first)
    assert torch.equal(one(second), same_seed(second))
    assert not torch.equal(one(second), other(second))
