from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.errors import InputError, NotAdaptedError, OptionError, StateError, StateFileError, StateMismatchError

RULES = [{}, {"weighting": "batch"}, {"shrinkage": "james-stein"}]


def plain(seed: int = 0, features: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 3))


def batch(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed)) * 3 + 10


@torch.no_grad()
def fed(model, *batches, ids=None):
    for place, data in enumerate(batches):
        if ids is None:
            model(data)
        else:
            with neotta.streams(ids[place]):
                model(data)
    return model


def same(one, other):
    mine, theirs = (neotta.head(model).streams.state() for model in (one, other))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", RULES, ids=str)
@settings(max_examples=12)
@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6), order=st.randoms(use_true_random=False))
def test_merged_in_any_order_it_is_as_if_one_machine_had_seen_all(options, sizes, order):
    data = [batch(size, seed) for seed, size in enumerate(sizes)]
    machines = [fed(neotta.adapt(plain(), "neo", **options), each) for each in data]
    together = fed(neotta.adapt(plain(), "neo", **options), *data)
    order.shuffle(machines)
    cut = order.randint(0, len(machines))
    nested = [neotta.merge(some) for some in (machines[:cut], machines[cut:]) if some]
    merged = plain()
    neotta.load(merged, neotta.merge(nested))
    same(merged, together)


def test_files_are_merged_into_a_file(tmp_path):
    for place in range(3):
        neotta.save(fed(neotta.adapt(plain(), "neo"), batch(4 + place, place)), tmp_path / f"{place}")
    neotta.merge(tmp_path / f"{place}" for place in range(3)).save(tmp_path / "all")
    merged = plain()
    neotta.load(merged, tmp_path / "all")
    same(merged, fed(neotta.adapt(plain(), "neo"), *(batch(4 + place, place) for place in range(3))))


@pytest.mark.parametrize("options", RULES, ids=str)
def test_streams_of_one_name_become_one_stream(options, tmp_path):
    ids = [["a", "a", 1, "b"], ["c", 1, "a", "a"], [1, 1, 1, 1]]
    data = [batch(4, seed) for seed in range(3)]
    together = fed(neotta.adapt(plain(), "neo", streams=True, **options), *data, ids=ids)
    machines = [
        fed(neotta.adapt(plain(), "neo", streams=True, **options), each, ids=[names])
        for each, names in zip(data, ids, strict=True)
    ]
    neotta.save(machines[0], tmp_path / "first")
    merged = plain()
    neotta.load(merged, neotta.merge([machines[2], tmp_path / "first", machines[1]]))
    streams, expected = neotta.head(merged).streams, neotta.head(together).streams
    assert streams.counts() == expected.counts() == {"a": 4, 1: 6, "b": 1, "c": 1}
    for name in expected.counts():
        torch.testing.assert_close(streams.state(name), expected.state(name), rtol=1e-6, atol=1e-6)


def test_models_without_a_stream_so_far_are_merged_saved_and_loaded(tmp_path):
    empty = neotta.adapt(plain(), "neo", streams=True)
    one = fed(neotta.adapt(plain(), "neo", streams=True), batch(2, 0), ids=[["a", 7]])
    neotta.save(empty, tmp_path / "empty")
    merged = plain()
    neotta.load(merged, neotta.merge([tmp_path / "empty", one]))
    assert neotta.head(merged).streams.counts() == {"a": 1, 7: 1}
    neotta.load(merged, neotta.merge([empty, empty]))
    assert neotta.head(merged).streams.counts() == {}
    neotta.load(one, tmp_path / "empty")
    assert neotta.head(one).streams.counts() == {}


def test_a_model_with_two_heads():
    def two():
        torch.manual_seed(0)
        return nn.ModuleDict({"one": nn.Linear(5, 3), "two": nn.Linear(5, 2)})

    def run(model, *batches):
        neotta.adapt(model, "neo", head=["one", "two"])
        with torch.no_grad():
            for data in batches:
                model["one"](data), model["two"](-data)
        return model

    merged = two()
    neotta.load(merged, neotta.merge([run(two(), batch(3, 1)), run(two(), batch(5, 2))]))
    expected = run(two(), batch(3, 1), batch(5, 2))
    for name, head in neotta.heads(expected).items():
        torch.testing.assert_close(neotta.heads(merged)[name].offset(), head.offset())


def test_what_does_not_belong_together_is_refused(tmp_path):
    first = fed(neotta.adapt(plain(), "neo"), batch(4, 0))
    before = neotta.head(first).streams.state()
    cases = {
        "other head weights": neotta.adapt(plain(seed=1), "neo"),
        "expected neo ": neotta.adapt(plain(), "neo-mse"),
        "shrinkage='james-stein'": neotta.adapt(plain(), "neo", shrinkage="james-stein"),
        "many streams": neotta.adapt(plain(), "neo", streams=True),
    }
    cases["another reference"] = neotta.adapt(plain(), "neo", reference=neotta.reference(plain(), batch(80, 5)))
    for match, other in cases.items():
        with pytest.raises(StateMismatchError, match=match):
            neotta.merge([first, other])
    with pytest.raises(StateFileError, match="no state file"):
        neotta.merge([first, tmp_path / "nowhere"])
    with pytest.raises(NotAdaptedError):
        neotta.merge([first, plain()])
    with pytest.raises(InputError, match="nothing to merge"):
        neotta.merge([])
    for alone in (first, str(first), neotta.adapt(plain())):
        with pytest.raises(InputError, match="a list of states"):
            neotta.merge(alone)
    with pytest.raises(StateError, match="got int"):
        neotta.merge([first, 3])
    neotta.create("lame", plain()).save(tmp_path / "adapter")
    with pytest.raises(StateMismatchError, match="of an adapter"):
        neotta.merge([tmp_path / "adapter"])
    assert torch.equal(before, neotta.head(first).streams.state())


def test_moving_averages_are_refused():
    with pytest.raises(OptionError, match="order of its batches"):
        neotta.merge([neotta.adapt(plain(), "neo-continual")])


def test_a_merged_state_is_checked_like_a_file():
    merged = neotta.merge([neotta.adapt(plain(), "neo")])
    with pytest.raises(StateMismatchError, match="the state was saved with other head weights"):
        neotta.load(plain(seed=1), merged)
