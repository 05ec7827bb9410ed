from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.errors import OptionError

FEATURES = 12
CLASSES = 4
AFFINITIES = ["knn", "rbf", "linear"]


class Flat(nn.Module):
    """Its embeddings are the pixels of (B, 3, 2, 2)."""

    def __init__(self, seed=0, dtype=torch.float64):
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)

    def forward(self, images):
        return self.head(images.flatten(1))


def images(size, seed=0, dtype=torch.float64):
    return torch.randn(size, 3, 2, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain(model, x):
    with torch.no_grad():
        return model(x).softmax(dim=1)


def definition(model, x, affinity, knn, symmetrise, lambda_, iterations):
    """As it is written down, sample by sample."""
    p = plain(model, x)
    size = len(p)
    rows = [row / max(float(row.norm()), 1e-12) for row in x.flatten(1)]
    distance = torch.tensor([[float((a - b).norm()) for b in rows] for a in rows], dtype=p.dtype)
    a = torch.zeros_like(distance)
    if affinity == "linear":
        a = torch.stack(rows) @ torch.stack(rows).T
    elif affinity == "rbf":
        sigma = sum(sorted(row)[min(knn, size) - 1] for row in distance.tolist()) / size
        a = torch.exp(-(distance**2) / (2 * sigma**2))
    else:
        for i, row in enumerate(distance.tolist()):
            for j in sorted(range(size), key=row.__getitem__)[: min(knn + 1, size)][1:]:
                a[i, j] = 1.0
    if symmetrise:
        a = (a + a.T) / 2
    u = -torch.log(p + 1e-10)
    y = torch.softmax(-u, dim=1)
    before = math.inf
    for t in range(iterations):
        g = lambda_ * a @ y
        y = torch.softmax(-u + g, dim=1)
        energy = float((u * y - lambda_ * g * y + y * torch.log(y.clamp(min=1e-20))).sum())
        if t > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return y


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(2, 9),
    affinity=st.sampled_from(AFFINITIES),
    knn=st.integers(2, 6),
    symmetrise=st.booleans(),
    lambda_=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    iterations=st.sampled_from([1, 3, 100]),
)
def test_it_is_the_definition(seed, size, affinity, knn, symmetrise, lambda_, iterations):
    model, x = Flat(seed), images(size, seed)
    chosen = {"affinity": affinity, "knn": knn, "symmetrise": symmetrise, "lambda_": lambda_}
    adapter = neotta.create("lame", model, max_iterations=iterations, **chosen)
    wanted = definition(model, x, iterations=iterations, **chosen)
    torch.testing.assert_close(adapter(x).exp(), wanted, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 1000), order=st.permutations(range(8)), affinity=st.sampled_from(AFFINITIES))
def test_another_order_gives_the_same_answers(seed, order, affinity):
    adapter, x = neotta.create("lame", Flat(seed), affinity=affinity), images(8, seed)
    torch.testing.assert_close(adapter(x)[list(order)].exp(), adapter(x[list(order)]).exp(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("size", [1, 2, 5, 40])
def test_answers_are_log_probabilities(affinity, size):
    output = neotta.create("lame", Flat(), affinity=affinity)(images(size))
    assert output.shape == (size, CLASSES)
    torch.testing.assert_close(output.exp().sum(dim=1), torch.ones(size, dtype=torch.float64))


def test_a_single_sample_is_answered_plainly():
    model = Flat()
    torch.testing.assert_close(neotta.create("lame", model)(images(1)).exp(), plain(model, images(1)))


def test_without_adapting_it_is_the_model():
    model = Flat()
    output = neotta.create("lame", model)(images(8), adapt=False)
    torch.testing.assert_close(output.exp(), plain(model, images(8)))


def test_similar_samples_pull_each_other_along():
    model, x = Flat(), images(6)
    x[1:] = x[0] + 0.01 * images(5, seed=1)
    before, after = plain(model, x), neotta.create("lame", model)(x).exp()
    assert (after.max(dim=1).values > before.max(dim=1).values).all()


def test_nothing_is_remembered():
    adapter = neotta.create("lame", Flat())
    first = adapter(images(8))
    adapter(images(8, seed=1))
    assert torch.equal(adapter(images(8)), first)
    assert adapter.state_dict() == {}


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_identical_samples_get_one_answer(affinity, value):
    output = neotta.create("lame", Flat(), affinity=affinity)(torch.full((7, 3, 2, 2), value, dtype=torch.float64))
    assert torch.isfinite(output).all()
    assert (output.argmax(dim=1) == output[0].argmax()).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_rows_are_left_out_of_the_others_neighbourhoods(bad):
    adapter, x = neotta.create("lame", Flat()), images(6)
    clean = neotta.create("lame", Flat())
    x[2, 1, 0, 1] = bad
    good = [0, 1, 3, 4, 5]
    with pytest.warns(RuntimeWarning, match="1 of 6 embeddings hold NaN or Inf"):
        output = adapter(x)
    assert torch.equal(output[good], clean(x[good]))
    assert adapter.skipped == 1
    with pytest.warns(RuntimeWarning, match="1 of 1"):
        assert adapter(x[2:3]).shape == (1, CLASSES)


def test_classes_are_chosen_before_the_softmax():
    model, kept = Flat(), [0, 2, 3]
    output = neotta.create("lame", model, classes=kept)(images(8), adapt=False)
    torch.testing.assert_close(output, model(images(8)).detach()[:, kept].log_softmax(dim=1))
    adapted = neotta.create("lame", model, classes=kept)(images(8))
    torch.testing.assert_close(adapted.exp().sum(dim=1), torch.ones(8, dtype=torch.float64))


def test_the_original_preset():
    adapter = neotta.create("lame", Flat(), preset="original")
    assert (adapter.options.affinity, adapter.options.symmetrise, adapter.options.knn) == ("rbf", False, 5)


@pytest.mark.parametrize("option", [{"knn": 0}, {"affinity": "cosine"}, {"lambda_": -1.0}, {"max_iterations": 0}])
def test_wrong_options_are_refused(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        neotta.create("lame", Flat(), **option)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = Flat(dtype=dtype)
    x = images(8, dtype=dtype)
    output = neotta.create("lame", model)(x)
    assert output.dtype == dtype
    wide = neotta.create("lame", model.float())(x.float())
    torch.testing.assert_close(output.float().exp(), wide.exp(), rtol=0.05, atol=0.05)


def test_distances_stay_exact_under_autocast():
    model, x = Flat(dtype=torch.float32), images(8, dtype=torch.float32)
    embeddings = x.flatten(1)
    adapter = neotta.create("lame", model, affinity="rbf")
    with torch.no_grad():
        log = model(x).log_softmax(dim=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = adapter._refine(log, embeddings)
        assert torch.equal(inside, adapter._refine(log, embeddings))
