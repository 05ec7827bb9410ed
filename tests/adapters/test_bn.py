"""BN: which statistics each option means."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
import neotta.testing
from neotta.errors import OptionError


class Norm(nn.Module):
    """One batch-norm layer, so that statistics can be computed by hand."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 4)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.tensor([0.3, -0.2, 0.1]))
            self.norm.running_var.copy_(torch.tensor([0.5, 2.0, 1.5]))

    def forward(self, images):
        return self.head(torch.tanh(self.norm(images)).mean(dim=(2, 3)))


def network():
    torch.manual_seed(0)
    return Norm().double().eval()


def batch(rows=5, seed=0, side=4):
    random = torch.Generator().manual_seed(seed)
    return 1 + 2 * torch.randn(rows, 3, side, side, dtype=torch.float64, generator=random)


def by_hand(model, images, mean, variance):
    with torch.no_grad():
        shape = (1, 3, 1, 1)
        normal = (images - mean.view(shape)) / (variance.view(shape) + model.norm.eps).sqrt()
        return model.head(torch.tanh(normal).mean(dim=(2, 3)))


def moments(images):
    flat = images.transpose(0, 1).flatten(1)
    return flat.mean(1), flat.var(1, unbiased=False), flat.var(1, unbiased=True)


def test_batch_takes_the_biased_variance():
    model, images = network(), batch()
    mean, biased, _ = moments(images)
    torch.testing.assert_close(neotta.create("bn", model)(images), by_hand(model, images, mean, biased))


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0, 1), rows=st.integers(1, 6))
def test_mix_is_between_source_and_batch(alpha, rows):
    model, images = network(), batch(rows)
    mean, _, unbiased = moments(images)
    source = model.norm.running_mean, model.norm.running_var
    parts = zip(source, (mean, unbiased), strict=True)
    wanted = by_hand(model, images, *((1 - alpha) * s + alpha * b for s, b in parts))
    torch.testing.assert_close(neotta.create("bn", model, statistics="mix", alpha=alpha)(images), wanted)
    if alpha > 0:  # so many images as the source counts
        mixed = neotta.create("bn", model, statistics="mix", prior_samples=rows * (1 - alpha) / alpha)
        torch.testing.assert_close(mixed(images), wanted)


def test_parts():
    model, images = network(), batch()
    mean, _, unbiased = moments(images)
    source = model.norm.running_mean, model.norm.running_var
    for statistics, wanted in (("mean_only", (mean, source[1])), ("var_only", (source[0], unbiased))):
        answer = neotta.create("bn", model, statistics=statistics)(images)
        torch.testing.assert_close(answer, by_hand(model, images, *wanted))


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_plain_average_counts_batches_alike(scope):
    model, stream = network(), [batch(5, 1), batch(2, 2), batch(7, 3)]
    adapter = neotta.create("bn", model, statistics="ema", scope=scope, momentum=None)
    torch.testing.assert_close(adapter(batch(), adapt=False), model(batch()).detach())
    for images in stream:
        answer = adapter(images)
    parts = [moments(images) for images in stream]
    mean, unbiased = (torch.stack([part[index] for part in parts]).mean(0) for index in (0, 2))
    torch.testing.assert_close(answer, by_hand(model, stream[-1], mean, unbiased))


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_bad_image_does_not_move_the_average(scope):
    model = neotta.testing.MODELS["batch-norm"]().double().eval()
    adapter = neotta.create("bn", model, statistics="ema", scope=scope)
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    adapter(images)
    before = adapter.state_dict()
    bad = images.clone()
    bad[1] = torch.nan
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        answer = adapter(bad)
    assert adapter.skipped == 4
    assert answer[[0, 2, 3]].isfinite().all(), "the others are predicted with the average"
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_a_single_value_takes_the_stored_statistics():
    model, image = network(), batch(1, side=1)
    with pytest.warns(RuntimeWarning, match="one value per channel"):
        answer = neotta.create("bn", model)(image)
    torch.testing.assert_close(answer, model(image).detach())


def test_a_model_without_batch_norm_stays_as_it_is():
    model, images = neotta.testing.MODELS["vit"]().eval(), torch.randn(4, 3, 32, 32)
    with pytest.warns(RuntimeWarning, match="bn changes nothing: VisionTransformer has no BatchNorm"):
        adapter = neotta.create("bn", model)
    assert torch.equal(adapter(images), model(images))
    adapter.reset()  # does not warn again


def test_two_ways_to_mix_are_one_too_many():
    with pytest.raises(OptionError, match="give one of them"):
        neotta.create("bn", network(), statistics="mix", alpha=0.1, prior_samples=3)


@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_contract_of_the_moving_average(scope, momentum):
    neotta.testing.check_adapter(
        "bn",
        models={"batch-norm": neotta.testing.MODELS["batch-norm"]},
        statistics="ema",
        scope=scope,
        momentum=momentum,
    )
