"""Replicas that share streams through a store: nothing is lost but what docs/your-server.md names."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.redis_server import redis_server  # noqa: F401
from support.stream_models import alone, answer, batch, many

import neotta
from neotta.deploy import RedisStore, SharedStreams, SQLiteStore
from neotta.errors import InputError, OptionError, StateFileError, StorageError

METHODS = ["neo", "neo-continual", "neo-stream"]


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path):
    """Opens the same store again and again, as replicas do."""
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "shared.sqlite")
    url = request.getfixturevalue("redis_server").url
    return lambda: RedisStore(url)


def count(replica, stream):
    return neotta.head(replica.model).streams.counts().get(stream)


def stored(store, stream):
    """How many samples of a stream the store has seen."""
    fresh = SharedStreams(many(), store())
    fresh(batch(1), stream, adapt=False)
    return count(fresh, stream)


def test_a_store_keeps_the_highest_version(store):
    one, other = store(), store()
    assert one.read("a", 0) is None
    assert one.write("a", 3, b"first")
    assert not other.write("a", 3, b"as high")
    assert not other.write("a", 2, b"lower")
    assert other.read("a", 2) == (3, b"first")
    assert other.read("a", 3) is None
    assert other.write("a", 10, b"higher")
    assert one.read("a", 9) == (10, b"higher")


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=10)
@given(plan=st.lists(st.tuples(st.integers(0, 1), st.lists(st.sampled_from(["a", "b", 7]), min_size=1)), max_size=8))
def test_replicas_in_turn_answer_as_one_model_would(method, plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "shared.sqlite"
    replicas = [SharedStreams(many(method), SQLiteStore(path)) for _ in range(2)]
    single = many(method)
    for seed, (replica, ids) in enumerate(plan):
        assert torch.equal(replicas[replica](batch(len(ids), seed), ids), answer(single, batch(len(ids), seed), ids))


def test_no_update_is_lost_when_replicas_write_at_once(store):
    replicas = [SharedStreams(many(), store()) for _ in range(4)]

    def work(replica):
        for seed in range(20):
            replica(batch(3, seed), ["gate", "gate", "dock"])

    threads = [threading.Thread(target=work, args=(replica,)) for replica in replicas]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (stored(store, "gate"), stored(store, "dock")) == (160, 80)
    first = replicas[0](batch(1), "gate", adapt=False)
    assert all(torch.equal(first, replica(batch(1), "gate", adapt=False)) for replica in replicas)


def test_who_comes_second_reads_the_new_state_and_learns_again(store):
    class Late:
        """Lets another replica write between reading and writing."""

        def __init__(self, real):
            self.read, self._write, self.done = real.read, real.write, False

        def write(self, *arguments):
            if not self.done:
                self.done = True
                other(batch(5, 2), "gate")
            return self._write(*arguments)

    other, single = SharedStreams(many("neo-stream"), store()), many("neo-stream")
    late = SharedStreams(many("neo-stream"), Late(store()))
    logits = late(torch.cat([batch(2, 3), batch(2, 4)]), ["gate", "dock", "gate", "dock"])
    answer(single, batch(5, 2), ["gate"] * 5)
    expected = answer(single, torch.cat([batch(2, 3), batch(2, 4)]), ["gate", "dock", "gate", "dock"])
    torch.testing.assert_close(logits, expected)


def test_predicting_alone_changes_nothing(store):
    replica = SharedStreams(many(), store())
    plain = replica(batch(2), "gate", adapt=False)
    assert stored(store, "gate") is None
    replica(batch(9), "gate")
    adapted = replica(batch(2), "gate", adapt=False)
    assert stored(store, "gate") == 9
    assert not torch.equal(plain, adapted)


def test_a_forgotten_stream_comes_back_from_the_store(store):
    replica, single = SharedStreams(many(), store()), many()
    for seed in range(3):
        expected = answer(single, batch(4, seed), ["gate"] * 4)
        assert torch.equal(replica(batch(4, seed), "gate"), expected)
        replica.forget("gate")
        assert count(replica, "gate") is None
    replica.forget("never seen")


def test_a_reset_reaches_every_replica(store):
    one, other = (SharedStreams(many(), store()) for _ in range(2))
    one(batch(9), "gate")
    other(batch(9), "gate")
    one.reset("gate")
    assert torch.equal(other(batch(2), "gate"), answer(many(), batch(2), ["gate"] * 2))
    assert count(other, "gate") == 2


@pytest.mark.parametrize("damage", ["bit", "short", "nan"])
def test_a_damaged_state_fails_alone_until_it_is_reset(damage, store):
    replica = SharedStreams(many(), store())
    replica(batch(2), ["gate", "dock"])
    key = replica._key("gate")
    version, state = store().read(key, 0)
    if damage == "nan":
        broken = SharedStreams(many(), store())
        broken._read(["gate"])
        neotta.head(broken.model).streams.table[1] = float("nan")
        state = broken._packed("gate")
    else:
        state = state[:-9] if damage == "short" else bytes([state[0] ^ 1]) + state[1:]
    assert store().write(key, version + 1, state)
    with pytest.raises(StateFileError, match="'gate' is damaged"):
        replica(batch(2), ["gate", "dock"])
    replica(batch(1), "dock")
    assert stored(store, "dock") == 2
    replica.reset("gate")
    replica(batch(2), ["gate", "dock"])
    assert stored(store, "gate") == 1


def test_models_that_differ_do_not_meet(store):
    for method in METHODS:
        SharedStreams(many(method), store())(batch(3), "gate")
    SharedStreams(many(), store(), prefix="other")(batch(3), "gate")
    assert stored(store, "gate") == 3


def test_an_emptied_redis_gets_the_newer_memory_back(redis_server):  # noqa: F811
    old, new = (SharedStreams(many(), RedisStore(redis_server.url)) for _ in range(2))
    old(batch(10), "gate")
    for seed in range(5):
        new(batch(10, seed), "gate")
    redis_server.stop()
    redis_server.start()
    old(batch(1), "gate")  # it knows no better
    new.flush()
    assert stored(lambda: RedisStore(redis_server.url), "gate") == 60
    old(batch(1), "gate")
    assert count(old, "gate") == 61


def test_without_redis_streams_learn_in_memory(redis_server):  # noqa: F811
    replica = SharedStreams(many(), RedisStore(redis_server.url))
    replica(batch(4), "gate")
    redis_server.stop()
    with pytest.warns(RuntimeWarning, match="stays in memory until the store is back"):
        replica(batch(2), ["gate", "dock"])
    replica(batch(2), ["gate", "dock"])  # one warning is enough
    with pytest.raises(StorageError):
        replica.reset("gate")
    redis_server.start()
    replica(batch(1), "gate")
    assert stored(lambda: RedisStore(redis_server.url), "gate") == 7
    assert stored(lambda: RedisStore(redis_server.url), "dock") is None
    replica.flush()
    assert stored(lambda: RedisStore(redis_server.url), "dock") == 2
    redis_server.stop()
    with pytest.warns(RuntimeWarning, match="stays in memory"):  # for each time
        replica(batch(1), "gate")


def test_what_is_no_state_in_redis_is_written_over(redis_server):  # noqa: F811
    redis = pytest.importorskip("redis", reason="needs the package redis")
    replica = SharedStreams(many(), RedisStore(redis_server.url))
    with redis.Redis.from_url(redis_server.url) as client:
        for version in ("high", "9" * 5000, "9" * 17, "-1", "1.5"):
            client.hset(replica._key("gate"), mapping={"version": version, "state": "none"})
            assert RedisStore(redis_server.url).read(replica._key("gate"), 0) is None
        client.set(replica._key("dock"), "no hash")
    replica(batch(2), "gate")
    assert stored(lambda: RedisStore(redis_server.url), "gate") == 2
    with pytest.warns(RuntimeWarning, match="WRONGTYPE"):
        replica(batch(2), "dock")
    assert count(replica, "dock") == 2


@pytest.mark.parametrize(
    ("version", "state"),
    [(1e300, b"x"), (2**63 - 1, b"x"), ("text", b"x"), (b"9", b"x"), (-1, b"x"), (2.5, b"x"), (7, 7), (7, "text")],
)
def test_what_is_no_version_or_no_state_in_sqlite_is_written_over(version, state, tmp_path):
    path = tmp_path / "shared.sqlite"
    replica = SharedStreams(many(), SQLiteStore(path))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO shared VALUES (?, ?, ?)", (replica._key("gate"), version, state))
        database.commit()
    replica(batch(2), "gate")
    replica(batch(3), "gate")
    assert stored(lambda: SQLiteStore(path), "gate") == 5


REPLICA = """
import sys
from support.stream_models import batch, many
from neotta.deploy import SharedStreams, SQLiteStore
replica = SharedStreams(many(), SQLiteStore(sys.argv[1]))
for seed in range(100000):
    replica(batch(2, seed), "gate")
    print(seed, flush=True)
"""


@pytest.mark.slow
def test_a_killed_replica_loses_nothing_that_was_answered(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    path = tmp_path / "shared.sqlite"
    words = [sys.executable, "-c", REPLICA, str(path)]
    replicas = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for _ in range(30):
        replicas[0].stdout.readline()
    for replica in replicas:
        replica.kill()
    answered = 30 + sum(len(replica.communicate()[0].splitlines()) for replica in replicas)
    assert 2 * answered <= stored(lambda: SQLiteStore(path), "gate") <= 2 * (answered + 2)


def test_wrong_models_and_places(tmp_path):
    store = SQLiteStore(tmp_path / "shared.sqlite")
    for model in (alone(), many(capacity=4)):
        with pytest.raises(OptionError, match="without capacity and folder"):
            SharedStreams(model, store)
    with pytest.raises(InputError, match="2 stream ids for a batch of 3"):
        SharedStreams(many(), store)(batch(3), ["a", "b"])
    with pytest.raises(StorageError, match="cannot be opened"):
        SQLiteStore(tmp_path / "nowhere" / "shared.sqlite")
