from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reoptioned import with_options
from torch import nn
from torch.nn import functional as F

import neotta
from neotta.adapters.t3a import best
from neotta.errors import OptionError, StateMismatchError

FEATURES = 12
CLASSES = 5


class Flat(nn.Module):
    """Its embeddings are the pixels of (B, 3, 2, 2)."""

    def __init__(self, seed=0, classes=CLASSES, dtype=torch.float64):
        super().__init__()
        self.head = nn.Linear(FEATURES, classes, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, images):
        return self.head(images.flatten(1))


def images(size, seed=0, dtype=torch.float64):
    """Images of which some are more certain than the rows of the head, and so take their places."""
    noise = torch.randn(size, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (3 * noise).to(dtype)


def overfull():
    """A model whose four rows all belong to class 0, and images of class 0 and of class 1."""
    model = Flat(classes=4)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(4, FEATURES))
        model.head.bias.copy_(torch.tensor([10.0, 0.0, 0.0, 0.0]))
    zero, one = torch.zeros(2, FEATURES, dtype=torch.float64)
    zero[0], one[1] = 5.0, 30.0
    return model, zero.reshape(1, 3, 2, 2), one.reshape(1, 3, 2, 2)


class Plain:
    """The definition, one support after the other."""

    def __init__(self, model, k, kept, rows):
        self.weight, self.bias, self.k, self.kept = model.head.weight.detach(), model.head.bias.detach(), k, kept
        self.supports = [self.judged(row) for row in self.weight[rows]]

    def judged(self, z):
        p = (self.weight @ z + self.bias)[self.kept].softmax(0)
        return int(p.argmax()), float(-(p * p.log()).sum()), z

    def __call__(self, x, adapt):
        batch = [self.judged(z) for z in x.flatten(1)]
        supports = self.supports + (batch if adapt else [])
        if self.k != -1:
            for label in {one[0] for one in batch}:
                mine = sorted((one for one in supports if one[0] == label), key=lambda one: one[1])[: self.k]
                supports = [one for one in supports if one[0] != label] + mine
        if adapt:
            self.supports = supports
        columns = torch.zeros(FEATURES, len(self.kept), dtype=x.dtype)
        for label, _, z in supports:
            columns[:, label] += F.normalize(z, dim=0)
        return x.flatten(1) @ F.normalize(columns, dim=0)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    k=st.sampled_from([-1, 1, 2, 5]),
    kept=st.sampled_from([None, [0, 3], [1, 2, 4]]),
    rows=st.sampled_from(["all", "kept"]),
    stream=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6),
)
def test_it_is_the_definition(seed, k, kept, rows, stream):
    model = Flat(seed)
    adapter = neotta.create("t3a", model, filter_k=k, warmup_rows=rows, classes=kept)
    indices = list(range(CLASSES)) if kept is None else kept
    plain = Plain(model, k, indices, indices if rows == "kept" else list(range(CLASSES)))
    for number, (size, adapt) in enumerate(stream):
        x = images(size, seed + number)
        torch.testing.assert_close(adapter(x, adapt=adapt), plain(x, adapt), rtol=0, atol=1e-12)
        assert int(adapter.counts.sum()) == len(plain.supports)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), order=st.permutations(range(8)))
def test_the_order_of_supports_does_not_matter(seed, order):
    one, other = (neotta.create("t3a", Flat(seed), filter_k=2) for _ in range(2))
    x = images(8, seed)
    torch.testing.assert_close(one(x)[list(order)], other(x[list(order)]), rtol=0, atol=1e-12)
    torch.testing.assert_close(one.sums, other.sums, rtol=0, atol=1e-12)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.1, 0.2, 0.3])), max_size=20),
    count=st.integers(1, 4),
)
def test_best_keeps_the_lowest_of_each_class(pairs, count):
    labels = torch.tensor([label for label, _ in pairs], dtype=torch.int64)
    entropies = torch.tensor([entropy for _, entropy in pairs])
    keep = best(labels, entropies, count)
    for label in range(4):
        mine = entropies[labels == label].sort().values
        assert torch.equal(entropies[keep & (labels == label)].sort().values, mine[:count])


def test_supports_stay_bounded():
    adapter = neotta.create("t3a", Flat(), filter_k=3)
    sizes = []
    for number in range(60):
        adapter(images(16, number))
        sizes.append(len(adapter.labels))
    assert adapter.counts.tolist() == [3] * CLASSES
    assert sizes[-1] == sizes[10] <= 2 * (CLASSES * 3 + 16)


def test_without_filter_no_support_is_kept():
    adapter = neotta.create("t3a", Flat(), filter_k=-1)
    for number in range(5):
        adapter(images(16, number))
    assert set(adapter.state_dict()) == {"sums", "counts"}
    assert int(adapter.counts.sum()) == CLASSES + 5 * 16


def test_an_overfull_class_is_filtered_once_it_is_predicted():
    model, zero, one = overfull()
    adapter = neotta.create("t3a", model, filter_k=2)
    assert adapter.counts.tolist() == [4, 0, 0, 0]
    adapter(one)
    assert adapter.counts.tolist() == [4, 1, 0, 0]
    adapter(zero)
    assert adapter.counts.tolist() == [2, 1, 0, 0]


def test_the_original_filters_every_class():
    model, _, one = overfull()
    adapter = neotta.create("t3a", model, filter_k=2, preset="original")
    adapter(one)
    assert adapter.counts.tolist() == [2, 1, 0, 0]


def test_predicting_filters_for_itself_only():
    model, zero, one = overfull()
    adapter = neotta.create("t3a", model, filter_k=2)
    before = adapter.state_dict()
    unfiltered = adapter(one, adapt=False)
    filtered = adapter(zero, adapt=False)
    # Of the four unit vectors of class 0, the two lowest entropies are left: one of them along the image.
    assert filtered[0, 0] == pytest.approx(5 / math.sqrt(2))
    assert unfiltered[0, 0] == pytest.approx(30 / math.sqrt(4))
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_a_class_without_support_scores_zero():
    model, zero, _ = overfull()
    assert neotta.create("t3a", model)(zero)[0, 1:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_rows_never_become_supports(bad):
    adapter, clean = (neotta.create("t3a", Flat(), filter_k=2) for _ in range(2))
    x = images(6)
    x[1, 0, 0, 0] = x[4, 2, 1, 1] = bad
    good = [0, 2, 3, 5]
    with pytest.warns(RuntimeWarning, match="2 of 6 embeddings hold NaN or Inf"):
        output = adapter(x)
    torch.testing.assert_close(output[good], clean(x[good]))
    assert output.shape == (6, CLASSES)
    assert adapter.skipped == 2
    assert all(torch.equal(tensor, clean.state_dict()[name]) for name, tensor in adapter.state_dict().items())
    with pytest.warns(RuntimeWarning, match="1 of 1"):
        adapter(x[1:2])
    assert adapter.skipped == 3
    adapter(x, adapt=False)
    assert adapter.skipped == 3


@pytest.mark.parametrize("k", [-1, 2])
def test_a_state_continues_bit_for_bit(k, tmp_path):
    one, other = (neotta.create("t3a", Flat(), filter_k=k) for _ in range(2))
    other(images(11, 99))
    for number in range(5):
        one(images(7, number))
    one.save(tmp_path / "state.safetensors")
    other.load(tmp_path / "state.safetensors")
    for number in range(5, 10):
        assert torch.equal(one(images(9, number)), other(images(9, number)))
    for name, tensor in one.state_dict().items():
        if name in ("sums", "counts", "labels"):
            assert torch.equal(tensor, other.state_dict()[name])


def test_a_loaded_state_stays_the_callers():
    adapter = neotta.create("t3a", Flat(), filter_k=1)
    adapter(images(40))
    state = adapter.state_dict()
    assert (state["labels"] < 0).any(), "there are free slots to write to"
    before = {name: tensor.clone() for name, tensor in state.items()}
    adapter.load_state_dict(state)
    adapter(images(1, seed=1))
    assert all(torch.equal(before[name], tensor) for name, tensor in state.items())


def test_reset_goes_back():
    adapter = neotta.create("t3a", Flat(), filter_k=1)
    before = adapter.state_dict()
    adapter(images(9))
    adapter.reset()
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_a_damaged_state_is_refused():
    adapter = neotta.create("t3a", Flat())
    before = adapter.state_dict()
    for name, damaged in (("labels", before["labels"][:-1]), ("counts", before["counts"] + 1)):
        with pytest.raises(StateMismatchError, match="damaged"):
            adapter.load_state_dict({**before, name: damaged})
    with pytest.raises(StateMismatchError, match="another model"):
        adapter.load_state_dict({**before, "directions": before["directions"][:, 1:]})
    unfiltered = neotta.create("t3a", Flat(), filter_k=-1)
    with pytest.raises(StateMismatchError, match="lacks"):
        adapter.load_state_dict(unfiltered.state_dict())
    assert all(torch.equal(before[name], tensor) for name, tensor in adapter.state_dict().items())


def test_a_state_of_other_classes_is_refused(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6)).eval()
    adapter = neotta.create("t3a", model, classes=[0, 1, 2])
    adapter(torch.randn(4, 3, 2, 2))
    adapter.save(tmp_path / "state")
    other = neotta.create("t3a", model, classes=[3, 4, 5])
    before = other.state_dict()
    with pytest.raises(StateMismatchError, match="classes"):
        other.load(tmp_path / "state")
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    neotta.create("t3a", model, classes=[0, 1, 2]).load(tmp_path / "state")


def test_a_state_of_more_supports_is_filtered():
    adapter = neotta.create("t3a", Flat(), filter_k=5)
    for number in range(8):
        adapter(images(16, number))
    adapter = with_options(adapter, filter_k=2)
    adapter(images(64, 9))
    assert adapter.counts.tolist() == [2] * CLASSES


@pytest.mark.parametrize("value", [0, -2, 1.5, "20"])
def test_a_wrong_number_of_supports_is_refused(value):
    with pytest.raises(OptionError, match="filter_k"):
        neotta.create("t3a", Flat(), filter_k=value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_supports_in_float32(dtype):
    adapter = neotta.create("t3a", Flat(dtype=dtype), filter_k=3)
    wide = neotta.create("t3a", Flat(dtype=dtype).float(), filter_k=3)
    x = images(8, dtype=dtype)
    output = adapter(x)
    assert output.dtype == dtype
    assert adapter.directions.dtype == torch.float32
    torch.testing.assert_close(output.float(), wide(x.float()), rtol=0.05, atol=0.05)


def test_more_classes_than_are_judged_at_once(monkeypatch):
    whole = neotta.create("t3a", Flat())
    monkeypatch.setattr("neotta.adapters.t3a.WARMUP_BATCH", 2)
    parts = neotta.create("t3a", Flat())
    torch.testing.assert_close(whole.sums, parts.sums)
    assert torch.equal(whole.counts, parts.counts)


def test_indices_and_mask_agree():
    mask = torch.tensor([True, False, True, True, False])
    by_mask, by_index = (neotta.create("t3a", Flat(), classes=classes) for classes in (mask, [0, 2, 3]))
    assert torch.equal(by_mask(images(8)), by_index(images(8)))
