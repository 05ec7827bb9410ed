from __future__ import annotations

import copy
import pickle

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
from neotta.neo.find_head import find_heads, logits_of


@torch.no_grad()
def answer(model, images):
    return logits_of(model(images))


def test_heads_are_found(any_model):
    model, names = any_model
    assert list(find_heads(model)) == names


def test_adapt_returns_the_same_object_and_changes_the_answers(any_model, images):
    model, names = any_model
    plain = answer(model, images)
    assert neotta.adapt(model, "neo") is model
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
    answer(neotta.adapt(model, "neo"), images)
    neotta.restore(model)
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(plain, answer(model, images))


def test_fold_answers_the_same_without_any_trace(any_model, images):
    model, names = any_model
    answer(neotta.adapt(model, "neo"), images)
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
        answer(neotta.adapt(model, "neo"), images)
        neotta.fold(model)
    neotta.restore(model.double()).float()
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(plain, answer(model, images))


def test_split(any_model, images):
    model, names = any_model
    if len(names) > 1:
        for head in (None, *names):
            with pytest.raises(UnsupportedModelError, match=r"has 2 heads \(head, head_dist\).*neotta\.adapt"):
                neotta.split(model, head=head)
        return
    encoder, head = neotta.split(model)
    with torch.no_grad():
        torch.testing.assert_close(head(encoder(images)), answer(model, images))
    assert not head._forward_pre_hooks


def test_checkpoints_of_the_plain_model_load_strictly(any_model):
    model, _ = any_model
    state = copy.deepcopy(model.state_dict())
    neotta.adapt(model, "neo").load_state_dict(state, strict=True)
    assert model.state_dict().keys() == state.keys()


def test_a_checkpoint_assigned_while_adapted_survives_restore(any_model, images):
    model, _ = any_model
    other = {
        name: tensor + 0.5 if tensor.is_floating_point() else tensor for name, tensor in model.state_dict().items()
    }
    neotta.adapt(model, "neo").load_state_dict(other, strict=True, assign=True)
    neotta.restore(model)
    assert all(torch.equal(other[name], tensor) for name, tensor in model.state_dict().items())


def test_deepcopies_adapt_and_restore_on_their_own(any_model, images):
    model, _ = any_model
    plain = answer(model, images)
    twin = copy.deepcopy(neotta.adapt(model, "neo"))
    answer(twin, images)
    assert all(head.count == 0 for head in neotta.heads(model).values())
    assert torch.equal(plain, answer(neotta.restore(twin), images))


def test_moving_an_adapted_model(any_model, images):
    model, _ = any_model
    neotta.adapt(model, "neo").double()
    answer(model, images.double())
    neotta.restore(model)
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())


def test_adapt_twice_keeps_the_state_or_says_why_not(any_model, images):
    model, _ = any_model
    answer(neotta.adapt(model, "neo"), images)
    neotta.adapt(model, "neo")
    assert all(head.count == 6 for head in neotta.heads(model).values())
    with pytest.raises(AlreadyAdaptedError, match="restore"):
        neotta.adapt(model, "neo-continual")
    neotta.reset(model)
    assert all(head.count == 0 for head in neotta.heads(model).values())


def test_a_model_adapted_at_another_layer(images):
    model = neotta.adapt(Odd(), "neo", head="one")
    assert neotta.adapt(model, "neo", head="one") is model
    with pytest.raises(AlreadyAdaptedError, match="already adapted at one, not at two"):
        neotta.adapt(model, "neo", head="two")
    with pytest.raises(HeadNotFoundError, match="'three'"):
        neotta.adapt(model, "neo", head="three")


def test_adapted_in_inference_mode(any_model, images):
    model, _ = any_model
    has_norms = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    for method, options in [("neo", {}), *([("neo-bn", {"statistics": "ema"})] if has_norms else [])]:
        with torch.inference_mode():
            neotta.adapt(model, method, **options)
        answer(model, images)
        assert all(head.count == 6 for head in neotta.heads(model).values())
        neotta.restore(model)


def test_one_head_used_in_two_places(images):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Conv2d(3, 8, 32)
            self.fc = nn.Linear(8, 5)
            self.again = self.fc

        def forward(self, images):
            return self.again(self.encoder(images).flatten(1))

    model = neotta.adapt(Tied(), "neo")
    assert model.fc is model.again
    answer(model, images)
    assert neotta.head(model).count == 6
    assert neotta.restore(model).fc is model.again


def test_a_head_that_shares_its_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    neotta.adapt(model, "neo", head="1")
    assert neotta.head(model).weight is model[0].weight


def test_hooks_on_the_head_stay(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 4))
    seen = []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    neotta.adapt(model, "neo")
    seen.clear()
    answer(model, images)
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
        neotta.adapt(TwoOutputs(), "neo")
    model = neotta.adapt(TwoOutputs(), "neo", head=["animal", "colour"])
    model(images)
    assert {name: head.count for name, head in neotta.heads(model).items()} == {"animal": 6, "colour": 6}
    with pytest.raises(ModelError, match=r"neotta\.heads"):
        neotta.head(model)


def test_several_returned_heads_can_be_split_off_one_by_one(images):
    encoder, head = neotta.split(TwoOutputs(), head="colour")
    assert head(encoder(images)).shape == (6, 2)


class Small(nn.Module):
    """Linear layers by name and size, and any way to use them."""

    def __init__(self, use, **sizes):
        super().__init__()
        self.use = use
        for name, (features, classes) in sizes.items():
            setattr(self, name, nn.Linear(features, classes))

    def forward(self, images):
        return self.use(self, images.mean(dim=(2, 3)))


def test_heads_whose_outputs_are_joined(images):
    model = Small(lambda self, z: (self.a(z) + self.b(z)) / 2, a=(3, 4), b=(3, 4))
    with pytest.raises(AmbiguousHeadError, match=r"computes its logits from.*head=\['a', 'b'\]"):
        neotta.adapt(model, "neo")
    with pytest.raises(UnsupportedModelError, match=r"a, b"):
        neotta.split(model, head="a")
    assert list(neotta.heads(neotta.adapt(model, "neo", head=["a", "b"]))) == ["a", "b"]
    named = Small(lambda self, z: (self.head(z) + self.head_dist(z)) / 2, head=(3, 4), head_dist=(3, 4))
    assert list(find_heads(named)) == ["head", "head_dist"]
    aside = Small(lambda self, z: self.head(z), head=(3, 4), head_dist=(3, 4))
    assert list(find_heads(aside)) == ["head"]


@pytest.mark.parametrize("name", ["fc", "head", "classifier"])
@pytest.mark.parametrize("example", [None, torch.zeros(1, 3, 8, 8)])
def test_a_hidden_layer_with_the_name_of_a_head(name, example):
    model = Small(lambda self, z: self.out(getattr(self, name)(z).relu_()), **{name: (3, 16)}, out=(16, 4))
    assert list(find_heads(model, example=example)) == ["out"]


def test_an_answer_that_is_changed_afterwards():
    model = Small(lambda self, z: self.out(self.fc(z)).float().softmax(-1), fc=(3, 16), out=(16, 4))
    assert list(find_heads(model)) == ["out"]
    model.requires_grad_(False)
    assert list(find_heads(model)) == ["out"]
    with torch.inference_mode():
        assert list(find_heads(model)) == ["out"]


def test_a_gate_beside_a_convolution_is_not_the_head():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.gate, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Conv2d(3, 4, 1)

        def forward(self, images):
            gate = self.gate(self.fc(images.mean(dim=(2, 3)))).sigmoid()
            return self.last(images * gate[..., None, None]).mean(dim=(2, 3))

    model = Gated()
    assert list(find_heads(model)) == ["last"]
    assert list(find_heads(model, head="gate")) == ["gate"]


def test_a_run_to_find_the_head_leaves_no_trace(images):
    model = Small(lambda self, z: self.out(self.fc(z)), fc=(3, 16), out=(16, 4)).train()
    before = dict(model.named_modules()), [p.requires_grad for p in model.parameters()]
    find_heads(model)
    assert before == (dict(model.named_modules()), [p.requires_grad for p in model.parameters()])
    assert all(module.training and not module._forward_hooks for module in model.modules())


def two_headed():
    import timm
    from transformers import (
        LevitConfig,
        LevitForImageClassificationWithTeacher,
        SwiftFormerConfig,
        SwiftFormerForImageClassification,
    )

    levit = {"hidden_sizes": [16, 24, 32], "num_attention_heads": [1, 1, 2], "depths": [1, 1, 1], "key_dim": [8] * 3}
    levit["down_ops"] = [["Subsample", 8, 2, 2, 2, 2], ["Subsample", 8, 3, 2, 2, 2]]
    swift = {"depths": [1, 1, 1, 1], "embed_dims": [8, 8, 16, 16]}
    cross = {"depth": [[1, 1, 0]] * 3, "embed_dim": [8, 16], "num_heads": [2, 2]}
    yield timm.create_model("repvit_m0_9", num_classes=5), ["head.head.l", "head.head_dist.l"], 64
    yield timm.create_model("crossvit_tiny_240", num_classes=5, **cross), ["head.0", "head.1"], 240
    yield (
        LevitForImageClassificationWithTeacher(LevitConfig(num_labels=5, **levit)),
        ["classifier.linear", "classifier_distill.linear"],
        224,
    )
    yield SwiftFormerForImageClassification(SwiftFormerConfig(num_labels=5, **swift)), ["head", "dist_head"], 64


def test_models_with_two_heads_are_re_centered_at_both():
    for model, names, side in two_headed():
        model.eval()
        assert list(neotta.heads(neotta.adapt(model, "neo"))) == names
        answers = answer(model, torch.randn(4, 3, side, side))
        bias = sum(head.bias for head in neotta.heads(model).values()).detach() / 2
        torch.testing.assert_close(answers.mean(0), bias, rtol=1e-4, atol=1e-4)
        neotta.restore(model)
        with pytest.raises(UnsupportedModelError, match="2 heads"):
            neotta.split(model, head=names[0])


def test_an_auxiliary_head_is_not_passed_over():
    from timm.models.volo import VOLO

    sizes = {"layers": (1, 1, 1, 1), "embed_dims": (12,) * 4, "num_heads": (2,) * 4}
    model = VOLO(img_size=64, num_classes=5, **sizes)
    with pytest.raises(AmbiguousHeadError, match=r"may come from several.*example"):
        neotta.adapt(model, "neo")
    with pytest.raises(AmbiguousHeadError, match=r"head=\['head', 'aux_head'\]"):
        neotta.adapt(model, "neo", example=torch.zeros(1, 3, 64, 64))
    neotta.adapt(model.eval(), "neo", at="logits", example=torch.zeros(1, 3, 64, 64))
    answer(model, torch.randn(4, 3, 64, 64))
    assert neotta.head(model).count == 4


def test_a_linear_layer_of_timm_is_a_plain_one(images):
    import timm

    model = timm.create_model("mobilenetv3_small_050", num_classes=5).eval()
    kind = type(model.classifier)
    assert kind is not nn.Linear
    neotta.adapt(model, "neo")(images)
    assert neotta.head(model).count == 6
    assert type(neotta.restore(model).classifier) is kind


class Odd(nn.Module):
    """Takes images of one odd size only."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3 * 7 * 7, 8), nn.Linear(8, 4)

    def forward(self, images):
        return self.two(self.one(images.unfold(2, 7, 7).flatten(1)))


def test_an_example_finds_the_head():
    with pytest.raises(HeadNotFoundError, match=r"head='\.\.\.'.*'one', 'two'"):
        neotta.adapt(Odd(), "neo")
    model = Odd().train()
    assert list(neotta.heads(neotta.adapt(model, "neo", example=torch.zeros(1, 3, 7, 7)))) == ["two"]
    assert model.training
    with pytest.raises(HeadNotFoundError, match="could not be run on the example"):
        neotta.adapt(Odd(), "neo", example=torch.zeros(1, 3, 8, 8))


def refused(model, match, **options):
    before = dict(model.named_modules())
    with pytest.raises(HeadNotFoundError, match=match):
        neotta.adapt(model, "neo", **options)
    assert dict(model.named_modules()) == before


@pytest.mark.filterwarnings("ignore:.*quantize.*:UserWarning")
def test_heads_that_cannot_be_re_centered():
    from torch.ao.nn.quantized import dynamic
    from torch.nn.utils import prune

    refused(nn.Sequential(nn.Conv2d(3, 4, 1)), "tokens, pixels or objects")
    refused(nn.Sequential(nn.Conv2d(3, 4, 3)), "no linear layer")
    refused(nn.Linear(3, 4), "NEOHead")
    model = nn.Module()
    model.fc = dynamic.Linear(3, 4)
    refused(model, "fold before quantizing")
    model.fc = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    refused(model, "parametrized")
    model.fc = type("LoraLinear", (nn.Module,), {})()
    refused(model, "merge it first")
    model.fc = type("MyLinear", (nn.Linear,), {"forward": lambda self, x: x})(3, 4)
    refused(model, r"test_surgery\.MyLinear with a custom forward")
    model.fc = nn.LazyLinear(4)
    refused(model, "run the model once")
    model.fc = nn.utils.spectral_norm(nn.Linear(3, 4))
    refused(model, "spectral_norm")
    model.fc = prune.l1_unstructured(nn.Linear(3, 4), "weight", 2)
    refused(model, "pruning")
    model.fc = nn.Linear(3, 4)
    model.fc.forward = lambda x: x
    refused(model, "accelerate")
    model.classifier = nn.Sequential(nn.ReLU(), nn.Linear(3, 4))
    refused(model, "head='classifier.1'", head="classifier")
    refused(model, "no layer 'haed'", head="haed")


def test_a_head_inside_lora_is_refused_where_the_model_runs():
    class LoraLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.base_layer, self.lora_B = nn.Linear(3, 4), nn.Linear(3, 4, bias=False)

        def forward(self, z):
            return self.base_layer(z) + self.lora_B(z)

    model = Small(lambda self, z: self.last(z))
    model.last = LoraLinear()
    refused(model, "'last' of Small is wrapped by LoRA")


def test_a_model_without_classes(images):
    import timm

    refused(timm.create_model("resnet10t", num_classes=0), "num_classes=0")


def test_wrong_words():
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(UnknownMethodError, match="did you mean 'neo-continual'"):
        neotta.adapt(model, "neo-continuous")
    with pytest.raises(UnknownMethodError, match=r"as neotta.methods\(\) lists them: neotta.create\(name, model\)"):
        neotta.adapt(model, "tent")
    with pytest.raises(OptionError, match=r"option 'alpha' of method 'neo-continual' is 1\.5"):
        neotta.adapt(model, "neo-continual", alpha=1.5)
    with pytest.raises(OptionError, match="did you mean 'alpha'"):
        neotta.adapt(model, "neo-continual", alhpa=0.5)
    with pytest.raises(OptionError, match="it takes weighting, shrinkage"):
        neotta.adapt(model, "neo", momentum=0.5)
    with pytest.raises(UnknownMethodError, match=r"unknown method 'neo\+lame'.*neotta\.create\(name, model\)"):
        neotta.adapt(model, "neo+lame")
    with pytest.raises(NotAdaptedError, match=r"neotta\.adapt"):
        neotta.head(model)
    with pytest.raises(NotAdaptedError):
        neotta.restore(model)


def test_what_is_no_model(tmp_path):
    loaded = neotta.load_model("digits")
    for use in (neotta.adapt, neotta.heads, neotta.head, neotta.reset, neotta.fold, neotta.restore):
        with pytest.raises(ModelError, match=r"got LoadedModel: pass its \.model"):
            use(loaded)
        with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module, got str"):
            use("digits")
    for use in (neotta.save, neotta.load):
        with pytest.raises(ModelError, match="got NoneType"):
            use(None, tmp_path / "s")


@pytest.mark.filterwarnings("ignore:neo-bn normalises with the statistics of")
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
        ("neo-bn", {"statistics": "batch"}),
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
    neotta.adapt(model, "neo-bn", statistics="batch")
    with pytest.raises(UnsupportedModelError, match="statistics='ema'"):
        neotta.fold(model)


def test_one_value_per_channel_falls_back_to_the_stored_statistics():
    from neotta.neo.norms import adaptive_norm

    layer = nn.BatchNorm2d(3).eval()
    layer.running_mean += 1
    stand_in = adaptive_norm(layer)
    one = torch.randn(1, 3, 1, 1)
    with pytest.warns(RuntimeWarning, match="stored ones"):
        assert torch.equal(stand_in(one), layer(one))
    more = torch.randn(1, 3, 2, 2)
    torch.testing.assert_close(stand_in(more).mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    ).eval()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:neo-bn normalises with the statistics of")
@pytest.mark.parametrize("statistics", ["batch", "ema"])
def test_neo_bn_is_compiled_and_pickled(images, statistics):
    torch._dynamo.reset()
    model = neotta.adapt(conv_net(), "neo-bn", statistics=statistics)
    twin = neotta.adapt(conv_net(), "neo-bn", statistics=statistics)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (6, 4, 5):
        torch.testing.assert_close(answer(compiled, images[:size]), answer(twin, images[:size]), rtol=1e-4, atol=1e-5)
    copied = pickle.loads(pickle.dumps(twin))
    assert type(copied[1]) is type(twin[1])
    assert torch.equal(answer(copied, images), answer(twin, images))
    assert torch.equal(answer(neotta.restore(copied), images), answer(conv_net(), images))


def test_moving_statistics_depend_on_the_images_not_on_how_they_are_batched():
    from neotta.neo.norms import adaptive_norm

    layer = nn.BatchNorm2d(2).eval()
    still = torch.randn(64, 2, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
    all_at_once, one_by_one = adaptive_norm(layer, "ema", 0.5), adaptive_norm(layer, "ema", 0.5)
    for _ in range(6):
        all_at_once(still)
        for image in still:
            one_by_one(image[None])
    wanted = {"ema_running_mean": still.mean((0, 2, 3)), "ema_running_var": still.var((0, 2, 3), unbiased=False)}
    for name, value in wanted.items():
        torch.testing.assert_close(all_at_once.moving()[name], value, rtol=1e-4, atol=1e-4)
        # An average over 23 images in place of 64 of them; the variance between images is not lost.
        torch.testing.assert_close(one_by_one.moving()[name], value, rtol=0.15, atol=0.15)
    assert torch.equal(layer.running_mean, torch.zeros(2))


def test_small_batches_warn_once_if_their_own_statistics_are_used(images):
    model = neotta.adapt(conv_net(), "neo-bn", statistics="batch")
    with pytest.warns(RuntimeWarning, match="statistics of 6 images: below 16 this costs accuracy.*statistics='ema'"):
        answer(model, images)
    answer(model, images)
    answer(neotta.adapt(conv_net(), "neo-bn"), images[:1])


def test_the_paper_preset_keeps_the_statistics_of_the_batch():
    assert neotta.create("neo-bn", conv_net(), preset="paper").options.statistics == "batch"
    assert neotta.create("neo-bn", conv_net()).options.statistics == "ema"


def test_moving_statistics_do_not_move_to_nan(images):
    model = neotta.adapt(conv_net(), "neo-bn", statistics="ema")
    with pytest.warns(RuntimeWarning, match="6 rows contain NaN"):
        answer(model, images * float("nan"))
    assert all(tensor.isfinite().all() for tensor in model[1].moving().values())
