"""The table of streams itself: rows in memory, the others in a store, as one dictionary would hold them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neotta.errors import InputError, OptionError
from neotta.neo.rules import MeanRule
from neotta.neo.sqlite_store import SqliteStore
from neotta.neo.stream_cache import StreamCache, record_type

FIELDS = MeanRule().fields(3)


def table(folder=None, capacity=None):
    store = None if folder is None else SqliteStore(folder, record_type(FIELDS), "me")
    return StreamCache(FIELDS, capacity, store, None)


def states(*numbers):
    """States of as many streams; the number tells them apart."""
    count = torch.tensor(numbers, dtype=torch.int64)
    return {
        "count": count,
        "batches": count + 1,
        "rejected": count + 2,
        "mean": count[:, None].float() + torch.arange(3) / 8,
        "scatter": count / 3.0,
        "discount": count / 7.0,
    }


def held(cache):
    """What a table holds, by the numbers of `states`; each stream is whole, wherever it is asked for."""
    ids, found = cache.everything()
    numbers = found["count"].tolist()
    for name, values in states(*numbers).items():
        assert torch.equal(found[name], values.to(found[name].dtype)), name
    assert cache.counts() == dict(zip(ids, numbers, strict=True))
    return dict(zip(ids, numbers, strict=True))


NAMES = st.integers(0, 12) | st.sampled_from("abc")
STEPS = st.tuples(
    st.sampled_from(["write", "read", "forget", "clear", "replace", "flush", "admit"]),
    st.lists(NAMES, unique=True, min_size=1, max_size=4),
)


@settings(max_examples=40)
@given(st.sampled_from([None, 4, 9]), st.lists(STEPS, max_size=25))
def test_a_table_is_a_dictionary(tmp_path_factory, capacity, steps):
    cache = table(None if capacity is None else tmp_path_factory.mktemp("streams"), capacity)
    expected = {}
    for turn, (step, names) in enumerate(steps, 1):
        if step == "write":
            for place, name in enumerate(names):
                cache.write(name, states(10 * turn + place))
                expected[name] = 10 * turn + place
        elif step == "read":
            for name in names:
                found = cache.read(name)
                assert (found is None) == (name not in expected)
                assert found is None or found["count"].tolist() == [expected[name]]
        elif step == "forget":
            cache.forget(names[0])
            expected.pop(names[0], None)
        elif step == "clear":
            cache.forget()
            expected = {}
        elif step == "replace":
            numbers = [10 * turn + place for place in range(len(names))]
            cache.replace(names, states(*numbers))
            expected = dict(zip(names, numbers, strict=True))
        elif step == "flush" and capacity is not None:
            cache.flush(names)
            cache.flush()
        elif step == "admit":
            rows = cache.admit(names, ())
            assert [row > 0 for row in rows] == [name in expected for name in names]
            assert cache.count[rows].tolist() == [expected.get(name, 0) for name in names]
        assert held(cache) == expected
        assert capacity is None or len(cache._rows) <= capacity


def test_new_streams_begin_at_zero_or_where_they_are_told():
    cache = table()
    cache.write("old", states(5))
    cache.forget("old")  # its row is used again
    rows = cache.admit(["a", "b"], ["a"], start=lambda: {"mean": torch.tensor([1.0, 2.0, 3.0])})
    assert rows[1] == 0
    assert cache.rows(torch.tensor(rows))[3].tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    assert all(
        not values[0].any()
        for name, values in zip(FIELDS, cache.rows(torch.tensor(rows)), strict=True)
        if name != "mean"
    )
    cache.admit(["c"], ["c"])
    assert not any(values.any() for values in cache.rows(torch.tensor([cache._rows["c"]])))
    cache.admit(["a"], ["a"], start=lambda: pytest.fail("it exists"))


def test_rows_are_set_and_read_in_order():
    cache = table()
    rows = torch.tensor(cache.admit(list("abc"), list("abc")))
    cache.set_rows(rows, states(1, 2, 3).values())
    assert held(cache) == {"a": 1, "b": 2, "c": 3}
    assert cache.newest(2)[0].tolist() == [3, 2]
    assert cache.newest(9)[0].tolist() == [3, 2, 1]
    assert cache.rows(rows.flip(0))[0].tolist() == [3, 2, 1]


@pytest.mark.parametrize("number", [63, 64, 65, 600])
def test_a_table_grows_and_keeps_what_it_holds(number, tmp_path):
    for cache in (table(), table(tmp_path / "all", number), table(tmp_path / "few", number - 1)):
        for start in range(0, number, 25):
            some = range(start, min(start + 25, number))
            cache.set_rows(torch.tensor(cache.admit(some, some)), states(*some).values())
        assert held(cache) == {each: each for each in range(number)}
        assert cache.capacity is None or len(cache.count) <= max(64, cache.capacity + 1)


def test_what_is_used_stays_and_the_oldest_go(tmp_path):
    cache = table(tmp_path, 3)
    for place, name in enumerate("abc"):
        cache.write(name, states(place))
    cache.admit(["a"], ())
    cache.write("d", states(7))
    assert list(cache._rows) == ["c", "a", "d"]
    cache.admit(["c", "b", "a"], ())  # all but d
    assert set(cache._rows) == {"a", "b", "c"}
    assert held(cache) == {"a": 0, "b": 1, "c": 2, "d": 7}
    with pytest.raises(InputError, match="a batch of 4 streams does not fit into a capacity of 3"):
        cache.admit(list("abcd"), ())


def test_many_go_at_once_from_a_large_table(tmp_path):
    cache = table(tmp_path, 80)
    cache.admit(range(80), range(80))
    cache.admit([80], [80])
    assert len(cache._rows) == 71, "an eighth, to write less often"
    assert next(iter(cache._rows)) == 10


def test_capacity_and_store_come_together(tmp_path):
    for folder, capacity in ((None, 3), (tmp_path, None)):
        with pytest.raises(OptionError, match="set both"):
            table(folder, capacity)
    for place, capacity in enumerate((0, -1, 1.5, "3")):
        with pytest.raises(OptionError, match="expected an integer, at least 1"):
            table(tmp_path / str(place), capacity)
    assert table(tmp_path / "one", 1).capacity == 1
    with pytest.raises(OptionError, match="no folder"):
        table().flush()


def test_copies_hold_the_same_and_are_apart(tmp_path):
    cache = table()
    for place, name in enumerate("abc"):
        cache.write(name, states(place))
    for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert held(twin) == {"a": 0, "b": 1, "c": 2}
        assert len(twin.count) == 4, "only the rows in use"
        twin.write("d", states(9))
        assert held(twin) == {"a": 0, "b": 1, "c": 2, "d": 9}
    assert held(cache) == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(OptionError, match="two models would write into one folder"):
        copy.copy(table(tmp_path, 2))


def test_kinds_of_numbers_and_moves():
    cache = table()
    kinds = {name: buffer.dtype for name, buffer in cache.named_buffers()}
    assert kinds == {
        **dict.fromkeys(("count", "batches", "rejected"), torch.int64),
        **dict.fromkeys(("scatter", "discount"), torch.float64),
        "mean": torch.float32,
    }
    cache.write("a", states(3))
    cache.half().to("cpu")
    assert {name: buffer.dtype for name, buffer in cache.named_buffers()} == kinds
    assert held(cache) == {"a": 3}
    moved = cache.to("meta")
    assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}
    assert {len(buffer) for buffer in moved.buffers()} == {2}
    assert {name: buffer.dtype for name, buffer in moved.named_buffers()} == kinds
    assert cache.state_dict() == {}


def test_a_table_made_for_inference_is_updated_outside_it():
    with torch.inference_mode():
        cache = table()
        cache.admit(range(70), range(70))
    cache.write(3, states(4))
    assert cache.read(3)["count"].tolist() == [4]


def test_the_record_of_a_stream():
    assert record_type(FIELDS).descr == [
        ("count", "<i8"),
        ("batches", "<i8"),
        ("rejected", "<i8"),
        ("mean", "<f4", (3,)),
        ("scatter", "<f8"),
        ("discount", "<f8"),
    ]


def test_a_stream_that_went_to_the_store_is_read_from_it(tmp_path):
    cache = table(tmp_path, 2)
    for place, name in enumerate("abcd", 1):
        cache.write(name, states(place))
    for place, name in enumerate("abcd", 1):
        assert name not in cache._rows or place > 2
        assert {key: values.tolist() for key, values in cache.read(name).items()} == {
            key: values.tolist() for key, values in states(place).items()
        }
    assert cache.read("e") is None


def test_streams_of_a_batch_stay_while_others_make_room_for_its_new_ones(tmp_path):
    cache = table(tmp_path, 80)
    cache.set_rows(torch.tensor(cache.admit(range(80), range(80))), states(*range(80)).values())
    rows = cache.admit(range(5, 81), [80])
    assert len(set(rows)) == 76
    assert cache.count[rows].tolist() == [*range(5, 80), 0]
    assert not set(range(5)) & set(cache._rows)
