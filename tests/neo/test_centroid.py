from __future__ import annotations

import copy
import threading
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neotta import Centroid
from neotta.errors import InputError, OptionError, StateMismatchError

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def samples(count: int, seed: int, features: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator, dtype=torch.float64) * 3 + 1


def filled(batches, **options) -> Centroid:
    centroid = Centroid(batches[0].shape[1], **options)
    for batch in batches:
        centroid.update(batch)
    return centroid


def same(one: Centroid, other: Centroid) -> None:
    for name, buffer in one.named_buffers():
        if name != "batches":
            torch.testing.assert_close(buffer, getattr(other, name), rtol=1e-12, atol=1e-12)


@given(SIZES, st.integers(0, 1000))
def test_batching_does_not_matter(sizes, seed):
    data = samples(sum(sizes), seed)
    cut = filled(list(data.split(sizes)), variance=True)
    same(cut, filled([data], variance=True))
    if len(data):
        torch.testing.assert_close(cut.mean, data.mean(0), rtol=1e-12, atol=1e-12)
    if len(data) > 1:
        torch.testing.assert_close(cut.total_variance(), data.var(0).sum(), rtol=1e-10, atol=1e-12)


def test_a_hundred_million_samples_lose_no_precision():
    centroid = Centroid(3)
    centroid.set(torch.tensor([1000.0, -1.0, 0.0]), count=10**8)
    rows = torch.tensor([[1001.0, 0.0, 1e-3]]).expand(1000, 3)
    for _ in range(100):
        centroid.update(rows)
    total = 10**8 + 10**5
    assert int(centroid.count) == total
    expected = torch.tensor([1000 + 10**5 / total, -(10**8) / total, 1e-3 * 10**5 / total], dtype=torch.float64)
    torch.testing.assert_close(centroid.mean, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_are_accumulated_in_a_wide_one(dtype):
    data = (torch.randn(4096, 4, generator=torch.Generator().manual_seed(0)) + 100).to(dtype)
    centroid = filled(list(data.split(64)), variance=True)
    torch.testing.assert_close(centroid.mean, data.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(centroid.total_variance(), data.double().var(0).sum(), rtol=1e-3, atol=0)


@given(st.integers(0, 6), st.integers(1, 6), st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_rows_that_are_not_finite_are_kept_out_and_counted(good, bad, value):
    data = samples(good + bad, good)
    data[good:, 2] = value
    clean = filled([samples(3, 5), data[:good]], variance=True)
    dirty = filled([samples(3, 5)], variance=True)
    with pytest.warns(RuntimeWarning, match=f"{bad} of {good + bad} embeddings contain NaN or Inf"):
        dirty.update(data)
    assert int(dirty.rejected) == bad
    dirty.rejected.zero_()
    same(clean, dirty)
    assert int(clean.batches) == int(dirty.batches)


@pytest.mark.parametrize("size", [9e14, 9.9e15])
def test_large_values_are_not_taken_for_bad_ones(size):
    data = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]]) * size
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centroid = filled([data])
    assert int(centroid.count) == 3
    assert int(centroid.rejected) == 0
    torch.testing.assert_close(centroid.mean, data.double().mean(0))


@pytest.mark.parametrize("sign", [1, -1])
def test_large_sums_are_taken_again_in_a_wider_format(sign):
    data = torch.tensor([[9e15, 1.0], [9e15, 2.0], [6e15, 3.0]]) * sign
    centroid = filled([data], variance=True)
    torch.testing.assert_close(centroid.mean, data.double().mean(0))
    torch.testing.assert_close(centroid.total_variance(), data.double().var(0).sum())
    spread = torch.tensor([[9e15, 0.0], [-9e15, 0.0]])  # the sum is small, the squares are not
    torch.testing.assert_close(filled([spread], variance=True).total_variance(), spread.double().var(0).sum())
    data = torch.cat([data, torch.full((1, 2), float("nan"))])
    with pytest.warns(RuntimeWarning, match="1 of 4"):
        torch.testing.assert_close(filled([data]).mean, data[:3].double().mean(0))


def test_the_warning_points_here():
    with pytest.warns(RuntimeWarning, match="1 of 1") as caught:
        Centroid(2).update(torch.full((1, 2), float("nan")))
    assert caught[0].filename == __file__


def test_shrinkage():
    data = samples(50, 3, features=8) * 2
    centroid = filled([data[:1]], variance=True)
    assert torch.equal(centroid.shrunk(), torch.zeros(8, dtype=torch.float64))
    centroid.update(data[1:])
    noise = data.var(0).sum() / 50
    factor = max(0, 1 - float(noise / data.mean(0).square().sum()))
    torch.testing.assert_close(centroid.shrunk(), factor * data.mean(0))
    assert torch.equal(Centroid(3, variance=True).shrunk(), torch.zeros(3, dtype=torch.float64))


def test_shrinkage_converges_to_the_mean():
    data = samples(20000, 1)
    centroid = filled([data], variance=True)
    torch.testing.assert_close(centroid.shrunk(), centroid.mean, rtol=1e-2, atol=0)


def test_reset_copy_and_state():
    data = samples(10, 2)
    centroid = filled([data], variance=True)
    state = centroid.state()
    twin = copy.deepcopy(centroid)
    centroid.reset()
    fresh = Centroid(5, variance=True)
    assert all(torch.equal(getattr(fresh, name), buffer) for name, buffer in centroid.named_buffers())
    centroid.load_state(state)
    same(centroid, twin)
    twin.update(data)
    assert int(twin.count) == 20
    assert int(centroid.count) == 10


def test_a_state_that_does_not_fit_changes_nothing():
    centroid = filled([samples(4, 1)])
    before = centroid.state()
    with pytest.raises(StateMismatchError, match="expected the entries"):
        centroid.load_state({"mean": before["mean"]})
    with pytest.raises(StateMismatchError, match="shape"):
        centroid.load_state({**before, "mean": torch.zeros(7)})
    assert all(torch.equal(before[name], buffer) for name, buffer in centroid.named_buffers())


def test_set():
    centroid = Centroid(5)
    vector = samples(1, 0)[0]
    centroid.set(vector)
    assert torch.equal(centroid.value(), vector)
    data = samples(4, 1)
    centroid.update(data)
    torch.testing.assert_close(centroid.mean, data.mean(0))
    centroid.set(vector, count=4)
    centroid.update(data)
    torch.testing.assert_close(centroid.mean, (vector + data.mean(0)) / 2)
    before = centroid.state()
    with pytest.raises(InputError, match="5 numbers"):
        centroid.set(torch.zeros(3))
    with pytest.raises(InputError, match="NaN"):
        centroid.set(torch.full((5,), float("nan")))
    with pytest.raises(InputError, match="count is -1"):
        centroid.set(vector, count=-1)
    assert all(torch.equal(before[name], buffer) for name, buffer in centroid.named_buffers())


@pytest.mark.parametrize("shape", [(4, 3), (4, 1), (5,), (2, 2, 5), (0, 3)])
def test_tensors_of_another_shape_are_refused(shape):
    centroid = Centroid(5)
    with pytest.raises(InputError, match=r"expected embeddings of shape \(B, 5\)"):
        centroid.update(torch.ones(shape))
    assert int(centroid.count) == 0


def test_made_or_moved_in_inference_mode_it_can_be_updated_outside():
    with torch.inference_mode():
        centroid, moved = Centroid(5), Centroid(5)
        moved.to(torch.float16)
    for one in (centroid, moved):
        one.update(samples(3, 0))
        assert int(one.count) == 3


@pytest.mark.parametrize("count", [0, 4])
def test_a_moving_average_answers_with_the_centroid_put_in(count):
    centroid = Centroid(2, alpha=0.1, debias=True)
    centroid.set(torch.tensor([3.0, -1.0]), count=count)
    assert torch.allclose(centroid.value(torch.float32), torch.tensor([3.0, -1.0]))
    centroid.update(torch.tensor([[3.0, -1.0]]))
    assert torch.allclose(centroid.value(torch.float32), torch.tensor([3.0, -1.0]))


def test_it_follows_the_module_but_stays_wide():
    centroid = filled([samples(4, 1)])
    mean = centroid.mean.clone()
    centroid.half()
    assert centroid.mean.dtype == torch.float64
    assert torch.equal(centroid.mean, mean)
    assert centroid.count.dtype == torch.int64
    assert centroid.to("meta").mean.device.type == "meta"


def test_threads_lose_no_update():
    data = torch.from_numpy(np.arange(8 * 200 * 3, dtype=np.float64).reshape(8, 200, 3))
    centroid = Centroid(3)
    threads = [threading.Thread(target=lambda part=part: [centroid.update(row[None]) for row in part]) for part in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(centroid.count) == 1600
    torch.testing.assert_close(centroid.mean, data.reshape(-1, 3).mean(0), rtol=1e-12, atol=0)


def test_threads_read_and_write_the_whole():
    """Every state that was ever in is (k, ..., k): half of one is seen at once."""
    centroid = Centroid(200_000)
    states = [
        {**centroid.state(), "mean": torch.full((200_000,), float(k)), "count": torch.tensor(k)} for k in range(2)
    ]
    done = threading.Event()

    def write():
        while not done.is_set():
            for state in states:
                centroid.load_state(state)
            centroid.reset()
            centroid.set(states[1]["mean"], count=1)

    torn = 0
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        state = centroid.state()
        torn += not bool((state["mean"] == int(state["count"])).all())
    done.set()
    for thread in threads:
        thread.join()
    assert torn == 0


@pytest.mark.parametrize(
    "rule", [{}, {"weighting": "batch"}, {"alpha": 0.3, "debias": True}, {"shrinkage": "james-stein"}]
)
def test_a_step_is_an_update_and_a_reading(rule):
    stepped, updated = Centroid(5, **rule), Centroid(5, **rule)
    for seed in range(3):
        batch = samples(4, seed)
        updated.update(batch)
        assert torch.equal(stepped.step(batch), updated.value())
        same(stepped, updated)


def test_with_every_batch_its_own_centroid_threads_answer_from_it():
    """With alpha = 1 the centroid is the last batch, which a batch of another thread must not be."""
    centroid, wrong = Centroid(3, alpha=1.0), []

    def run(number):
        batch = torch.full((2, 3), float(number), dtype=torch.float64)
        wrong.extend(number for _ in range(300) if not torch.equal(centroid.step(batch), batch[0]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_centroid_merges_with_itself():
    centroid = filled([samples(4, 1)])
    centroid.merge(centroid)
    assert int(centroid.count) == 8


def test_options_that_make_no_sense():
    for options in ({"alpha": 1.5}, {"alpha": -0.1}, {"debias": True}, {"alpha": 0.1, "variance": True}):
        with pytest.raises(OptionError):
            Centroid(3, **options)
    for alpha in ("0.1", True, float("nan")):
        with pytest.raises(OptionError, match="between 0 and 1"):
            Centroid(3, alpha=alpha)
    with pytest.raises(OptionError, match="weighting is 'sampel'"):
        Centroid(3, weighting="sampel")
    with pytest.raises(OptionError, match="variance=True"):
        Centroid(3).total_variance()
    with pytest.raises(OptionError, match="moving average"):
        Centroid(3, alpha=0.1).merge(Centroid(3))
    with pytest.raises(StateMismatchError):
        Centroid(3).merge(Centroid(4))
    with pytest.raises(StateMismatchError, match="variance"):
        Centroid(3).merge(Centroid(3, variance=True))
    with pytest.raises(StateMismatchError, match="variance"):
        Centroid(3, variance=True).merge(Centroid(3))
