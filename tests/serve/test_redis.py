"""Cameras that replicas share through a real Redis server."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.redis_server import Redis
from support.serving import pictures, serving, small_engine, wait_until
from support.small_model import network

import neotta
from neotta.deploy.serve.classifier import Classifier, Job
from neotta.deploy.serve.redis_share import RedisShare
from neotta.deploy.serve.shared_moments import Shared, difference, join, shared_part, with_shared
from neotta.errors import OptionError, StorageError

pytest.importorskip("redis")


def engine_on(redis, rule="neo-stream", **options):
    engine = small_engine(rule, **options)
    engine.share(redis.url)
    return engine


def moments(values, weights):
    """The moments of weighted samples, (n, D)."""
    weights = weights[:, None]
    total = weights.sum()
    mean = (weights * values).sum(0) / total
    away = values - mean
    return Shared(
        np.array([total]), mean, (weights * away**2).sum(0), (weights * away**3).sum(0), np.array([len(values), total])
    )


numbers = st.integers(0, 2**32 - 1)


@given(numbers, st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=30)
def test_moments_join_exactly_and_differences_undo_it(seed, first, second):
    generator = np.random.default_rng(seed)
    values, weights = generator.normal(3, 2, (first + second, 4)), generator.uniform(0.1, 1, first + second)
    one, other = moments(values[:first], weights[:first]), moments(values[first:], weights[first:])
    both = moments(values, weights)
    for found, expected in ((join(one, other), both), (difference(both, one), other), (join(other, one), both)):
        for part, whole in zip(found, expected, strict=True):
            np.testing.assert_allclose(part, whole, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("shape", ["by class", "in all"])
def test_the_server_joins_as_numpy_does(redis, shape):
    generator = np.random.default_rng(1)
    share = RedisShare(redis.url, f"law {shape}")
    total = None
    for _ in range(5):
        part = moments(generator.normal(2, 3, (7, 6)), generator.uniform(0.1, 1, 7))
        if shape == "in all":
            part = part._replace(second=part.second.sum(keepdims=True), third=np.zeros(0))
        other = RedisShare(redis.url, f"law {shape}")  # another replica each time
        kept, fresh = other.add({"gate": part})["gate"]
        other.close()
        total = part if total is None else join(total, part)
        assert not fresh
        for found, expected in zip(kept, total, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-13)
    (found,) = share.fetch(["gate"]).values()
    assert found.sums[0] == 35
    share.close()


@pytest.mark.parametrize("rule", ["neo", "neo-stream"])
def test_replicas_add_up_and_never_overwrite(redis, rule):
    replicas = [Classifier(engine_on(redis, rule)) for _ in range(2)]
    images = pictures(64, seed=5, shift=0.5)
    for index, part in enumerate(np.split(images, 8)):
        replicas[index % 2].run([Job(part, f"{rule} gate")])
    for replica in replicas:
        replica.run([Job(images[:1], f"{rule} gate")])  # and learns what the other one added
    counts = [replica.engine.counts_of(f"{rule} gate") for replica in replicas]
    assert counts == [65, 66]
    third = engine_on(redis, rule)
    third.welcome([f"{rule} gate"])
    assert third.counts_of(f"{rule} gate") == 66
    if rule == "neo":  # the mean over all time is everything: as one model that saw all
        model = neotta.adapt(network().model.eval(), "neo")
        with torch.inference_mode():
            model(torch.from_numpy(np.concatenate([images, images[:1], images[:1]])))
        mean = next(iter(third.memories.values())).centroid("neo gate").mean
        torch.testing.assert_close(mean, neotta.head(model).centroid.mean, rtol=1e-4, atol=1e-5)
    for each in (*[replica.engine for replica in replicas], third):
        each.close()


def test_what_is_not_shared_stays():
    engine = small_engine()
    Classifier(engine).run([Job(pictures(32, seed=3), "a")])
    (memory,) = engine.memories.values()
    state = {name: values[0].numpy() for name, values in memory.cache.read("a").items()}
    same = with_shared(memory.rule, state, shared_part(memory.rule, state))
    for name, values in state.items():
        np.testing.assert_allclose(same[name], values, rtol=1e-12, atol=1e-12)


def test_an_addition_that_was_sent_twice_counts_once(redis, monkeypatch):
    share = RedisShare(redis.url, "twice")
    part = moments(np.ones((4, 3)), np.ones(4))
    run = share._run

    def lost(states):
        run(states)  # it came
        raise share._redis.ConnectionError("the answer is lost")

    monkeypatch.setattr(share, "_run", lost)
    assert share.add({"gate": part}) == {}
    monkeypatch.setattr(share, "_run", run)
    share._retry = 0.0
    more = join(part, moments(np.full((2, 3), 4.0), np.ones(2)))
    kept, _ = share.add({"gate": more})["gate"]
    np.testing.assert_allclose(kept.sums, more.sums)
    np.testing.assert_allclose(kept.mean, more.mean)
    share.close()


def test_a_reset_reaches_other_replicas(redis):
    one, other = engine_on(redis), engine_on(redis)
    for engine in (one, other):
        Classifier(engine).run([Job(pictures(8), "reset")])
    assert other.counts_of("reset") == 16
    one.reset("reset")
    assert "reset" not in engine_on(redis).counts()
    Classifier(other).run([Job(pictures(4), "reset")])
    assert other.counts_of("reset") == 4
    snapshot = other.snapshot("reset")
    Classifier(other).run([Job(pictures(4), "reset")])
    other.restore("reset", snapshot)
    Classifier(one).run([Job(pictures(2), "reset")])
    assert one.counts_of("reset") == 6
    one.close()
    other.close()


def test_rules_that_do_not_add_up_and_servers_that_are_not_there_are_refused(redis):
    with pytest.raises(OptionError, match="moving average"):
        small_engine("neo-continual").share(redis.url)
    with pytest.raises(StorageError, match=r"cannot be reached at host\.invalid:1/0"):
        small_engine().share("redis://user:secret@host.invalid:1/0")


def test_two_servers_with_the_same_camera(redis):
    with serving(engine_on(redis)) as first, serving(engine_on(redis)) as second:
        for index in range(6):
            (first, second)[index % 2].infer(pictures(4, seed=index), stream="both")
        assert {client.service.engine.counts_of("both") for client in (first, second)} <= {20, 24}
        assert "both" in second.get("/api/cameras")[1]["cameras"][0]["id"]
    engine = engine_on(redis)
    engine.welcome(["both"])
    assert engine.counts_of("both") == 24
    engine.close()


@pytest.mark.slow
def test_redis_gone_for_ten_seconds(tmp_path):
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    redis = Redis(tmp_path)
    redis.start()
    try:
        with serving(engine_on(redis), durable=0.2) as client:
            client.infer(pictures(4), stream="gate")
            wait_until(lambda: not client.service.classifier.dirty)
            redis.stop()
            slowest, until, sent = 0.0, time.monotonic() + 10, 4
            while time.monotonic() < until:
                started = time.monotonic()
                client.infer(pictures(2), stream="gate")
                client.infer(pictures(1), stream="new while it was away")
                slowest, sent = max(slowest, time.monotonic() - started), sent + 2
                time.sleep(0.2)
            assert slowest < 5
            assert client.service.engine.counts_of("gate") == sent
            redis.start()
            wait_until(lambda: not client.service.classifier.dirty)
            other = engine_on(redis)
            other.welcome(["gate", "new while it was away"])
            assert other.counts_of("gate") == sent
            assert other.counts_of("new while it was away") == (sent - 4) // 2
            other.close()
    finally:
        redis.stop()
