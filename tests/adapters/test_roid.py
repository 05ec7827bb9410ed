"""ROID: weights, the loss, the pull to the source, and the prior."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.augmentation import affine, augment
from support.tiny_vit import batches, confident_vit, entropies
from torch.func import functional_call
from torch.nn import functional

import neotta
from neotta.adapters.augment import Augmentation, Style
from neotta.adapters.roid import soft_likelihood_ratio, to_unit_range


def roid(model=None, **options):
    views = {"augmentation": lambda images: images.flip(3), "augment_domain": "normalised"}
    return neotta.create("roid", confident_vit() if model is None else model, **{**views, **options})


def test_one_step_by_hand():
    model, (images,) = confident_vit(), batches(1)
    adapter = roid(model, lr=0.1, momentum=0.0, momentum_src=0.9)
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
    logits = functional_call(model, params, images)
    p = logits.softmax(1)
    seen = p.detach()
    usual = functional.cosine_similarity(torch.full((1, 7), 1 / 7, dtype=torch.float64), seen)
    diverse, sure = to_unit_range(1 - usual), to_unit_range(-entropies(logits.detach()))
    kept = diverse >= diverse.mean()
    weight = (3 * diverse * sure).exp()[kept]
    q = functional_call(model, params, images[kept].flip(3)).softmax(1)
    agreement = -((p[kept] * q.log()).sum(1) + (q * p[kept].log()).sum(1)) / 2
    loss = (weight * (soft_likelihood_ratio(p)[kept] + agreement)).sum() / len(images)
    grads = torch.autograd.grad(loss, list(params.values()))
    prior = seen.mean(0)
    smooth = (1 / 7) / prior.max()
    prior = (prior + smooth) / (1 + 7 * smooth)

    answer = adapter(images)

    torch.testing.assert_close(answer.softmax(1), functional.normalize(seen * prior, p=1, dim=1))
    torch.testing.assert_close(adapter.class_probabilities, 0.9 / 7 + 0.1 * seen.mean(0))
    for (name, tensor), grad in zip(params.items(), grads, strict=True):
        wanted = 0.9 * (tensor - 0.1 * grad) + 0.1 * tensor
        torch.testing.assert_close(adapter.params[name].detach(), wanted.detach())


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=9))
def test_weights_are_scaled_to_a_unit_range(values):
    scaled = to_unit_range(torch.tensor(values, dtype=torch.float64))
    assert scaled.isfinite().all()
    assert (scaled.min(), scaled.max()) == ((0, 0) if len(set(values)) == 1 else (0, 1))


def test_the_step_does_not_depend_on_how_full_a_batch_is():
    """The loss is a mean over the batch at hand, unless a size is given."""
    model, (images,) = confident_vit(), batches(1, size=4)
    moved = {}
    for size in (None, 4, 8):
        adapter = roid(model, lr=0.1, momentum=0.0, momentum_src=1.0, batch_size=size)
        adapter(images)
        moved[size] = {
            name: tensor.detach() - model.get_parameter(name).detach() for name, tensor in adapter.params.items()
        }
    for name, step in moved[None].items():
        torch.testing.assert_close(step, moved[4][name])
        torch.testing.assert_close(step / 2, moved[8][name])


def test_predicting_applies_no_prior():
    model, (images,) = confident_vit(), batches(1)
    adapter = roid(model, lr=0.0)
    with torch.no_grad():
        plain = model(images)
    assert torch.equal(adapter(images, adapt=False), plain)
    assert not torch.allclose(adapter(images), plain)
    assert torch.equal(roid(model, use_prior_correction=False)(images), plain)


def test_the_prior_can_multiply_logits_as_published_code_does():
    (images,) = batches(1)
    ours, theirs = roid(lr=0.0), roid(lr=0.0, compat="roid_prior_on_logits")
    plain = ours(images, adapt=False)
    torch.testing.assert_close(theirs(images) / plain, (ours(images) - plain).exp())


@pytest.mark.parametrize("switches", [{"use_weighting": False}, {"use_weighting": False, "use_consistency": False}])
def test_without_weights_all_samples_count_alike(switches):
    adapter, (images,) = roid(lr=0.1, **switches), batches(1)
    start = adapter.class_probabilities.clone()
    adapter(images)
    assert torch.equal(adapter.class_probabilities, start)
    assert adapter.params["norm.weight"].isfinite().all()


def test_one_image_is_no_division_by_zero():
    adapter = roid(lr=0.1)
    for image in batches(3, size=1):
        assert adapter(image).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in adapter.state_dict().values())


def test_its_views_are_reflected_and_neither_blurred_nor_noisy():
    style = neotta.methods()["roid"].style
    assert style == Style(blur=False, noise=False, edge="reflect")
    random = torch.Generator().manual_seed(3)
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64, generator=random)
    drawn = (
        Augmentation(random)
        .draw(8, 8)
        ._replace(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.0, gamma=1.0, flip=False)
    )
    padded = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    wanted = affine(padded, drawn.angle, drawn.translate, drawn.scale)[:, :, 4:-4, 4:-4]
    torch.testing.assert_close(augment(images, drawn, style), wanted.clamp(0, 1), rtol=0, atol=1e-6)
    views = [Augmentation(torch.Generator().manual_seed(5), style=style)(images) for _ in range(2)]
    assert torch.equal(*views)
