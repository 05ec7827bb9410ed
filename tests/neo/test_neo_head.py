from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import neotta
from neotta.errors import InputError, OptionError


@pytest.fixture
def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 4)


def batch(rows: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed)) + 2).to(dtype)


def test_it_centres_with_the_batch_included(linear):
    head = neotta.NEOHead.from_linear(linear)
    one, two = batch(5), batch(3, seed=2)
    torch.testing.assert_close(head(one), F.linear(one - one.mean(0), linear.weight, linear.bias))
    centre = torch.cat([one, two]).mean(0)
    torch.testing.assert_close(head(two), F.linear(two - centre, linear.weight, linear.bias))
    assert head.count == 8


def test_the_first_sample_alone_gives_the_bias(linear):
    head = neotta.NEOHead.from_linear(linear)
    torch.testing.assert_close(head(batch(1))[0], linear.bias)
    shrunk = neotta.NEOHead.from_linear(linear, shrinkage="james-stein")
    torch.testing.assert_close(shrunk(batch(1)), linear(batch(1)))


def test_frozen_it_does_not_change(linear):
    head = neotta.NEOHead.from_linear(linear)
    head.freeze()
    assert torch.equal(head(batch(4)), linear(batch(4)))
    head.unfreeze()
    head(batch(4))
    head.freeze()
    before = head.centroid.state()
    head(batch(4, seed=9))
    assert all(torch.equal(before[name], buffer) for name, buffer in head.centroid.named_buffers())
    head.reset()
    assert torch.equal(head(batch(4)), linear(batch(4)))


def test_the_mse_variant_answers_with_one_over_c(linear):
    head = neotta.NEOHead.from_linear(linear, uniform_bias=True)
    torch.testing.assert_close(head(batch(1))[0], torch.full((4,), 0.25))


@pytest.mark.parametrize(
    "options",
    [{}, {"alpha": 0.3, "debias": True}, {"uniform_bias": True}, {"shrinkage": "james-stein"}, {"weighting": "batch"}],
)
@pytest.mark.parametrize("bias", [True, False])
def test_folding_gives_the_same_answers(options, bias):
    torch.manual_seed(0)
    head = neotta.NEOHead(6, 4, bias=bias, **options)
    head(batch(7))
    head.freeze()
    plain = head.folded()
    assert type(plain) is nn.Linear
    torch.testing.assert_close(plain(batch(5, seed=3)), head(batch(5, seed=3)), rtol=1e-5, atol=1e-5)
    assert plain.weight is head.weight


def test_old_checkpoints_load_strictly_and_new_ones_hold_no_state(linear):
    head = neotta.NEOHead(6, 4)
    head.load_state_dict(linear.state_dict(), strict=True)
    head(batch(3))
    assert set(head.state_dict()) == {"weight", "bias"}
    buffer = io.BytesIO()
    torch.save(head.state_dict(), buffer)
    buffer.seek(0)
    nn.Linear(6, 4).load_state_dict(torch.load(buffer, weights_only=True), strict=True)


def test_leading_dimensions_are_samples(linear):
    head, flat = neotta.NEOHead.from_linear(linear), neotta.NEOHead.from_linear(linear)
    tokens = batch(12).reshape(3, 4, 6)
    torch.testing.assert_close(head(tokens).reshape(12, 4), flat(tokens.reshape(12, 6)))
    assert head.count == 12
    assert head(batch(1)[0]).shape == (4,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(linear, dtype):
    head = neotta.NEOHead.from_linear(linear).to(dtype)
    data = batch(64, dtype=dtype)
    output = head(data)
    assert output.dtype == dtype
    assert head.centroid.mean.dtype == torch.float64
    exact = F.linear(data.double() - data.double().mean(0), head.weight.double(), head.bias.double())
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=5e-2 if dtype != torch.float64 else 1e-12)


def test_autocast(linear):
    head = neotta.NEOHead.from_linear(linear)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = head(batch(16))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(head.centroid.mean.float(), batch(16).mean(0))


def test_inference_mode_and_back(linear):
    head = neotta.NEOHead.from_linear(linear)
    with torch.inference_mode():
        head(batch(4))
    head(batch(4))
    with torch.no_grad():
        head(batch(4))
    assert head.count == 12


def test_gradients_flow_to_the_input_but_not_through_the_mean(linear):
    head = neotta.NEOHead.from_linear(linear)
    data = batch(4).requires_grad_()
    head(data).sum().backward()
    torch.testing.assert_close(data.grad, linear.weight.sum(0).expand(4, 6).detach())
    assert not head.centroid.mean.requires_grad


def test_deepcopy_is_independent(linear):
    head = neotta.NEOHead.from_linear(linear)
    head(batch(4))
    twin = copy.deepcopy(head)
    twin(batch(4))
    assert (head.count, twin.count) == (4, 8)
    assert twin.weight is not head.weight


@pytest.mark.parametrize("bad", [torch.zeros(3, 5), torch.zeros(3, 6, dtype=torch.int64), torch.tensor(1.0)])
def test_wrong_inputs_are_named(linear, bad):
    head = neotta.NEOHead.from_linear(linear)
    with pytest.raises(InputError, match=r"6 numbers|floating point"):
        head(bad)
    assert head.count == 0


@pytest.mark.parametrize(("mine", "given"), [(torch.float32, torch.float64), (torch.float64, torch.float16)])
def test_another_dtype_is_refused_before_it_counts(linear, mine, given):
    head = neotta.NEOHead.from_linear(linear).to(mine)
    with pytest.raises(InputError, match=f"{mine}, got embeddings of {given}"):
        head(batch(4, dtype=given))
    assert head.count == 0


def test_the_warning_points_at_the_caller_of_the_model(linear):
    with pytest.warns(RuntimeWarning, match="1 of 1") as caught:
        nn.Sequential(nn.Identity(), neotta.NEOHead.from_linear(linear))(torch.full((1, 6), float("nan")))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("shrinkage", [None, "james-stein"])
def test_folded_in_inference_mode_it_can_be_trained(linear, shrinkage):
    with torch.inference_mode():
        head = neotta.NEOHead.from_linear(linear, shrinkage=shrinkage)
        head(batch(4))
        plain = head.folded()
    before = plain.bias.detach().clone()
    plain(batch(4)).sum().backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert not torch.equal(plain.bias, before)


def test_hooks_stay_when_folding(linear):
    seen = []
    linear.register_forward_hook(lambda module, args, output: seen.append("forward"))
    linear.register_full_backward_hook(lambda module, before, after: seen.append("backward"))
    plain = neotta.NEOHead.from_linear(linear).folded()
    plain(batch(2).requires_grad_()).sum().backward()
    assert seen == ["forward", "backward"]


def test_an_empty_batch_changes_nothing(linear):
    head = neotta.NEOHead.from_linear(linear)
    assert head(torch.zeros(0, 6)).shape == (0, 4)
    assert head.count == 0


def test_bad_rows_are_answered_but_kept_out(linear):
    head = neotta.NEOHead.from_linear(linear)
    data = batch(4)
    data[1, 0] = float("nan")
    with pytest.warns(RuntimeWarning, match="1 of 4"):
        output = head(data)
    assert output[1].isnan().all()
    assert output[[0, 2, 3]].isfinite().all()
    assert head.count == 3


def test_wrong_options():
    with pytest.raises(OptionError, match="alpha"):
        neotta.NEOHead(3, 2, alpha=2.0)
    with pytest.raises(OptionError, match="shrinkage"):
        neotta.NEOHead(3, 2, shrinkage="stein")
    with pytest.raises(OptionError, match="shrinkage"):
        neotta.NEOHead(3, 2, alpha=0.1, shrinkage="james-stein")
    with pytest.raises(OptionError, match="no option 'alfa': it takes weighting, alpha"):
        neotta.NEOHead.from_linear(nn.Linear(3, 2), alfa=0.1)


class Counter:
    """A compiler backend that counts how often a graph is compiled."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, graph, inputs):
        self.compiled += 1
        return graph.forward


@pytest.mark.parametrize("options", [{}, {"alpha": 0.1}, {"shrinkage": "james-stein"}])
def test_compiled_it_is_one_graph_for_every_call_and_batch_size(linear, options):
    torch._dynamo.reset()
    counter = Counter()
    head, eager = neotta.NEOHead.from_linear(linear, **options), neotta.NEOHead.from_linear(linear, **options)
    compiled = torch.compile(head, backend=counter, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for seed, rows in enumerate((5, 8, 3, 64, 5, 17)):
            torch.testing.assert_close(compiled(batch(rows, seed)), eager(batch(rows, seed)), rtol=1e-5, atol=1e-5)
    assert counter.compiled == 1
    assert head.count == eager.count


@pytest.mark.parametrize(
    "options",
    [{}, {"alpha": 0.1}, {"alpha": 0.1, "debias": True}, {"weighting": "batch"}, {"shrinkage": "james-stein"}],
)
def test_a_real_compiler_keeps_the_same_state(linear, options):
    torch._dynamo.reset()
    head, eager = neotta.NEOHead.from_linear(linear, **options), neotta.NEOHead.from_linear(linear, **options)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for seed, rows in enumerate((5, 8, 1, 3)):
            torch.testing.assert_close(compiled(batch(rows, seed)), eager(batch(rows, seed)), rtol=1e-5, atol=1e-5)
    kept, wanted = head.centroid.state(), eager.centroid.state()
    for name in wanted:
        torch.testing.assert_close(kept[name], wanted[name], rtol=1e-6, atol=1e-6, msg=name)


def test_compiled_it_keeps_bad_rows_out(linear):
    torch._dynamo.reset()
    head = neotta.NEOHead.from_linear(linear)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    data = batch(4)
    data[2] = float("inf")
    with torch.no_grad():
        compiled(data)
    assert head.count == 3
    assert int(head.centroid.rejected) == 1
    torch.testing.assert_close(head.centroid.mean.float(), data[[0, 1, 3]].mean(0))
