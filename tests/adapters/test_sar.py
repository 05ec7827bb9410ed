from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reoptioned import with_options
from support.states import same
from torch import nn
from torch.func import functional_call

import neotta
from neotta.adapters.sar import frozen_by_name, last_layers
from neotta.errors import OptionError, UnsupportedModelError


def vit(depth=2):
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    model = VisionTransformer(img_size=16, patch_size=8, embed_dim=16, depth=depth, num_heads=2, num_classes=5)
    with torch.no_grad():
        model.head.weight.mul_(8)  # an untrained head is sure of nothing
    return model.double().eval()


def hf():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=5)).eval()


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Stage(8), Stage(8))
        self.layer2 = nn.Sequential(Stage(8))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.bn1(self.stem(x)))).mean(dim=(2, 3)))


def batches(count, size=8, seed=1, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 3, 16, 16, generator=random, dtype=dtype) for _ in range(count)]


def entropies(logits):
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def test_one_step_by_hand():
    model, (images,) = vit(), batches(1)
    margin = float(entropies(model(images).detach()).median())
    adapter = neotta.create("sar", model, lr=0.1, rho=0.02, margin=margin)
    source = {name: tensor.detach().clone().requires_grad_() for name, tensor in adapter.params.items()}
    entropy = entropies(functional_call(model, source, images))
    reliable = entropy < margin
    assert 0 < reliable.sum() < len(images)
    slope = torch.autograd.grad(entropy[reliable].mean(), list(source.values()))
    length = math.sqrt(sum(float((part**2).sum()) for part in slope))
    climbed = {
        name: (tensor + 0.02 * part / length).detach().requires_grad_()
        for (name, tensor), part in zip(source.items(), slope, strict=True)
    }
    second = entropies(functional_call(model, climbed, images))
    loss = second[reliable & (second < margin)].mean()
    grads = torch.autograd.grad(loss, list(climbed.values()))

    logits = adapter(images)

    torch.testing.assert_close(logits, model(images).detach())
    torch.testing.assert_close(float(adapter.ema), float(loss.detach()))
    for (name, tensor), grad in zip(source.items(), grads, strict=True):
        torch.testing.assert_close(adapter.params[name], tensor - 0.1 * grad)


@settings(max_examples=30, deadline=None)
@given(rho=st.floats(0, 2), scale=st.floats(1e-3, 1e6), seed=st.integers(0, 1000))
def test_the_climb_is_rho_long(rho, scale, seed):
    adapter = neotta.create("sar", vit(depth=1), rho=rho)
    random = torch.Generator().manual_seed(seed)
    slope = [
        scale * torch.randn(tensor.shape, generator=random, dtype=torch.float64) for tensor in adapter.params.values()
    ]
    climbed = adapter._climb(slope)
    moved = math.sqrt(sum(float((climbed[name] - adapter.params[name]).detach().square().sum()) for name in climbed))
    assert moved == pytest.approx(rho, abs=1e-8)


@pytest.mark.parametrize("make", [vit, hf, CNN])
def test_reset_and_state_are_exact(make, tmp_path):
    model = make().eval()
    dtype = next(model.parameters()).dtype
    stream = batches(5, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = neotta.create("sar", model, lr=0.05, margin=2.0)
    fresh = adapter.state_dict()
    first = [adapter(images) for images in stream[:2]]
    adapter.save(tmp_path / "sar.safetensors")
    rest = [adapter(images) for images in stream[2:]]
    assert not same(adapter.state_dict(), fresh)

    other = neotta.create("sar", model, lr=0.05, margin=2.0)
    other.load(tmp_path / "sar.safetensors")
    assert all(torch.equal(other(images), logits) for images, logits in zip(stream[2:], rest, strict=True))
    assert same(adapter.state_dict(), other.state_dict())

    adapter.reset()
    assert same(adapter.state_dict(), fresh)
    assert all(torch.equal(adapter(images), logits) for images, logits in zip(stream, first, strict=False))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_without_adaptation_nothing_changes():
    adapter = neotta.create("sar", vit())
    state = adapter.state_dict()
    adapter(batches(1)[0], adapt=False)
    assert same(adapter.state_dict(), state)


def test_margin_follows_the_classes_kept():
    assert neotta.create("sar", vit()).margin == pytest.approx(0.4 * math.log(5))
    assert neotta.create("sar", vit(), classes=[0, 3]).margin == pytest.approx(0.4 * math.log(2))
    assert neotta.create("sar", vit(), margin=0.3).margin == 0.3


def test_batches_without_reliable_samples():
    stream = batches(2)
    moved = {}
    for empty in ("momentum", "skip"):
        adapter = neotta.create("sar", vit(), lr=0.05, margin=0.0, empty=empty)
        source = adapter.state_dict()
        adapter(stream[0])
        assert same(adapter.state_dict(), source), "from a fresh start there is no momentum"
        adapter = with_options(adapter, margin=1.5)
        adapter(stream[0])
        before = adapter.state_dict()
        adapter = with_options(adapter, margin=0.0)
        adapter(stream[1])
        after = adapter.state_dict()
        assert torch.equal(after["ema"], before["ema"])
        assert all(torch.isfinite(tensor).all() for tensor in after.values())
        moved[empty] = not same(after, before)
    assert moved == {"momentum": True, "skip": False}


def test_recovery_clears_everything_unless_told_otherwise():
    images = batches(1)[0]
    options = {"lr": 0.05, "margin": 1.5, "reset_threshold": 10.0}
    clean = neotta.create("sar", vit(), **options)
    fresh = clean.state_dict()
    clean(images)
    assert same(clean.state_dict(), fresh)

    leaky = neotta.create("sar", vit(), **options, compat=["sar_recovery_keeps_ema", "sar_reset_keeps_momentum"])
    leaky(images)
    state = leaky.state_dict()
    assert not math.isnan(float(leaky.ema))
    for name, tensor in state.items():
        assert torch.equal(tensor, fresh[name]) == name.startswith("params/")
    leaky.reset()
    assert math.isnan(float(leaky.ema))
    momentum = [name for name in state if name.endswith("momentum_buffer")]
    assert momentum
    assert all(torch.equal(leaky.state_dict()[name], state[name]) for name in momentum)


def test_bad_batches_never_reach_the_weights():
    adapter = neotta.create("sar", vit(), lr=0.05, margin=1.5)
    good, bad = batches(2)
    adapter(good)
    state = adapter.state_dict()
    bad[3, 0, 0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="1 of 8 samples"):
        logits = adapter(bad)
    assert adapter.skipped == 8
    assert same(adapter.state_dict(), state)
    assert torch.isfinite(logits[:3]).all()


def test_steps_and_episodes():
    images = batches(1)[0]
    once = neotta.create("sar", vit(), lr=0.05, margin=1.5)
    twice = neotta.create("sar", vit(), lr=0.05, margin=1.5, steps=2)
    once(images)
    assert torch.equal(once(images), twice(images))
    assert same(once.state_dict(), twice.state_dict())
    assert twice.forward_passes == 4
    episodic = neotta.create("sar", vit(), lr=0.05, margin=1.5, episodic=True)
    assert torch.equal(episodic(images), episodic(images))


def test_reference_rule_by_name():
    frozen = ["norm", "layer4.0.bn1", "blocks.9.norm1", "blocks.11.norm2", "fc.norm.0"]
    trained = [
        "bn1",
        "layer3.0.bn1",
        "blocks.8.norm1",
        "blocks.12.norm1",
        "vit.layernorm",
        "vit.layers.9.layernorm_after",
    ]
    assert all(map(frozen_by_name, frozen))
    assert not any(map(frozen_by_name, trained))


@pytest.mark.parametrize(
    ("make", "count", "trained"),
    [
        (vit, 0, ["blocks.0", "blocks.1", "norm"]),
        (vit, 1, ["blocks.0"]),
        (hf, 2, ["vit.layers.0"]),
        (CNN, 0, ["bn1", "layer1.0", "layer1.1", "layer2.0"]),
        (CNN, 2, ["bn1", "layer1.0"]),
    ],
)
def test_freezing_the_last_blocks(make, count, trained):
    adapter = neotta.create("sar", make(), frozen_layers=count)
    layers = {name.rpartition(".")[0] for name in adapter.params}
    assert {next(part for part in trained if layer.startswith(part)) for layer in layers} == set(trained)


def test_freezing_needs_blocks():
    plain = nn.Module()
    plain.norm = nn.LayerNorm(4)
    with pytest.raises(UnsupportedModelError, match="no blocks"):
        last_layers(plain, 1)
    with pytest.raises(UnsupportedModelError, match="nothing to train"):
        neotta.create("sar", vit(), frozen_layers=2)


@pytest.mark.parametrize(
    ("make", "rates"),
    [(vit, {64: 1e-3, 16: 2.5e-4, 1: 2e-3 / 64}), (CNN, {64: 2.5e-4, 32: 2.5e-4, 16: 1.25e-4, 1: 1e-3 / 64})],
)
def test_learning_rate_of_the_original(make, rates):
    adapter = neotta.create("sar", make(), preset="original")
    assert {batch: adapter.learning_rate(batch) for batch in rates} == pytest.approx(rates)
    assert neotta.create("sar", make()).learning_rate(1) == 1e-3


@pytest.mark.parametrize("options", [{"rho": -1.0}, {"frozen_layers": -1}, {"compat": ["nothing"]}, {"empty": "stop"}])
def test_wrong_options(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        neotta.create("sar", vit(), **options)
