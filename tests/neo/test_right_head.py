"""The right head or none: models whose last linear layer is not what they return."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neotta
from neotta.errors import AmbiguousHeadError, HeadNotFoundError, OptionError, UnsupportedModelError
from neotta.neo.find_head import find_heads, logits_of
from neotta.neo.head_views import NEOConvHead


@torch.no_grad()
def answer(model, inputs):
    return logits_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))


class Net(nn.Module):
    """A small network with any ending."""

    def __init__(self, end, **layers):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 2)
        self.end = end
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, images):
        return self.end(self, self.body(images).relu())


class Cosine(nn.Module):
    def __init__(self, scale=16.0, transposed=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn((8, 5) if transposed else (5, 8)))
        self.scale, self.transposed = scale, transposed

    def forward(self, z):
        weight = self.weight.T if self.transposed else self.weight
        return self.scale * F.linear(F.normalize(z), F.normalize(weight))


def pool(maps):
    return maps.mean(dim=(2, 3))


def bottleneck():
    return {"neck": nn.Linear(8, 8)}


WRONG = {
    "functional cosine": (
        lambda: Net(
            lambda self, z: 9 * F.linear(F.normalize(self.neck(pool(z))), F.normalize(self.fc.weight)),
            **bottleneck(), fc=nn.Linear(8, 5, bias=False),
        ),
        "is computed from the layer 'neck'.*at='logits'",
    ),
    "only one linear layer": (
        lambda: Net(lambda self, z: F.normalize(self.neck(pool(z))) @ torch.eye(8)[:, :5], **bottleneck()),
        "'neck'.*at='logits'",
    ),
    "scaled": (lambda: Net(lambda self, z: 30 * self.fc(F.normalize(pool(z))), fc=nn.Linear(8, 5)), "scaled"),
    "in place": (lambda: Net(lambda self, z: self.fc(pool(z)).mul_(3), fc=nn.Linear(8, 5)), "scaled"),
    "tokens pooled afterwards": (
        lambda: Net(lambda self, z: self.fc(z.flatten(2).transpose(1, 2)).mean(1), fc=nn.Linear(8, 5)),
        r"returns a tensor of \(2, \d+, 5\).*pooled",
    ),
    "rectified": (lambda: Net(lambda self, z: pool(self.fc(z).relu()), fc=nn.Conv2d(8, 5, 1)), "'fc'"),
    "max-pooled": (lambda: Net(lambda self, z: self.fc(z).amax((2, 3)), fc=nn.Conv2d(8, 5, 1)), "'fc'"),
    "tokens": (
        lambda: Net(lambda self, z: self.fc(z.flatten(2).transpose(1, 2)), fc=nn.Linear(8, 5)),
        r"5\) for 2 samples, expected \(batch, classes\)",
    ),
    "called twice": (lambda: Net(lambda self, z: self.fc(self.fc(pool(z))), fc=nn.Linear(8, 8)), "called 2 times"),
    "objects": (lambda: Net(lambda self, z: [{"n": 3}], fc=nn.Linear(8, 5)), "holds no logits"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_layer_that_does_not_return_the_answer_is_refused(name, images):
    torch.manual_seed(0)
    build, match = WRONG[name]
    model = build().eval()
    before = dict(model.named_modules())
    for options in ({}, {"example": images}):
        with pytest.raises(HeadNotFoundError, match=match if not options else None):
            neotta.adapt(model, "neo", **options)
    assert dict(model.named_modules()) == before


def test_resnet50_clip_pools_after_its_last_linear_layer():
    import dataclasses

    from timm.models.byobnet import ByoBlockCfg, ByobNet, model_cfgs

    blocks = tuple(ByoBlockCfg(type="bottle", d=1, c=64, s=s) for s in (1, 2, 2, 2))
    model = ByobNet(dataclasses.replace(model_cfgs["resnet50_clip"], blocks=blocks), num_classes=5, img_size=224).eval()
    with pytest.raises(HeadNotFoundError, match=r"'head\.proj', which returns a tensor of \(2, 50, 5\)"):
        neotta.adapt(model, "neo")
    images = torch.randn(3, 3, 224, 224)
    neotta.adapt(model, "neo", at="logits")
    torch.testing.assert_close(answer(model, images).mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    assert neotta.head(model).count == 3


def test_a_detection_model_is_refused():
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = YolosForObjectDetection(
        YolosConfig(image_size=[32, 32], patch_size=16, num_detection_tokens=7, num_labels=5, **sizes)
    ).eval()
    with pytest.raises(HeadNotFoundError, match="objects"):
        neotta.adapt(model, "neo")
    with pytest.raises(HeadNotFoundError, match="objects"):
        neotta.adapt(model, "neo", at="logits")


@pytest.mark.parametrize("answer_as", ["softmax", "log_softmax"])
def test_probabilities_of_the_head_are_its_answer(answer_as):
    model = Net(lambda self, z: getattr(self.fc(pool(z)), answer_as)(-1), fc=nn.Linear(8, 5))
    assert list(find_heads(model)) == ["fc"]


# ---- 1x1 convolutions


def conv_models():
    yield Net(lambda self, z: pool(self.last(z)), last=nn.Conv2d(8, 5, 1))
    yield Net(lambda self, z: self.last(z.mean((2, 3), keepdim=True)).flatten(1), last=nn.Conv2d(8, 5, 1, bias=False))
    yield Net(
        lambda self, z: pool(self.last(z * self.gate(pool(z)).sigmoid()[..., None, None])),
        gate=nn.Linear(8, 8), last=nn.Conv2d(8, 5, 1),
    )  # fmt: skip


@pytest.mark.parametrize("method", ["neo", "neo-continual", "neo-mse", "neo-stream"])
def test_a_convolution_is_a_linear_head_over_pooled_maps(method, images):
    torch.manual_seed(0)
    for model in conv_models():
        model.eval()
        plain, state = answer(model, images), copy.deepcopy(model.state_dict())
        encoder, head = neotta.split(model)
        with torch.no_grad():
            torch.testing.assert_close(head(encoder(images)), plain)
            alike = nn.Sequential(nn.Linear(8, 5, bias=head.bias is not None))
            alike[0].weight.copy_(head.weight)
            if head.bias is not None:
                alike[0].bias.copy_(head.bias)
            embeddings = encoder(images)
        neotta.adapt(alike, method, head="0")
        assert list(neotta.heads(neotta.adapt(model, method))) == ["last"]
        assert isinstance(neotta.head(model), NEOConvHead)
        for rows in (slice(4), slice(4, None)):
            expected = answer(alike, embeddings[rows])
            torch.testing.assert_close(answer(model, images[rows]), expected, rtol=1e-4, atol=1e-5)
        assert neotta.head(model).count == 6
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
        model.load_state_dict(state, strict=True)
        neotta.head(model).freeze()
        frozen = answer(model, images)
        neotta.fold(model)
        assert type(model.last) is nn.Conv2d
        if method != "neo-stream":  # which also uses the order of the samples
            torch.testing.assert_close(answer(model, images), frozen, rtol=1e-4, atol=1e-5)
        assert torch.equal(answer(neotta.restore(model), images), plain)
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_a_convolution_with_streams_is_saved_and_loaded(images, tmp_path):
    model = next(conv_models()).eval()
    neotta.adapt(model, "neo", streams=True)
    with neotta.streams([*"aaabbb"]):
        answer(model, images)
    neotta.save(model, tmp_path / "all.safetensors")
    neotta.save(model, tmp_path / "a.safetensors", stream="a")
    with neotta.streams([*"aaabbb"]):
        later = answer(model, images)
    neotta.restore(model)
    neotta.load(model, tmp_path / "all.safetensors")
    with neotta.streams([*"aaabbb"]):
        assert torch.equal(answer(model, images), later)
    neotta.restore(model)
    neotta.load(model, tmp_path / "a.safetensors")
    assert neotta.head(model).count == 3


def test_timm_models_with_convolutions_as_heads():
    from functools import partial

    from timm.layers import GroupNormAct
    from timm.models.resnetv2 import ResNetV2

    norm = partial(GroupNormAct, num_groups=4)
    model = ResNetV2(layers=(1, 1, 1, 1), channels=(32,) * 4, num_classes=5, stem_chs=8, norm_layer=norm).eval()
    assert list(neotta.heads(neotta.adapt(model, "neo"))) == ["head.fc"]
    logits = answer(model, torch.randn(4, 3, 64, 64))
    torch.testing.assert_close(logits.mean(0), model.head.fc.bias.detach(), rtol=1e-4, atol=1e-5)


# ---- cosine classifiers


@pytest.mark.parametrize("transposed", [False, True])
def test_a_cosine_classifier_is_re_centered_after_the_normalisation(transposed, images):
    torch.manual_seed(0)
    model = Net(lambda self, z: self.arc(pool(z)), arc=Cosine(transposed=transposed)).eval()
    plain = answer(model, images)
    encoder, head = neotta.split(model)
    with torch.no_grad():
        torch.testing.assert_close(encoder(images).norm(dim=1), torch.ones(6))
        torch.testing.assert_close(head(encoder(images)), plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.weight.norm(dim=1), torch.full((5,), 16.0), rtol=1e-4, atol=1e-4)
    expected = neotta.create("neo", model)(images)
    got = answer(neotta.adapt(model, "neo"), images)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got, plain - plain.mean(0), rtol=1e-4, atol=1e-4)
    assert neotta.adapt(model, "neo") is model
    assert torch.equal(answer(neotta.restore(model), images), plain)
    for method in ("t3a", "lame", "neo-stream", "tent"):
        if method != "tent":
            assert neotta.create(method, model)(images).shape == (6, 5)


def test_two_heads_of_equal_answers_are_not_guessed():
    model = Net(lambda self, z: (self.a(pool(z)), self.b(pool(z))), a=nn.Linear(8, 5), b=nn.Linear(8, 5))
    with pytest.raises(AmbiguousHeadError):
        neotta.adapt(model, "neo")


# ---- at="logits"


def test_at_the_logits_is_the_same_as_at_the_head(any_model, images):
    model, names = any_model
    twin = copy.deepcopy(model)
    for method in ("neo", "neo-continual", "neo-mse", "neo-stream")[: 4 if len(names) == 1 else 1]:
        if len(names) == 1:
            neotta.adapt(twin, method)
            neotta.adapt(model, method, at="logits")
            for batch in (images[:4], images[4:]):
                torch.testing.assert_close(answer(model, batch), answer(twin, batch), rtol=1e-4, atol=1e-4)
            neotta.restore(twin)
        else:
            neotta.adapt(model, method, at="logits")
            answer(model, images)
        assert neotta.head(model).count == 6
        neotta.restore(model)


def test_at_the_logits_leaves_no_trace(any_model, images):
    model, _ = any_model
    plain, state, modules = answer(model, images), copy.deepcopy(model.state_dict()), dict(model.named_modules())
    hooks = len(model._forward_hooks)
    assert neotta.adapt(model, "neo", at="logits") is model
    assert model.state_dict().keys() == state.keys()
    assert len(list(model.parameters())) == len({*state} & dict(model.named_parameters()).keys())
    model.load_state_dict(state, strict=True)
    twin = copy.deepcopy(model)
    adapted = answer(model, images)
    assert not torch.equal(adapted, plain)
    assert neotta.head(twin).count == 0
    assert torch.equal(answer(twin, images), adapted)
    with pytest.raises(UnsupportedModelError, match="no bias to fold into"):
        neotta.fold(model)
    neotta.restore(model)
    assert dict(model.named_modules()) == modules
    assert len(model._forward_hooks) == hooks == len(model._forward_hooks_with_kwargs)
    assert torch.equal(answer(model, images), plain)


def test_at_the_logits_is_saved_and_loaded(images, tmp_path):
    model = Net(lambda self, z: 9 * self.fc(F.normalize(pool(z))), fc=nn.Linear(8, 5)).eval()
    plain = answer(model, images)
    answer(neotta.adapt(model, "neo", at="logits"), images)
    neotta.save(model, tmp_path / "s.safetensors")
    later = answer(model, images)
    neotta.restore(model)
    neotta.load(model, tmp_path / "s.safetensors")
    assert torch.equal(answer(model, images), later)
    neotta.reset(model)
    neotta.head(model).freeze()
    assert torch.equal(answer(model, images), plain)
    other = Net(lambda self, z: 9 * self.fc(F.normalize(pool(z))), fc=nn.Linear(8, 5)).eval()
    with pytest.raises(neotta.NeottaError, match="other head weights"):
        neotta.load(other, tmp_path / "s.safetensors")
    assert torch.equal(answer(other, images), answer(neotta.adapt(other, "neo", at="logits"), images)) is False


def test_outputs_keep_their_kind(images):
    from typing import NamedTuple

    class Named(NamedTuple):
        answer: torch.Tensor
        more: int

    class Fields:
        def __init__(self, logits):
            self.logits, self.more = logits, 3

    kinds = (lambda x: x, lambda x: (x, 3), lambda x: [x, 3], lambda x: {"logits": x, "a": 3}, lambda x: Named(x, 3))
    for wrap in (*kinds, Fields):
        model = Net(lambda self, z, wrap=wrap: wrap(2 * self.fc(pool(z))), fc=nn.Linear(8, 5))
        plain = model(images)
        output = neotta.adapt(model, "neo", at="logits")(images)
        assert type(output) is type(plain)
        torch.testing.assert_close(logits_of(output).mean(0), torch.zeros(5), atol=1e-5, rtol=0)
        assert not torch.allclose(logits_of(plain), logits_of(output))


def test_wrong_words():
    model = Net(lambda self, z: self.fc(pool(z)), fc=nn.Linear(8, 5))
    for options, match in (
        ({"at": "output"}, "expected 'head' or 'logits'"),
        ({"at": "logits", "head": "fc"}, "omit head"),
    ):
        with pytest.raises(OptionError, match=match):
            neotta.adapt(model, "neo", **options)
    neotta.adapt(model, "neo")
    with pytest.raises(neotta.NeottaError, match="already adapted"):
        neotta.adapt(model, "neo", at="logits")
