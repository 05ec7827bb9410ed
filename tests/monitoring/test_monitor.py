from __future__ import annotations

import copy
import functools
import itertools
import math
import sys
import threading
import urllib.request

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import neotta
from neotta.errors import InputError, MissingExtraError, ModelError, NotAdaptedError, OptionError, UnknownNameError
from neotta.monitoring import ChangeDetector
from neotta.monitoring.change import Spread
from neotta.monitoring.library import variance_of
from neotta.monitoring.rank_evidence import RankEvidence, ranks

D = 6
independent = functools.partial(neotta.Monitor, unit="sample")  # the samples below are independent draws


def model(seed=0):
    torch.manual_seed(seed)
    return neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), "neo", head="1")


def cloud(n, centre=0.0, seed=0, spread=1.0):
    return centre + spread * np.random.default_rng(seed).normal(size=(n, D))


def batch(rows):
    return torch.as_tensor(rows, dtype=torch.float32)


def feed(net, rows, size=16):
    return torch.cat([net(part) for part in torch.split(batch(rows), size)])


@pytest.fixture(scope="module")
def embeddings():
    """Embeddings of the bundled digits, clean and in fog."""
    from neotta.data import corrupt, digits

    data = digits("test")
    net, preprocess, *_ = neotta.load_model("digits")
    encoder, _ = neotta.split(net)
    clean = [data.read(index) for index in range(len(data))]
    fog = [corrupt(image, "fog", 5, "cifar", 0, image_id=str(i)) for i, image in enumerate(clean[:200])]
    with torch.inference_mode():
        return {
            name: encoder(preprocess.batch(np.stack(images))).numpy()
            for name, images in (("clean", clean), ("fog", fog))
        }


# ---- ranks and bets


def statistic(numbers, threshold=1e300, tails=2, pieces=1):
    """R_n, and when the alarm came, for numbers fed in pieces."""
    evidence, seen, start = RankEvidence(threshold, tails), np.empty(0), 0
    for part in np.array_split(np.asarray(numbers, dtype=float), pieces):
        alarm = evidence.observe(*ranks(part, np.sort(seen), np.zeros(len(part)))[:tails])
        if alarm is not None:
            return math.exp(evidence.log_r), start + alarm.position + 1
        seen, start = np.append(seen, part), start + len(part)
    return math.exp(evidence.log_r), None


@pytest.mark.parametrize("tails", [1, 2])
def test_the_statistic_grows_by_one_a_sample_in_the_mean_over_all_orders(tails):
    for n in range(1, 7):
        values = [statistic(order, tails=tails)[0] for order in itertools.permutations(range(n))]
        assert np.mean(values) == pytest.approx(n, rel=1e-12)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_equal_numbers_only_lower_the_statistic(numbers):
    values = [statistic(order)[0] for order in itertools.permutations(numbers)]
    assert np.mean(values) <= len(numbers) * (1 + 1e-12)


@pytest.mark.parametrize("threshold", [8.0, 15.0])
def test_the_bound_on_false_alarms_holds_exactly_over_all_orders(threshold):
    n = 7
    stops = [statistic(order, threshold)[1] for order in itertools.permutations(range(n))]
    assert any(stops)
    for until in range(1, n + 1):
        early = np.mean([stop is not None and stop <= until for stop in stops])
        assert early <= until / threshold


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 7))
def test_the_statistic_does_not_depend_on_how_numbers_are_batched(numbers, pieces):
    assert statistic(numbers, pieces=min(pieces, len(numbers)))[0] == pytest.approx(statistic(numbers)[0], rel=1e-9)


def test_numbers_beyond_all_others_raise_an_alarm_that_knows_when_it_began():
    calm = np.random.default_rng(0).normal(size=300)
    evidence = RankEvidence(1e6, 2)
    assert evidence.observe(*ranks(calm, np.empty(0), np.zeros(300))) is None
    jump = 10 + np.arange(30.0)
    alarm = evidence.observe(*ranks(jump, np.sort(calm), np.zeros(30)))
    assert alarm.position < 10
    assert alarm.since == alarm.position + 1
    assert evidence.share == 1.0


# ---- the detector


def test_spread_is_the_distance_of_mahalanobis_where_all_directions_are_kept():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(400, 5)) @ rng.normal(size=(5, 5))
    spread = Spread(reference)
    rows = rng.normal(size=(10, 5))
    offsets = rows - reference.mean(0)
    inverse = np.linalg.inv(np.cov(reference.T))
    np.testing.assert_allclose(spread.distance(rows), np.einsum("ni,ij,nj->n", offsets, inverse, offsets), rtol=1e-6)
    np.testing.assert_allclose(spread.precision(offsets), offsets @ inverse, rtol=1e-5, atol=1e-8)


def alarms(source, rate, n, seeds):
    found = 0
    for seed in range(seeds):
        rows = source(np.random.default_rng(seed), n)
        detector = ChangeDetector(rows.shape[1], false_alarm_rate=rate, warmup=64, memory=128)
        found += any(detector.observe(rows[start : start + 100]) for start in range(0, n, 100))
    return found


SOURCES = {
    "normal": lambda rng, n: rng.normal(size=(n, D)),
    "heavy tails": lambda rng, n: rng.standard_t(1.5, size=(n, D)),
    "two values": lambda rng, n: rng.integers(0, 2, size=(n, D)).astype(float),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SOURCES, "digits"])
def test_false_alarms_are_as_rare_as_stated(kind, embeddings):
    def shuffled(rng, n):
        return embeddings["clean"][rng.permutation(len(embeddings["clean"]))[:n]]

    rate, n, seeds = 2e-4, 600, 50
    expected = seeds * rate * n
    limit = expected + 3 * math.sqrt(expected)
    assert alarms(SOURCES.get(kind, shuffled), rate, n, seeds) <= limit


def test_without_a_rate_to_keep_there_would_be_alarms():
    assert alarms(SOURCES["normal"], 0.05, 1000, 5) == 5


def test_a_stream_of_one_and_the_same_embedding_raises_no_alarm():
    for value in (0.0, 0.1):
        detector = ChangeDetector(D, false_alarm_rate=1e-2)
        assert detector.observe(np.full((2000, D), value)) is None


def test_fog_is_noticed_within_a_few_samples(embeddings):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        clean, fog = (rng.permutation(embeddings[name])[:400] for name in ("clean", "fog"))
        detector = ChangeDetector(64)
        assert detector.observe(clean) is None
        alarm = detector.observe(fog)
        assert alarm.position < 25


def test_a_small_shift_of_all_samples_is_noticed():
    wide = ChangeDetector(64)
    rng = np.random.default_rng(0)
    assert wide.observe(rng.normal(size=(1500, 64))) is None
    alarm = wide.observe(0.25 + rng.normal(size=(400, 64)))  # a quarter of the spread, in every coordinate
    assert alarm is not None
    assert alarm.position < 150


def test_the_size_of_batches_does_not_matter_to_the_distance_test():
    rows = np.concatenate([cloud(300), cloud(60, 6.0, seed=1)])
    found = set()
    for size in (1, 7, 64, 360):
        detector = ChangeDetector(D)
        for start in range(0, len(rows), size):
            alarm = detector.observe(rows[start : start + size])
            if alarm is not None:
                found.add(start + alarm.position)
                break
    assert len(found) == 1
    assert 300 <= found.pop() < 320


def test_generations_follow_each_other_and_memory_stays_bounded():
    detector = ChangeDetector(D, warmup=32, memory=64)
    for seed in range(20):
        detector.observe(cloud(50, seed=seed))
    assert len(detector._generations) == 2
    assert max(len(test._tested) for _, test in detector._generations) <= 64
    assert len(detector.recent(10**6)) == 256


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"false_alarm_rate": 0.0}, "false_alarm_rate"),
        ({"false_alarm_rate": 1.0}, "false_alarm_rate"),
        ({"warmup": 1}, "warmup"),
        ({"memory": 10}, "memory"),
        ({"false_alarm_rate": "rare"}, "false_alarm_rate"),
        ({"warmup": 64.5}, "warmup"),
        ({"on_change": 3}, "on_change"),
        ({"action": "nothing"}, "action"),
        ({"action": "nearest"}, "library"),
    ],
)
def test_wrong_options_are_named(options, word):
    with pytest.raises(OptionError, match=word):
        independent(model(), **options)


# ---- the monitor


def test_a_monitor_sees_what_the_head_sees_and_changes_no_answer():
    net, other = model(), model()
    rows = cloud(100, 2.0)
    with independent(net) as monitor:
        assert torch.equal(feed(net, rows), feed(other, rows))
        assert monitor.samples == 100
        np.testing.assert_allclose(monitor.mean.numpy(), batch(rows).double().mean(0).numpy(), rtol=1e-12)
    feed(net, rows)
    assert monitor.samples == 100


def test_the_status_says_what_was_seen():
    net = model()
    monitor = independent(net)
    rows = batch(cloud(200, 3.0)).double().numpy()
    feed(net, rows)
    status = monitor.status()
    assert (status.samples, status.current, status.rejected, status.alarms) == (200, 200, 0, 0)
    assert status.ready
    assert 0.0 <= status.evidence < 1.0
    assert status.origin.distance == pytest.approx(np.linalg.norm(rows.mean(0)))
    assert status.origin.noise == pytest.approx(math.sqrt(rows.var(0, ddof=1).sum() / 200))
    assert status.origin.ratio == pytest.approx(status.origin.distance / status.origin.noise)
    assert status.model.distance == pytest.approx(0.0, abs=1e-6)
    older, newer = rows[:100], rows[100:]
    assert status.speed == pytest.approx(np.linalg.norm(newer.mean(0) - older.mean(0)))
    assert 0.2 < status.speed / status.speed_noise < 3.0


def test_drift_has_a_speed():
    monitor = independent(false_alarm_rate=1e-9)
    drift = np.arange(256)[:, None] * 0.1 * np.eye(D)[0]  # 10 in 100 samples
    monitor.observe(cloud(256, spread=0.1) + drift)
    assert monitor.status().speed == pytest.approx(10.0, rel=0.05)


def test_an_alarm_calls_back_and_begins_a_new_domain():
    net, seen = model(), []
    monitor = independent(net, on_change=seen.append)
    feed(net, cloud(300))
    feed(net, cloud(100, 6.0, seed=1))
    assert [change.action for change in seen] == ["none"]
    assert seen == monitor.changes
    (change,) = seen
    assert 300 < change.sample < 330
    assert abs(change.sample - change.since - 300) < 5
    assert change.moved.ratio > 10
    status = monitor.status()
    assert (status.alarms, status.samples) == (1, 400)
    assert abs(status.current - 100) < 5
    assert status.model.distance > 5  # nothing was done: the model still mixes the two
    assert neotta.head(net).count == 400


def test_reset_gives_the_model_the_samples_since_the_change_alone():
    for size in (1, 16):
        net = model()
        independent(net, action="reset")
        feed(net, cloud(300), size)
        feed(net, cloud(100, 6.0, seed=1), size)
        head = neotta.head(net)
        assert abs(head.count - 100) < 5
        assert float((head.offset() - 6.0).abs().max()) < 0.6


def test_nearest_takes_a_known_centroid_for_what_it_is_worth(tmp_path):
    other = model()
    library = neotta.DomainLibrary(tmp_path)
    for name, centre in (("near", 6.0), ("far", -6.0)):
        neotta.reset(other)
        feed(other, cloud(1000, centre, seed=5))
        library.add(name, other)
    net = model()
    monitor = independent(net, library, action="nearest")
    feed(net, cloud(300))
    feed(net, cloud(48, 6.0, seed=1))
    (change,) = monitor.changes
    assert change.nearest.domain == "near"
    assert change.worth > 20
    assert neotta.head(net).count > change.worth
    assert float((neotta.head(net).offset() - 6.0).abs().max()) < 0.3
    assert monitor.status().domains[0].domain == "near"
    assert monitor.status().domains[0].ratio < 3 < monitor.status().domains[1].ratio


def test_a_known_domain_that_is_not_near_counts_for_nothing(tmp_path):
    other = model()
    feed(other, cloud(1000, -6.0, seed=5))
    library = neotta.DomainLibrary(tmp_path)
    library.add("far", other)
    net = model()
    monitor = independent(net, library, action="nearest")
    feed(net, cloud(300))
    feed(net, cloud(48, 6.0, seed=1))
    assert [change.worth for change in monitor.changes] == [0]
    assert abs(neotta.head(net).count - 48) < 5


def test_nearest_without_any_known_domain_is_a_reset(tmp_path):
    net = model()
    monitor = independent(net, tmp_path / "none yet", action="nearest")
    feed(net, cloud(300))
    feed(net, cloud(48, 6.0, seed=1))
    assert [change.nearest for change in monitor.changes] == [None]
    assert abs(neotta.head(net).count - 48) < 5


def test_a_frozen_model_is_watched_but_not_touched():
    net = model()
    monitor = independent(net, action="reset")
    feed(net, cloud(300))
    neotta.head(net).freeze()
    before = neotta.head(net).streams.state()
    feed(net, cloud(100, 6.0, seed=1))
    assert [change.action for change in monitor.changes] == ["none"]
    assert torch.equal(before, neotta.head(net).streams.state())


@pytest.mark.parametrize("options", [{"shrinkage": "james-stein"}, {}])
def test_a_reset_keeps_what_shrinkage_needs(options):
    net = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), "neo", head="1", **options)
    independent(net, action="reset")
    feed(net, cloud(300), 1)
    feed(net, cloud(100, 6.0, seed=1), 1)
    streams = neotta.head(net).streams
    assert abs(streams.total() - 100) < 5
    if options:
        assert variance_of(streams.rule, streams.table) == pytest.approx(D, rel=0.3)


def test_a_moving_average_goes_on_from_the_new_centroid():
    net = neotta.adapt(
        nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), "neo-continual", head="1", alpha=0.01, debias=True
    )
    independent(net, action="reset")
    feed(net, cloud(300), 1)
    feed(net, cloud(100, 6.0, seed=1), 1)
    assert float((neotta.head(net).offset() - 6.0).abs().max()) < 0.8


def test_adapters_can_be_watched():
    net = nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval()
    adapter = neotta.create("neo", net, head="1")
    monitor = independent(adapter, action="reset")
    with pytest.raises(OptionError, match="another monitor"):
        independent(adapter)
    for rows in (cloud(300), cloud(96, 6.0, seed=1)):
        for part in torch.split(batch(rows), 16):
            adapter.predict_embeddings(part)
    assert len(monitor.changes) == 1
    assert abs(adapter.neo.count - 96) < 5
    seen = monitor.samples
    adapter.predict_embeddings(batch(cloud(5)), adapt=False)
    assert monitor.samples == seen
    monitor.remove()
    adapter.predict_embeddings(batch(cloud(5)))
    assert monitor.samples == seen


def test_one_stream_of_many_is_watched_and_reset_alone():
    net = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)).eval(), "neo", head="1", streams=True)
    monitor = independent(net, stream="gate", action="reset")
    assert monitor.status().model.distance == 0  # before it was ever met

    def run(rows, centre_of_yard=0.0):
        yard = cloud(len(rows), centre_of_yard, seed=9)
        for one, other in zip(torch.split(batch(rows), 8), torch.split(batch(yard), 8), strict=True):
            with neotta.streams(["gate", "yard"] * 8):
                net(torch.stack([one, other], 1).flatten(0, 1))

    run(cloud(304))
    run(cloud(96, seed=3), centre_of_yard=6.0)  # a change in another stream
    assert (monitor.samples, monitor.changes) == (400, [])
    assert monitor.status().model.distance < 1e-6
    run(cloud(96, 6.0, seed=1))
    assert [change.action for change in monitor.changes] == ["reset"]
    counts = neotta.head(net).streams.counts()
    assert abs(counts["gate"] - 96) < 5
    assert counts["yard"] == 496
    assert float((neotta.head(net).offset(stream="gate") - 6.0).abs().max()) < 0.6


def test_copies_and_restored_models_do_not_report_to_the_monitor():
    net = model()
    monitor = independent(net)
    feed(copy.deepcopy(net), cloud(10))
    feed(neotta.restore(net), cloud(10))
    assert monitor.samples == 0


def test_bad_rows_are_counted_and_kept_out():
    monitor = independent()
    rows = cloud(10)
    rows[3, 2] = np.nan
    rows[4, 0] = np.inf
    assert monitor.observe(rows) == []
    assert (monitor.samples, monitor.rejected) == (8, 2)
    assert repr(monitor) == "<Monitor, action='none': 8 samples, 0 changes>"
    assert bool(torch.isfinite(monitor.mean).all())


def test_empty_batches_and_more_dimensions_are_fine():
    monitor = independent()
    monitor.observe(torch.zeros(0, D))
    monitor.observe(torch.randn(2, 3, D))
    assert monitor.samples == 6


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(NotAdaptedError):
        independent(nn.Linear(3, 2))
    with pytest.raises(OptionError, match="adapted model"):
        independent("digits")
    with pytest.raises(UnknownNameError, match="head"):
        independent(model(), head="2")
    two = neotta.adapt(nn.ModuleDict({"a": nn.Linear(D, 2), "b": nn.Linear(D, 2)}), "neo", head=["a", "b"])
    with pytest.raises(ModelError, match="name one"):
        independent(two)
    assert independent(two, head="b").head_name == "b"
    with pytest.raises(InputError, match="this model has no streams"):
        independent(model(), stream="gate")
    many = neotta.adapt(nn.Sequential(nn.Flatten(), nn.Linear(D, 3)), "neo", head="1", streams=True)
    with pytest.raises(InputError, match="stream='gate'"):
        independent(many)
    with pytest.raises(InputError, match="string or an integer"):
        independent(many, stream=1.5)
    with pytest.raises(OptionError, match="an adapter has one head"):
        independent(neotta.create("neo", nn.Sequential(nn.Linear(D, 3))), stream="gate")
    monitor = independent()
    with pytest.raises(InputError, match="seen no embeddings"):
        monitor.status()
    with pytest.raises(InputError, match="batch"):
        monitor.observe(np.zeros(3))
    monitor.observe(cloud(3))
    with pytest.raises(InputError, match="6"):
        monitor.observe(np.zeros((2, 3)))
    with pytest.raises(OptionError, match="model to act on"):
        independent(action="reset")


def test_reset_forgets_the_domain_but_not_the_counts():
    monitor = independent()
    monitor.observe(cloud(200))
    monitor.reset()
    status = monitor.status()
    assert (status.samples, status.current, status.ready) == (200, 0, False)


def test_threads_lose_no_sample():
    monitor = independent()
    threads = [
        threading.Thread(target=lambda seed=seed: [monitor.observe(cloud(5, seed=seed)) for _ in range(40)])
        for seed in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert monitor.samples == 800
    assert monitor.status().current == 800 or monitor.changes


# ---- Prometheus


def test_prometheus_scrapes_the_figures(tmp_path):
    prometheus_client = pytest.importorskip("prometheus_client")
    from neotta.monitoring import prometheus

    other = model()
    feed(other, cloud(50, 1.0))
    neotta.DomainLibrary(tmp_path).add("night", other)
    net = model()
    monitor = independent(net, tmp_path)
    registry = prometheus_client.CollectorRegistry()
    prometheus.export(monitor, registry)
    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"

        def scrape():
            with urllib.request.urlopen(address, timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

        assert scrape()["neotta_samples_total"] == 0
        feed(net, cloud(300))
        feed(net, cloud(100, 6.0, seed=1))
        found, status = scrape(), monitor.status()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert (found["neotta_samples_total"], found["neotta_alarms_total"], found["neotta_rejected_total"]) == (400, 1, 0)
    assert found["neotta_origin_distance"] == pytest.approx(status.origin.distance)
    assert found["neotta_nearest_cosine"] == pytest.approx(status.domains[0].cosine)
    assert found['neotta_domain_distance{domain="night"}'] == pytest.approx(status.domains[0].distance)


def test_several_monitors_have_a_label_each():
    prometheus_client = pytest.importorskip("prometheus_client")
    from neotta.monitoring import prometheus

    monitors = {"gate": independent(), "yard": independent()}
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    prometheus.export(monitors, registry)
    monitors["roof"] = independent()
    monitors["yard"].observe(cloud(7))
    text = prometheus_client.generate_latest(registry).decode()
    for name, samples in (("gate", 0), ("yard", 7), ("roof", 0)):
        assert f'neotta_samples_total{{monitor="{name}"}} {samples}.0' in text
    assert text.count("neotta_origin_distance{") == 1
    with pytest.raises(OptionError, match="by name"):
        prometheus.export({3: independent()}, registry)


def test_without_prometheus_the_error_names_the_extra(monkeypatch):
    from neotta.monitoring import prometheus

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match=r"neotta\[prometheus\]"):
        prometheus.export(independent())


def test_exporting_twice_gives_no_duplicate_series():
    prometheus_client = pytest.importorskip("prometheus_client")
    from neotta.monitoring import prometheus

    monitor = independent(neotta.adapt(nn.Sequential(nn.Linear(4, 2)), "neo"))
    registry = prometheus_client.CollectorRegistry()
    first = prometheus.export(monitor, registry)
    again = prometheus.export(monitor, registry)
    prometheus.export(monitor, registry, prefix="other")
    lines = [line for line in prometheus_client.generate_latest(registry).decode().splitlines() if line[0] != "#"]
    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert any(name.startswith("other_") for name in series)
    with pytest.raises(KeyError):
        registry.unregister(first)  # it was replaced
    registry.unregister(again)
    prometheus.export(monitor, registry)
