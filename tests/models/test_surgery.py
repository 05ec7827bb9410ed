from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import neotta
from neotta.errors import (
    AlreadyAdaptedError,
    AmbiguousHeadError,
    HeadNotFoundError,
    ModelError,
    NotAdaptedError,
    OptionError,
    UnknownMethodError,
    UnsupportedModelError,
)
from neotta.models.heads import find_heads, logits_of


@torch.no_grad()
def answer(model, images):
    return logits_of(model(images))


def test_heads_are_found(any_model):
    model, names = any_model
    assert list(find_heads(model)) == names


def test_adapt_returns_the_same_object_and_changes_the_answers(any_model, images):
    model, names = any_model
    plain = answer(model, images)
    assert neotta.adapt(model) is model
    adapted = answer(model, images)
    assert not torch.allclose(plain, adapted)
    assert list(neotta.heads(model)) == names
    assert all(head.count == 6 for head in neotta.heads(model).values())
    torch.testing.assert_close(adapted.mean(0), sum(h.bias for h in neotta.heads(model).values()).detach() / len(names))


def test_restore_is_bit_exact(any_model, images):
    model, _ = any_model
    before = copy.deepcopy(model.state_dict())
    modules = dict(model.named_modules())
    plain = answer(model, images)
    answer(neotta.adapt(model), images)
    neotta.restore(model)
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(plain, answer(model, images))


def test_fold_answers_the_same_without_any_trace(any_model, images):
    model, names = any_model
    answer(neotta.adapt(model), images)
    for head in neotta.heads(model).values():
        head.freeze()
    frozen = answer(model, images)
    neotta.fold(model)
    torch.testing.assert_close(answer(model, images), frozen, rtol=1e-4, atol=1e-5)
    assert all(type(model.get_submodule(name)) is nn.Linear for name in names)
    with pytest.raises(NotAdaptedError):
        neotta.heads(model)


def test_a_folded_model_can_be_restored_too(any_model, images):
    model, _ = any_model
    before, plain, modules = copy.deepcopy(model.state_dict()), answer(model, images), dict(model.named_modules())
    for _ in range(2):  # folded, adapted again and folded again
        answer(neotta.adapt(model), images)
        neotta.fold(model)
    neotta.restore(model.double()).float()
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(plain, answer(model, images))


def test_split(any_model, images):
    model, names = any_model
    if len(names) > 1:
        with pytest.raises(AmbiguousHeadError, match="head_dist"):
            neotta.split(model)
        return
    encoder, head = neotta.split(model)
    with torch.no_grad():
        torch.testing.assert_close(head(encoder(images)), answer(model, images))
    assert not head._forward_pre_hooks


def test_checkpoints_of_the_plain_model_load_strictly(any_model):
    model, _ = any_model
    state = copy.deepcopy(model.state_dict())
    neotta.adapt(model).load_state_dict(state, strict=True)
    assert model.state_dict().keys() == state.keys()


def test_a_checkpoint_assigned_while_adapted_survives_restore(any_model, images):
    model, _ = any_model
    other = {
        name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()
    }
    neotta.adapt(model).load_state_dict(other, strict=True, assign=True)
    neotta.restore(model)
    assert all(torch.equal(other[name], tensor) for name, tensor in model.state_dict().items())


def test_deepcopies_adapt_and_restore_on_their_own(any_model, images):
    model, _ = any_model
    plain = answer(model, images)
    twin = copy.deepcopy(neotta.adapt(model))
    answer(twin, images)
    assert all(head.count == 0 for head in neotta.heads(model).values())
    assert torch.equal(plain, answer(neotta.restore(twin), images))


def test_moving_an_adapted_model(any_model, images):
    model, _ = any_model
    neotta.adapt(model).double()
    answer(model, images.double())
    neotta.restore(model)
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


def test_adapt_twice_keeps_the_state_or_says_why_not(any_model, images):
    model, _ = any_model
    answer(neotta.adapt(model), images)
    neotta.adapt(model)
    assert all(head.count == 6 for head in neotta.heads(model).values())
    with pytest.raises(AlreadyAdaptedError, match="restore"):
        neotta.adapt(model, "neo-continual")
    neotta.reset(model)
    assert all(head.count == 0 for head in neotta.heads(model).values())


def test_one_head_used_in_two_places(images):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Conv2d(3, 8, 32)
            self.fc = nn.Linear(8, 5)
            self.again = self.fc

        def forward(self, images):
            return self.again(self.encoder(images).flatten(1))

    model = neotta.adapt(Tied())
    assert model.fc is model.again
    answer(model, images)
    assert neotta.head(model).count == 6
    assert neotta.restore(model).fc is model.again


def test_a_head_that_shares_its_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    neotta.adapt(model, head="1")
    assert neotta.head(model).weight is model[0].weight


def test_hooks_on_the_head_stay(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    answer(neotta.adapt(model), images)
    assert len(seen) == 1


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.animal, self.colour = nn.Linear(3, 4), nn.Linear(3, 2)

    def forward(self, images):
        pooled = images.mean(dim=(2, 3))
        return self.animal(pooled), self.colour(pooled)


def test_two_possible_heads(images):
    with pytest.raises(AmbiguousHeadError, match=r"head='animal'.*\['animal', 'colour'\]"):
        neotta.adapt(TwoOutputs())
    model = neotta.adapt(TwoOutputs(), head=["animal", "colour"])
    model(images)
    assert {name: head.count for name, head in neotta.heads(model).items()} == {"animal": 6, "colour": 6}
    with pytest.raises(ModelError, match=r"neotta\.heads"):
        neotta.head(model)


class Odd(nn.Module):
    """Takes images of one odd size only."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3 * 7 * 7, 8), nn.Linear(8, 4)

    def forward(self, images):
        return self.two(self.one(images.flatten(1)))


def test_an_example_finds_the_head():
    with pytest.raises(HeadNotFoundError, match=r"head='\.\.\.'.*'one', 'two'"):
        neotta.adapt(Odd())
    model = Odd().train()
    assert list(neotta.heads(neotta.adapt(model, example=torch.zeros(1, 3, 7, 7)))) == ["two"]
    assert model.training
    with pytest.raises(HeadNotFoundError, match="could not be run on the example"):
        neotta.adapt(Odd(), example=torch.zeros(1, 3, 8, 8))


def refused(model, match, **options):
    before = dict(model.named_modules())
    with pytest.raises(HeadNotFoundError, match=match):
        neotta.adapt(model, **options)
    assert dict(model.named_modules()) == before


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_heads_that_cannot_be_re_centered():
    from torch.ao.nn.quantized import dynamic

    refused(nn.Sequential(nn.Conv2d(3, 4, 1)), "no Linear layer")
    refused(nn.Linear(3, 4), "from_linear")
    model = nn.Module()
    model.fc = dynamic.Linear(3, 4)
    refused(model, "fold before quantizing")
    model.fc = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    refused(model, "parametrized")
    model.fc = type("LoraLinear", (nn.Module,), {})()
    refused(model, "merge it first")
    model.fc = type("MyLinear", (nn.Linear,), {"forward": lambda self, x: x})(3, 4)
    refused(model, "a way of its own")
    model.classifier = nn.Sequential(nn.ReLU(), nn.Linear(3, 4))
    refused(model, "head='classifier.1'", head="classifier")
    refused(model, "no layer 'haed'", head="haed")


def test_a_model_without_classes(images):
    import timm

    refused(timm.create_model("resnet10t", num_classes=0), "num_classes=0")


def test_wrong_words():
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(UnknownMethodError, match="did you mean 'neo-continual'"):
        neotta.adapt(model, "neo-continuous")
    with pytest.raises(OptionError, match=r"option 'alpha' of method 'neo-continual' is 1\.5"):
        neotta.adapt(model, "neo-continual", alpha=1.5)
    with pytest.raises(OptionError, match="did you mean 'alpha'"):
        neotta.adapt(model, "neo-continual", alhpa=0.5)
    with pytest.raises(OptionError, match="it takes weighting, shrinkage"):
        neotta.adapt(model, momentum=0.5)
    with pytest.raises(NotAdaptedError, match=r"neotta\.adapt"):
        neotta.head(model)
    with pytest.raises(NotAdaptedError):
        neotta.restore(model)


def test_every_variant_is_wired(images):
    import timm

    model = timm.create_model("resnet10t", num_classes=5, channels=(8, 8, 16, 16)).eval()
    answers = {}
    for method, options in (
        ("neo", {}),
        ("neo", {"shrinkage": "james-stein"}),
        ("neo-continual", {"alpha": 0.5}),
        ("neo-mse", {}),
        ("neo-bn", {}),
        ("neo-bn", {"statistics": "ema"}),
    ):
        expected = neotta.create(method, model, **options)(images)
        got = answer(neotta.adapt(model, method, **options), images)
        torch.testing.assert_close(got, expected)
        answers[method, str(options)] = got
        neotta.restore(model)
    listed = list(answers.values())
    assert all(not torch.allclose(a, b) for i, a in enumerate(listed) for b in listed[:i])


def test_neo_bn_needs_batch_norm():
    with pytest.raises(UnsupportedModelError, match="BatchNorm"):
        neotta.adapt(nn.Sequential(nn.Linear(3, 4)), "neo-bn")


def test_neo_bn_moves_freezes_folds_and_restores(images):
    import timm

    model = timm.create_model("resnet10t", num_classes=5, channels=(8, 8, 16, 16)).eval()
    plain, state = answer(model, images), copy.deepcopy(model.state_dict())
    neotta.adapt(model, "neo-bn", statistics="ema", momentum=0.5)
    answer(model, images)
    neotta.head(model).freeze()
    frozen = answer(model, images)
    assert torch.equal(frozen, answer(model, images))
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    folded = neotta.fold(copy.deepcopy(model))
    torch.testing.assert_close(answer(folded, images), frozen, rtol=1e-4, atol=1e-5)
    assert not any(hasattr(module, "_original") for module in folded.modules())
    neotta.reset(model)
    assert torch.equal(answer(model, images), plain)
    answer(model, images)
    assert torch.equal(answer(neotta.restore(neotta.fold(model)), images), plain)
    neotta.adapt(model, "neo-bn")
    with pytest.raises(UnsupportedModelError, match="statistics='ema'"):
        neotta.fold(model)


def test_one_value_per_channel_falls_back_to_the_stored_statistics():
    from neotta.batchnorm import adaptive_norm

    layer = nn.BatchNorm2d(3).eval()
    layer.running_mean += 1
    stand_in = adaptive_norm(layer)
    one = torch.randn(1, 3, 1, 1)
    with pytest.warns(RuntimeWarning, match="stored ones"):
        assert torch.equal(stand_in(one), layer(one))
    more = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(stand_in(more).mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
