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
from neotta.errors import InputError, OptionError, StateError, StateFileError, StateMismatchError
from neotta.neo.mean import MeanRule
from neotta.neo.streams import Streams

CLASSES, FEATURES = 7, 4
VARIANTS = {
    "neo": {},
    "batch": {"weighting": "batch"},
    "continual": {"alpha": 0.1},
    "debiased": {"alpha": 0.3, "debias": True},
    "all at once": {"alpha": 1.0, "debias": True},
    "mse": {"uniform_bias": True},
}


def layer(seed=0, uniform_bias=False, **options):
    torch.manual_seed(seed)
    linear = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    return NEOHead(linear, Streams(MeanRule(**options), FEATURES), uniform_bias=uniform_bias)


def recenter(head, **options):
    return LogitRecenter(head.bias.detach().numpy(), rule="neo", **options)


def plain(head, embeddings):
    """What a runtime without neotta returns."""
    return torch.nn.functional.linear(embeddings, head.weight, head.bias).detach().numpy()


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8), seed=st.integers(0, 1000), bad=st.booleans())
def test_every_variant_equals_the_layer(options, sizes, seed, bad):
    head = layer(seed, **options)
    ours = recenter(head, **options)
    for size in sizes:
        embeddings = torch.randn(size, FEATURES, dtype=torch.float64) + 3
        if bad and size > 2:
            embeddings[1] = torch.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            wanted, got = head(embeddings).detach().numpy(), ours.recenter(plain(head, embeddings))
        np.testing.assert_allclose(got, wanted, atol=1e-6, rtol=0)
    assert ours.count_ == head.count
    assert ours.rejected_ == int(head.streams.state()[0, 1])
    frozen = torch.randn(5, FEATURES, dtype=torch.float64)
    head.freeze()
    wanted, before = head(frozen).detach().numpy(), ours.offset()
    np.testing.assert_allclose(ours.recenter(plain(head, frozen), adapt=False), wanted, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(ours.offset(), before)


def test_before_the_first_batch_it_answers_as_the_layer_does():
    for options in ({}, {"uniform_bias": True}):
        head = layer(**options)
        head.freeze()
        embeddings = torch.randn(3, FEATURES, dtype=torch.float64)
        got = recenter(head, **options).recenter(plain(head, embeddings), adapt=False)
        np.testing.assert_allclose(got, head(embeddings).detach().numpy(), atol=1e-12)


def test_without_the_bias_the_bias_is_subtracted_too():
    head = layer()
    embeddings = torch.randn(6, FEATURES, dtype=torch.float64)
    centred = (embeddings - embeddings.mean(0)) @ head.weight.detach().T
    np.testing.assert_allclose(LogitRecenter(rule="neo").recenter(plain(head, embeddings)), centred.numpy(), atol=1e-12)
    # NEO-MSE replaces the bias in any case, so nothing is lost there
    mse = layer(uniform_bias=True)
    got = LogitRecenter(rule="neo", uniform_bias=True).recenter(plain(mse, embeddings))
    np.testing.assert_allclose(got, mse(embeddings).detach().numpy(), atol=1e-12)


def test_shrinkage_that_logits_cannot_give_is_rejected():
    with pytest.raises(OptionError, match="needs lengths of embeddings"):
        LogitRecenter(rule="neo", shrinkage="james-stein").partial_fit(np.ones((2, 3)))


def test_shrinkage_in_logit_space():
    rng = np.random.default_rng(0)
    bias = rng.normal(size=CLASSES)
    ours = LogitRecenter(bias, rule="neo", shrinkage="james-stein-logits")
    one = rng.normal(size=(1, CLASSES))
    np.testing.assert_array_equal(ours.recenter(one), one)  # nothing is subtracted from a single sample
    more = rng.normal(1, 1, size=(50, CLASSES))
    ours.partial_fit(more)
    free = np.concatenate([one, more]) - bias
    mean, variance = free.mean(0), free.var(0, ddof=1).sum()
    factor = 1 - variance / (len(free) * np.square(mean).sum())
    assert 0 < factor < 1
    np.testing.assert_allclose(ours.offset(), factor * mean, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"weighting": "batch"}, {"shrinkage": "james-stein-logits"}], ids=str)
def test_merging_is_exact_in_any_order(options):
    head = layer()
    rng = np.random.default_rng(1)
    batches = [rng.normal(2, 1, size=(size, CLASSES)) for size in (3, 1, 5, 2)]
    whole = recenter(head, **options)
    parts = [recenter(head, **options) for _ in range(3)]
    for index, batch in enumerate(batches):
        whole.partial_fit(batch)
        parts[index % 2].partial_fit(batch)
    for order in ([2, 0, 1], [1, 2, 0]):
        merged = recenter(head, **options)
        for index in order:
            merged.merge(parts[index])
        assert merged.count_ == 11
        np.testing.assert_allclose(merged.offset(), whole.offset(), atol=1e-12)


def test_merging_what_does_not_fit():
    one = LogitRecenter(rule="neo").fit(np.ones((2, 3)))
    with pytest.raises(StateMismatchError):
        one.merge(LogitRecenter(rule="neo").fit(np.ones((2, 4))))
    with pytest.raises(StateMismatchError):
        one.merge(LogitRecenter(np.ones(3), rule="neo").fit(np.ones((2, 3))))
    new = LogitRecenter(np.ones(4))
    with pytest.raises(StateMismatchError):
        new.merge(LogitRecenter().fit(np.ones((2, 4))))
    assert not hasattr(new, "count_")  # it is as it was
    with pytest.raises(OptionError, match="moving average"):
        one.merge(LogitRecenter(rule="neo", alpha=0.1).fit(np.ones((2, 3))))


def test_bad_rows_are_answered_counted_and_warned_of():
    ours = LogitRecenter()
    with pytest.warns(RuntimeWarning, match="1 rows contain NaN"):
        answer = ours.recenter(np.array([[1.0, 2.0], [np.inf, 0.0]]))
    assert np.isfinite(answer[0]).all()
    assert not np.isfinite(answer[1]).all()
    assert (ours.count_, ours.rejected_) == (1, 1)


def test_the_dtype_stays_and_the_mean_is_kept_in_float64():
    ours = LogitRecenter()
    assert ours.recenter(np.ones((2, 3), np.float32)).dtype == np.float32
    assert ours.recenter([[1, 2, 3]]).dtype == np.float64
    assert ours.offset().dtype == np.float64
    assert ours.recenter(np.empty((0, 3), np.float32)).shape == (0, 3)


def test_tensors_and_parameters_of_torch_do_too():
    head, embeddings = layer(), torch.randn(5, FEATURES, dtype=torch.float64)
    ours = LogitRecenter(head.bias, rule="neo")
    logits = torch.nn.functional.linear(embeddings, head.weight, head.bias)
    wanted = layer()(embeddings).detach().numpy()
    np.testing.assert_allclose(ours.recenter(logits), wanted, atol=1e-12)


def test_wrong_input_and_options():
    for bad in (np.ones((2, 2, 2)), np.ones((2, 0)), np.ones((2, 2), complex), [["a", "b"]]):
        with pytest.raises(InputError):
            LogitRecenter().fit(bad)
    with pytest.raises(InputError, match="0 sample"):
        LogitRecenter().fit(np.empty((0, 3)))
    with pytest.raises(InputError, match="expecting 3 features"):
        LogitRecenter().fit(np.ones((2, 3))).transform(np.ones((2, 4)))
    wrong = [
        {"alpha": "x"}, {"alpha": True}, {"bias": "abc"},
        {"alpha": 2}, {"debias": True}, {"weighting": "x"}, {"shrinkage": "x"}, {"bias": [1.0]}, {"bias": [np.nan] * 3},
        {"alpha": 0.1, "shrinkage": "james-stein-logits"},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(OptionError):
            LogitRecenter(**{"rule": "neo", **options}).fit(np.ones((2, 3)))
    with pytest.raises(StateError, match="not fitted"):
        LogitRecenter().transform(np.ones((2, 3)))
    with pytest.raises(ValueError, match="'alhpa'"):
        LogitRecenter().set_params(alhpa=1)
    with pytest.raises(StateError, match="not fitted"):
        LogitRecenter().offset()
    with pytest.raises(InputError, match="got int"):
        LogitRecenter().merge(3)
    ours = LogitRecenter(rule="neo").fit(np.ones((2, 3))).set_params(shrinkage="james-stein-logits")
    with pytest.raises(OptionError, match="reset"):
        ours.partial_fit(np.ones((2, 3)))


def test_saving_and_going_on(tmp_path):
    head = layer()
    rng = np.random.default_rng(2)
    ours = recenter(head, shrinkage="james-stein-logits").partial_fit(rng.normal(size=(5, CLASSES)))
    ours.save(tmp_path / "state.safetensors")
    other = recenter(head, shrinkage="james-stein-logits")
    other.load(tmp_path / "state.safetensors")
    batch = rng.normal(size=(3, CLASSES))
    np.testing.assert_array_equal(other.recenter(batch), ours.recenter(batch))
    assert other.count_ == 8
    for wrong in (LogitRecenter(head.bias), LogitRecenter(rule="neo"), recenter(head, alpha=0.1)):
        with pytest.raises(StateMismatchError):
            wrong.load(tmp_path / "state.safetensors")
        assert not hasattr(wrong, "count_")
    with pytest.raises(StateError, match="not fitted"):
        LogitRecenter().save(tmp_path / "other")
    with pytest.raises(StateFileError):
        ours.load(tmp_path / "nothing")


ALLOWED = {"check_fit1d": "a binary decision function is one number per sample"}


def test_scikit_learns_own_checks():
    from sklearn.exceptions import SkipTestWarning
    from sklearn.utils.estimator_checks import check_estimator

    for options in (
        {},
        {"rule": "neo"},
        {"rule": "neo", "alpha": 0.1},
        {"rule": "neo", "shrinkage": "james-stein-logits"},
    ):
        estimator = LogitRecenter(**options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkipTestWarning)  # of array libraries that are not installed
            # It works without scikit-learn, so it inherits nothing from it.
            warnings.filterwarnings("ignore", message=".*does not inherit from `sklearn.base.BaseEstimator`")
            results = check_estimator(estimator, on_fail=None, expected_failed_checks=ALLOWED)
        failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
        assert failed == {}
        assert sum(result["status"] == "passed" for result in results) > 40


def test_clones_copies_and_names():
    from sklearn.base import clone

    ours = LogitRecenter(np.ones(3), rule="neo", alpha=0.1).fit(np.ones((2, 3)))
    fresh = clone(ours)
    assert not hasattr(fresh, "count_")
    np.testing.assert_array_equal(fresh.bias, ours.bias)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ours)).offset(), ours.offset())
    assert ours.get_params()["alpha"] == 0.1
