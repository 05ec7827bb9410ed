"""Surgeon: exact where nothing is pruned, small where it is, and what is trained."""

from __future__ import annotations

import math

import pytest
import torch
from golden_replay.replay import golden
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reoptioned import with_options
from torch import nn

import neotta
from neotta.adapters.surgeon import prunable_layers, prune, pruned_layer, unpruned
from neotta.errors import OptionError

QUIRKS = ("positional_alignment", "stale_gradients")


def network(name="vit", dtype=torch.float32):
    return golden().models.load_model(golden().index, golden().folder, name, dtype)


def images(start=0, count=16, dtype=torch.float32):
    return golden().data["images"][start : start + count].to(dtype)


def surgeon(model=None, **options):
    return neotta.create("surgeon", network() if model is None else model, **options)


def ratios(adapter):
    return torch.tensor([layer.ratio for _, layer in adapter.layers])


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- the layer


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 200), ratio=st.floats(0, 1), zeros=st.booleans(), seed=st.integers(0, 99))
def test_prune_keeps_the_largest(size, ratio, zeros, seed):
    values = random(size, seed=seed, dtype=torch.float32)
    if zeros:
        values = values.relu()
    kept, indices = prune(values, ratio)
    count = math.floor(size * (1 - ratio))
    wanted = torch.zeros(size)
    top = values.abs().topk(count).indices
    wanted[top] = values[top]
    assert torch.equal(unpruned(kept, indices, values.shape), wanted)
    assert kept.nbytes + indices.nbytes <= values.nbytes
    assert kept.nbytes + indices.nbytes <= 8 * count


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 5, 6)])
@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.9, 1.0])
def test_gradients_of_the_layer(shape, ratio, bias):
    layer = nn.Linear(6, 4, bias=bias).double()
    stand_in = pruned_layer(layer)
    stand_in.ratio = ratio
    input = random(*shape).requires_grad_()
    pruned = unpruned(*prune(input.detach(), ratio), input.shape)
    output, wanted = stand_in(input), layer(input)
    assert torch.equal(output, wanted)
    grad = random(*output.shape, seed=1)
    by_input, by_weight = torch.autograd.grad(output, [input, stand_in.weight], grad)
    torch.testing.assert_close(by_input, torch.autograd.grad(wanted, input, grad)[0])
    torch.testing.assert_close(by_weight, torch.einsum("no,ni->oi", grad.reshape(-1, 4), pruned.reshape(-1, 6)))
    assert stand_in.weight is layer.weight


def saved_bytes(adapter, ratio):
    """How much memory the graph of a forward pass holds, beside the parameters."""
    for _, layer in adapter.layers:
        layer.ratio = ratio
    storages = {}

    def remember(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        logits = adapter._pruned(images())
    own = {tensor.untyped_storage().data_ptr() for tensor in [*adapter.params.values(), *adapter.model.parameters()]}
    del logits
    return sum(size for pointer, size in storages.items() if pointer not in own)


def test_pruned_activations_take_less_memory():
    adapter = surgeon()
    elements = []
    for _, layer in adapter.layers:
        layer.register_forward_hook(lambda module, args, output: elements.append(args[0].numel()))
    full = saved_bytes(adapter, 0.0)
    inputs = 4 * sum(elements)
    assert full - saved_bytes(adapter, 1.0) > 0.9 * inputs, "nothing of the inputs is left"
    tenth = full - saved_bytes(adapter, 0.9)
    assert tenth > 0.65 * inputs, "a tenth of the numbers, and their indices"


# ---- the method


def test_without_pruning_gradients_are_exact():
    adapter = surgeon(network(dtype=torch.float64))
    batch, view = images(dtype=torch.float64), images(dtype=torch.float64).flip(3)
    for _, layer in adapter.layers:
        layer.ratio = 0.0
    with torch.enable_grad():
        pruned = adapter.gradients(adapter._loss(adapter._pruned(batch), adapter._pruned(view)))
        plain = adapter.gradients(adapter._loss(adapter.forward(batch), adapter.forward(view)))
    for name, one, other in zip(adapter.params, pruned, plain, strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_layers_keep_in_proportion_to_their_importance():
    adapter = surgeon()
    adapter(images())
    assert ratios(adapter).min() == 0, "the most important one keeps all"
    assert ((ratios(adapter) > 0) & (ratios(adapter) < 1)).sum() == len(adapter.layers) - 1


@pytest.mark.parametrize("name", ["vit", "hf"])
def test_what_is_trained(name):
    model = network(name)
    adapter = surgeon(model, lr=1e-3)
    linear = {id(module.bias) for module in model.modules() if isinstance(module, nn.Linear)}
    frozen = {name for name, parameter in model.named_parameters() if id(parameter) in linear or name.endswith("token")}
    assert frozen
    assert not frozen & set(adapter.params)
    adapter(images())
    moved = {key for key, tensor in adapter.params.items() if not torch.equal(tensor, model.get_parameter(key))}
    assert moved == set(adapter.params), "every layer learns"


def test_forward_passes_are_as_declared():
    adapter = surgeon()
    calls = []
    adapter.layers[-1][1].register_forward_hook(lambda *_: calls.append(1))
    adapter(images())
    assert len(calls) == adapter.forward_passes == neotta.methods()["surgeon"].declaration.forward_passes == 3


def test_one_layer_cannot_be_ranked():
    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    adapter = surgeon(model.eval(), lr=1e-3)
    adapter(images())
    assert ratios(adapter).tolist() == [0.0], "so nothing is pruned"
    assert not torch.equal(adapter.params["0.weight"], model[0].weight)
    assert not torch.equal(adapter.params["4.weight"], model[4].weight)


class Attention(nn.Module):
    """Attention of torch, which uses the weight of its output layer without calling the layer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.hidden = nn.Linear(8, 8)
        self.fc = nn.Linear(8, 10)

    def forward(self, batch):
        tokens = self.patches(batch).flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.fc(self.hidden(tokens).relu().mean(dim=1))


def test_a_layer_that_is_never_called():
    torch.manual_seed(0)
    model = Attention()
    adapter = surgeon(model, lr=1e-3)
    assert torch.isfinite(adapter(images())).all()
    name = "attention.out_proj.weight"
    assert not torch.equal(adapter.params[name], model.get_parameter(name)), "it learns, unpruned"


def test_without_reliable_samples_only_consistency_acts():
    adapter = surgeon(margin=0.0, consistency=0.0, lr=1e-3)
    adapter(images())
    assert all(torch.equal(tensor, adapter.model.get_parameter(key)) for key, tensor in adapter.params.items())
    adapter = with_options(adapter, consistency=0.01)
    adapter(images())
    assert all(torch.isfinite(tensor).all() for tensor in adapter.params.values())
    assert any(not torch.equal(tensor, adapter.model.get_parameter(key)) for key, tensor in adapter.params.items())


@pytest.mark.parametrize("compat", [(), QUIRKS])
def test_a_saved_state_goes_on_exactly(tmp_path, compat):
    first = surgeon(lr=1e-3, compat=compat)
    for start in (0, 16):
        first(images(start))
    first.save(tmp_path / "state.safetensors")
    second = surgeon(lr=1e-3, compat=compat)
    second.load(tmp_path / "state.safetensors")
    for start, count in ((32, 16), (48, 5)):
        assert torch.equal(first(images(start, count)), second(images(start, count)))
    for key, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[key]), key


@pytest.mark.parametrize("compat", [(), QUIRKS])
def test_reset_and_predicting(compat):
    model = network()
    untouched = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = surgeon(model, lr=1e-3, compat=compat)
    fresh = adapter.state_dict()
    answers = [adapter(images(start)) for start in (0, 16)]
    before = adapter.state_dict()
    adapter(images(32), adapt=False)
    assert all(torch.equal(tensor, before[key]) for key, tensor in adapter.state_dict().items())
    adapter.reset()
    assert all(torch.equal(tensor, fresh[key]) for key, tensor in adapter.state_dict().items())
    for start, answer in zip((0, 16), answers, strict=True):
        assert torch.equal(adapter(images(start)), answer)
    for name, tensor in adapter.detach().state_dict().items():
        assert torch.equal(tensor, untouched[name]), "the model is as it was"


@pytest.mark.parametrize("compat", [(), QUIRKS])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_batch_leaves_no_trace(bad, compat):
    adapter = surgeon(lr=1e-3, compat=compat)
    adapter(images())
    before = adapter.state_dict()
    broken = images(16).clone()
    broken[2, 0, 0, 0] = bad
    with pytest.warns(RuntimeWarning, match="not adapted to"):
        answer = adapter(broken)
    assert torch.isfinite(answer[3:]).all()
    assert adapter.skipped == 16
    for key, tensor in adapter.state_dict().items():
        assert torch.equal(tensor, before[key]), key


def test_a_loss_that_is_no_number_never_reaches_the_weights():
    adapter = surgeon(lr=1e-3, augmentation=lambda batch: batch * float("nan"))
    before = adapter.state_dict()
    with pytest.warns(RuntimeWarning, match="gradient holds NaN"):
        assert torch.isfinite(adapter(images())).all()
    assert all(torch.equal(tensor, before[key]) for key, tensor in adapter.state_dict().items())


def test_autocast():
    adapter = surgeon(lr=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        adapter(images())
    assert all(torch.isfinite(tensor).all() for tensor in adapter.params.values())
    assert any(not torch.equal(tensor, adapter.model.get_parameter(key)) for key, tensor in adapter.params.items())


def test_what_is_refused():
    with pytest.raises(OptionError, match="compat"):
        surgeon(compat=("everything",))


# ---- convolutions


@pytest.mark.parametrize("shape", [{}, {"stride": 2, "padding": 1}, {"groups": 2, "dilation": 2, "padding": 2}])
@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.6, 1.0])
def test_a_pruned_convolution_is_exact_but_for_its_weight(shape, ratio):
    layer = nn.Conv2d(4, 6, 3, **shape).double()
    stand_in = pruned_layer(layer)
    stand_in.ratio = ratio
    input = random(3, 4, 7, 8).requires_grad_()
    output = layer(input)
    torch.testing.assert_close(stand_in(input), output)
    slope = random(*output.shape, seed=1)
    by_input, by_weight, by_bias = torch.autograd.grad(
        stand_in(input), (input, layer.weight, layer.bias), slope, allow_unused=True
    )
    torch.testing.assert_close(by_input, torch.autograd.grad(output, input, slope)[0])
    assert by_bias is None
    seen = unpruned(*prune(input.detach(), ratio), input.shape)
    wanted = torch.autograd.grad(layer(seen), layer.weight, slope)[0]
    torch.testing.assert_close(by_weight, wanted)


def test_a_cnn_prunes_its_convolutions_by_importance():
    adapter = surgeon(network("cnn"))
    convolutions = [name for name, layer in adapter.model.named_modules() if isinstance(layer, nn.Conv2d)]
    assert [name for name, _ in adapter.layers] == [f"{name}.weight" for name in [*convolutions, adapter.head_name]]
    adapter(images())
    kept = 1 - ratios(adapter)
    assert kept.max() == 1
    assert ((kept > 0) & (kept < 1)).sum() == len(kept) - 1
    moved = [
        name for name, tensor in adapter.params.items() if not torch.equal(tensor, adapter.model.get_parameter(name))
    ]
    assert set(moved) >= {f"{name}.weight" for name in convolutions}


def test_a_patch_embedding_is_not_pruned():
    adapter = surgeon()
    assert {type(layer).__name__ for _, layer in adapter.layers} == {"PrunedLinear"}
    assert "patch_embed.proj.bias" in adapter.params


def test_convolutions_that_pad_otherwise_are_left_alone():
    strange = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")
    model = nn.Sequential(
        strange, nn.Conv2d(3, 3, 3, padding="same"), nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(3, 2)
    )
    assert prunable_layers(model) == [model[2], model[4]]
