from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.adapters.declaration import Declaration
from neotta.adapters.neo import NEO
from neotta.adapters.registry import find
from neotta.adapters.stack import stack
from neotta.errors import InputError, NotAdaptedError, OptionError, StateMismatchError, UnknownMethodError
from neotta.options import Options

CLASSES = 5
PAIRS = [(first, last) for first in ("neo", "neo-continual", "neo-bn") for last in ("lame", "t3a")]
pairs = pytest.mark.parametrize(("first", "last"), PAIRS)


class Net(nn.Module):
    """A convolution with BatchNorm, pooled to embeddings of 6."""

    def __init__(self, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(3, 6, 3)
            self.bn = nn.BatchNorm2d(6)
            self.head = nn.Linear(6, CLASSES)
        self.double().eval()

    def forward(self, images):
        return self.head(self.bn(self.conv(images)).relu().mean(dim=(2, 3)))


def images(size, seed=0):
    return torch.randn(size, 3, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1


@settings(deadline=None, max_examples=30)
@given(
    pair=st.sampled_from(PAIRS),
    kept=st.sampled_from([None, [0, 2, 4]]),
    stream=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=5),
)
def test_the_second_reads_what_the_first_recentered(pair, kept, stream):
    model = Net()
    adapter = neotta.create(list(pair), model, classes=kept)
    first, last = (neotta.create(name, model, classes=kept) for name in pair)
    for number, (size, adapt) in enumerate(stream):
        x = images(size, number)
        with torch.no_grad():
            wanted = last.predict_embeddings(first.recentered(first.embed(x, adapt), adapt), adapt)
        assert torch.equal(adapter(x, adapt=adapt), wanted)


def test_by_hand():
    model, x = Net(), images(8)
    with torch.no_grad():
        embeddings = neotta.split(model).encoder(x)
        centered = embeddings - embeddings.mean(0)
        plain = model.head(centered).log_softmax(dim=1)
    adapter = neotta.create("neo+lame", model, lambda_=0.0)
    torch.testing.assert_close(adapter(x), plain, rtol=0, atol=1e-7)


def test_a_name_does_as_well_as_a_list():
    model = Net()
    assert type(neotta.create("neo+lame", model)) is type(neotta.create(["neo", "lame"], model))
    assert find("neo+lame").name == neotta.create(("neo", "lame"), model).name == "neo+lame"
    assert type(neotta.create(["neo"], model)) is NEO


@pairs
def test_embeddings_do_where_the_first_needs_no_images(first, last):
    model, x = Net(), images(8)
    by_image, by_embedding = (neotta.create([first, last], model) for _ in range(2))
    assert by_image.declaration.needs == neotta.methods()[first].declaration.needs
    if first == "neo-bn":
        assert not hasattr(by_embedding, "predict_embeddings")
        return
    with torch.no_grad():
        embeddings = neotta.split(model).encoder(x)
    assert torch.equal(by_image(x), by_embedding.predict_embeddings(embeddings))
    assert by_embedding.predict_embeddings(embeddings[:0]).shape == (0, CLASSES)
    with pytest.raises(InputError, match="batch, 6"):
        by_embedding.predict_embeddings(embeddings[:, 1:])


@pairs
def test_reset_and_predicting_leave_no_trace(first, last):
    model = Net()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapter = neotta.create([first, last], model)
    start = adapter.state_dict()
    answer = adapter(images(6))
    state = adapter.state_dict()
    adapter(images(6, seed=1), adapt=False)
    assert all(torch.equal(state[name], tensor) for name, tensor in adapter.state_dict().items())
    adapter.reset()
    assert all(torch.equal(start[name], tensor) for name, tensor in adapter.state_dict().items())
    assert torch.equal(adapter(images(6)), answer)
    assert adapter.detach() is model
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


@pairs
def test_a_state_continues_bit_for_bit(first, last, tmp_path):
    one, other = (neotta.create([first, last], Net()) for _ in range(2))
    other(images(3, 99))
    for number in range(4):
        one(images(7, number))
    one.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    for number in range(4, 7):
        assert torch.equal(one(images(7, number)), other(images(7, number)))


def test_a_state_of_another_stack_is_refused(tmp_path):
    adapter = neotta.create("neo+t3a", Net())
    neotta.create("neo+lame", Net()).save(tmp_path / "state.safetensors")
    with pytest.raises(StateMismatchError, match=r"neo\+lame"):
        adapter.load(tmp_path / "state.safetensors")
    adapter(images(4))
    before = adapter.state_dict()
    damaged = {name: tensor * 0 for name, tensor in before.items()}
    with pytest.raises(StateMismatchError, match="damaged"):
        adapter.load_state_dict({**damaged, "last/counts": before["last/counts"] + 1})
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_options_of_both_by_their_own_names():
    adapter = neotta.create("neo-continual+t3a", Net(), alpha=0.5, filter_k=3, preset="original")
    assert (adapter.first.options.alpha, adapter.last.options.filter_k) == (0.5, 3)
    assert adapter.last.options.filter_classes == "all"
    with pytest.raises(OptionError, match=r"'neo\+t3a' has no option 'filter_l': did you mean 'filter_k'"):
        neotta.create("neo+t3a", Net(), filter_l=3)
    with pytest.raises(OptionError, match="alpha"):
        neotta.create("neo-continual+lame", Net(), alpha=2.0)


def test_declarations_are_joined():
    declaration = find("neo+lame").declaration
    assert declaration == Declaration(needs="embeddings", hyperparameter_free=True)
    assert find("neo-continual+t3a").declaration.hyperparameter_free is False
    assert find("neo-bn+t3a").title == "NEO-BN + T3A"


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["lame", "neo"],
        ["neo", "neo"],
        ["neo", "neo-stream"],
        ["neo-stream", "lame"],
        ["neo", "none"],
        ["neo", "tent"],
        ["neo-mse", "t3a"],
        ["neo", "lame", "t3a"],
    ],
)
def test_meaningless_stacks_are_refused(names):
    with pytest.raises(OptionError, match="a stack is one of neo, neo-continual, neo-bn, followed by one of lame"):
        neotta.create(names, Net())


def test_unknown_members_are_named():
    with pytest.raises(UnknownMethodError, match="did you mean 'lame'"):
        neotta.create("neo+lam", Net())


def test_options_of_one_name_are_refused():
    class Weighted(Options):
        weighting: str = "sample"

    class Other(neotta.methods()["lame"]):
        name = "other"
        Options = Weighted

    with pytest.raises(OptionError, match="both have an option 'weighting'"):
        stack((NEO, Other))


def test_bad_rows_are_counted_once():
    adapter = neotta.create("neo+t3a", Net())
    x = images(4)
    x[1, 0, 0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        output = adapter(x)
    assert output.shape == (4, CLASSES)
    assert adapter.skipped == 1
    assert adapter.first.neo.count == 3
    adapter.reset()
    assert adapter.skipped == 0


@pairs
def test_an_empty_batch(first, last):
    assert neotta.create([first, last], Net())(images(0)).shape == (0, CLASSES)


def test_the_heads_of_an_adapter_are_found_also_in_a_stack():
    for method in ("neo", "neo-stream", "neo-bn", "neo+lame", "rdumb+neo"):
        adapter = neotta.create(method, Net())
        adapter(images(6))
        assert neotta.heads(adapter)["head"] is neotta.head(adapter)
        assert neotta.head(adapter).count == neotta.health(adapter).samples == 6
    with pytest.raises(NotAdaptedError):
        neotta.heads(neotta.create("t3a", Net()))
