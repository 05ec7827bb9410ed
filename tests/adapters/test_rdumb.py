"""RDumb: when a method starts again, round whatever method."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_vit import batches, confident_vit

import neotta
import neotta.testing
from neotta.errors import OptionError


@settings(max_examples=8, deadline=None)
@given(every=st.integers(1, 4))
def test_it_is_the_method_started_again(every):
    model, stream = confident_vit(), batches(6)
    options = {"e_margin": 10.0, "d_margin": 1.1, "lr": 0.05}
    adapter = neotta.create("rdumb", model, reset_every=every, **options)
    for start in range(0, len(stream), every):
        fresh = neotta.create("eta", model, **options)
        for images in stream[start : start + every]:
            assert torch.equal(adapter(images), fresh(images))


def test_predicting_neither_counts_nor_restores():
    adapter, (first, second) = (
        neotta.create("rdumb", confident_vit(), reset_every=1, e_margin=10.0, lr=0.05),
        batches(2),
    )
    source = adapter(first)
    adapted = adapter(first, adapt=False)
    assert not torch.equal(source, adapted), "the source model comes back with the next batch that is adapted to"
    assert int(adapter.count) == 1
    assert not torch.equal(adapter(second, adapt=False), neotta.create("none", adapter.model)(second))
    assert torch.equal(adapter(second), neotta.create("none", adapter.model)(second))


def test_batches_without_a_step_count_and_bad_ones_do_not():
    adapter, (images,) = neotta.create("rdumb", confident_vit(), e_margin=0.0), batches(1)
    adapter(images)
    with pytest.warns(RuntimeWarning, match="NaN or Inf"):
        adapter(torch.full_like(images, torch.nan))
    assert int(adapter.count) == 1
    assert adapter.skipped == len(images)


def test_reset_restarts_the_count_unless_told_otherwise():
    for keeps, count in ((False, 0), (True, 1)):
        adapter = neotta.create("rdumb", confident_vit(), reset_keeps_count=keeps)
        adapter(batches(1)[0])
        adapter.reset()
        assert int(adapter.count) == count


@pytest.mark.parametrize("method", ["rdumb+tent", "rdumb+neo", "rdumb+neo+lame"])
def test_it_stands_round_any_method(method):
    model, stream = confident_vit(), batches(4)
    adapter, plain = neotta.create(method, model, reset_every=2), neotta.create(method.removeprefix("rdumb+"), model)
    answers, alone = ([each(images) for images in stream] for each in (adapter, plain))
    assert all(map(torch.equal, answers[:2], alone[:2]))
    plain.reset()
    assert all(map(torch.equal, answers[2:], [plain(images) for images in stream[2:]]))
    neotta.testing.check_adapter(method, models={"vit": neotta.testing.MODELS["vit"]}, reset_every=2)


def test_options_are_those_of_both():
    adapter = neotta.create("rdumb+tent", confident_vit(), preset="original", reset_every=3)
    assert adapter.inner.options.optimizer == "sgd"
    other = neotta.create("rdumb+tent", confident_vit(), lr=0.5, reset_every=7)
    assert (other.inner.options.lr, other.options.reset_every) == (0.5, 7)
    with pytest.raises(OptionError, match="no option 'knn'"):
        neotta.create("rdumb+tent", confident_vit(), knn=3)
    with pytest.raises(OptionError, match="restarts already"):
        neotta.create("rdumb+rdumb", confident_vit())
