from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neotta import NEOHead
from neotta.deploy import LogitRecenter
from neotta.errors import InputError, OptionError, StateError, StateFileError, StateMismatchError, UnknownMethodError
from neotta.neo.streams import Streams
from neotta.neo.variants import rule_of

CLASSES, FEATURES = 7, 4
VARIANTS = {
    "neo": ("neo", {}),
    "batch": ("neo", {"weighting": "batch"}),
    "continual": ("neo-continual", {"alpha": 0.1}),
    "debiased": ("neo-continual", {"alpha": 0.3, "debias": True}),
    "all at once": ("neo-continual", {"alpha": 1.0, "debias": True}),
    "mse": ("neo-mse", {}),
}


def layer(seed=0, method="neo", **options):
    torch.manual_seed(seed)
    linear = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    return NEOHead(linear, Streams(rule_of(method, options), FEATURES), uniform_bias=method == "neo-mse")


def recenter(head, method="neo", **options):
    return LogitRecenter(head.bias.detach().numpy(), method, **options)


def seen(*batches, **options):
    ours = LogitRecenter(**options)
    for batch in batches:
        ours.recenter(batch)
    return ours


def plain(head, embeddings):
    """What a runtime without neotta returns."""
    return torch.nn.functional.linear(embeddings, head.weight, head.bias).detach().numpy()


@pytest.mark.parametrize(("method", "options"), VARIANTS.values(), ids=VARIANTS)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8), seed=st.integers(0, 1000), bad=st.booleans())
def test_every_variant_equals_the_layer(method, options, sizes, seed, bad):
    head = layer(seed, method, **options)
    ours = recenter(head, method, **options)
    for size in sizes:
        embeddings = torch.randn(size, FEATURES, dtype=torch.float64) + 3
        if bad and size > 2:
            embeddings[1] = torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            wanted, got = head(embeddings).detach().numpy(), ours.recenter(plain(head, embeddings))
        np.testing.assert_allclose(got, wanted, atol=1e-6, rtol=0)
    assert ours.count == head.count
    assert ours.rejected == int(head.streams.state()[0, 1])
    frozen = torch.randn(5, FEATURES, dtype=torch.float64)
    head.freeze()
    wanted, before = head(frozen).detach().numpy(), ours.offset()
    np.testing.assert_allclose(ours.recenter(plain(head, frozen), adapt=False), wanted, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(ours.offset(), before)


def test_before_the_first_batch_it_answers_as_the_layer_does():
    for method in ("neo", "neo-mse"):
        head = layer(method=method)
        head.freeze()
        embeddings = torch.randn(3, FEATURES, dtype=torch.float64)
        got = recenter(head, method).recenter(plain(head, embeddings), adapt=False)
        np.testing.assert_allclose(got, head(embeddings).detach().numpy(), atol=1e-12)


def test_without_the_bias_the_bias_is_subtracted_too():
    head = layer()
    embeddings = torch.randn(6, FEATURES, dtype=torch.float64)
    centred = (embeddings - embeddings.mean(0)) @ head.weight.detach().T
    got = LogitRecenter(method="neo").recenter(plain(head, embeddings))
    np.testing.assert_allclose(got, centred.numpy(), atol=1e-12)
    # NEO-MSE replaces the bias in any case, so nothing is lost there
    mse = layer(method="neo-mse")
    got = LogitRecenter(method="neo-mse").recenter(plain(mse, embeddings))
    np.testing.assert_allclose(got, mse(embeddings).detach().numpy(), atol=1e-12)


def test_shrinkage_that_logits_cannot_give_is_rejected():
    with pytest.raises(OptionError, match="needs the lengths of embeddings"):
        LogitRecenter(method="neo", shrinkage="james-stein")


@pytest.mark.parametrize("options", [{}, {"weighting": "batch"}], ids=str)
def test_merging_is_exact_in_any_order(options):
    head = layer()
    rng = np.random.default_rng(1)
    batches = [rng.normal(2, 1, size=(size, CLASSES)) for size in (3, 1, 5, 2)]
    whole = recenter(head, **options)
    parts = [recenter(head, **options) for _ in range(3)]
    for index, batch in enumerate(batches):
        whole.recenter(batch)
        parts[index % 2].recenter(batch)
    for order in ([2, 0, 1], [1, 2, 0]):
        merged = recenter(head, **options)
        for index in order:
            merged.merge(parts[index])
        assert merged.count == 11
        np.testing.assert_allclose(merged.offset(), whole.offset(), atol=1e-12)


def test_merging_what_does_not_fit():
    one = seen(np.ones((2, 3)), method="neo")
    with pytest.raises(StateMismatchError):
        one.merge(seen(np.ones((2, 4)), method="neo"))
    with pytest.raises(StateMismatchError):
        one.merge(seen(np.ones((2, 3)), bias=np.ones(3), method="neo"))
    with pytest.raises(StateMismatchError):
        one.merge(seen(np.ones((2, 3)), method="neo-continual"))
    new = LogitRecenter(np.ones(4))
    with pytest.raises(StateMismatchError):
        new.merge(seen(np.ones((2, 4))))
    assert new.count == 0  # it is as it was
    average = seen(np.ones((2, 3)), method="neo-continual")
    with pytest.raises(OptionError, match="moving average"):
        average.merge(seen(np.ones((2, 3)), method="neo-continual"))


def test_bad_rows_are_answered_counted_and_warned_of():
    ours = LogitRecenter()
    with pytest.warns(RuntimeWarning, match="1 rows contain NaN"):
        answer = ours.recenter(np.array([[1.0, 2.0], [np.inf, 0.0]]))
    assert np.isfinite(answer[0]).all()
    assert not np.isfinite(answer[1]).all()
    assert (ours.count, ours.rejected) == (1, 1)


def test_the_dtype_stays_and_the_mean_is_kept_in_float64():
    ours = LogitRecenter()
    assert ours.recenter(np.ones((2, 3), np.float32)).dtype == np.float32
    assert ours.recenter([[1, 2, 3]]).dtype == np.float64
    assert ours.offset().dtype == np.float64
    assert ours.recenter(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_tensors_and_parameters_of_torch_do_too():
    head, embeddings = layer(), torch.randn(5, FEATURES, dtype=torch.float64)
    ours = LogitRecenter(head.bias, "neo")
    logits = torch.nn.functional.linear(embeddings, head.weight, head.bias)
    wanted = layer()(embeddings).detach().numpy()
    np.testing.assert_allclose(ours.recenter(logits), wanted, atol=1e-12)


def test_wrong_input_and_options():
    for bad in (np.ones((2, 2, 2)), np.ones((2, 0)), np.ones((2, 2), complex), [["a", "b"]]):
        with pytest.raises(InputError):
            LogitRecenter().recenter(bad)
    with pytest.raises(InputError, match=r"\(samples, 3\), got shape \(2, 4\)"):
        seen(np.ones((2, 3))).recenter(np.ones((2, 4)))
    wrong = [{"bias": "abc"}, {"bias": [1.0]}, {"bias": [np.nan] * 3}, {"bias": np.ones((3, 3))}, {"weighting": "x"}]
    wrong += [{"method": "neo-continual", "alpha": alpha} for alpha in ("x", True, 2)]
    for options in wrong:
        with pytest.raises(OptionError):
            LogitRecenter(**{"method": "neo", **options}).recenter(np.ones((2, 3)))
    for method in ("neo-bn", "sar", 3):
        with pytest.raises(UnknownMethodError):
            LogitRecenter(method=method)
    with pytest.raises(StateError, match="no state yet"):
        LogitRecenter().offset()
    with pytest.raises(InputError, match="got int"):
        LogitRecenter().merge(3)


def test_saving_and_going_on(tmp_path):
    head = layer()
    rng = np.random.default_rng(2)
    ours = recenter(head)
    ours.recenter(rng.normal(size=(5, CLASSES)))
    ours.save(tmp_path / "state.safetensors")
    other = recenter(head)
    other.load(tmp_path / "state.safetensors")
    batch = rng.normal(size=(3, CLASSES))
    np.testing.assert_array_equal(other.recenter(batch), ours.recenter(batch))
    assert other.count == 8
    for wrong in (LogitRecenter(head.bias), LogitRecenter(method="neo"), recenter(head, "neo-continual")):
        with pytest.raises(StateMismatchError):
            wrong.load(tmp_path / "state.safetensors")
        assert wrong.count == 0
    with pytest.raises(StateError, match="no state yet"):
        LogitRecenter().save(tmp_path / "other")
    with pytest.raises(StateFileError):
        ours.load(tmp_path / "nothing")


def test_a_copy_goes_on_alone():
    ours = seen(np.ones((2, 3)), bias=np.ones(3), method="neo-continual")
    other = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(other.offset(), ours.offset())
    other.recenter(2 * np.ones((2, 3)))
    assert (ours.count, other.count) == (2, 4)
