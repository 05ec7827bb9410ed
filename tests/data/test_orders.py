"""Streams: the same samples for everybody, none twice, saved and replayed."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neotta.data import DataSource, digits, drawing, open_data, orders
from neotta.data.base import ImageDataset
from neotta.data.orders import Order, Skew
from neotta.errors import DataError, NeottaError, OptionError

LABELS = np.arange(300) % 10
seeds = st.integers(0, 2**40)
label_arrays = st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array)
skews = st.builds(
    Skew,
    ratio=st.floats(1, 100),
    delta=st.none() | st.floats(1e-6, 100),
    slots=st.none() | st.integers(1, 20),
)


class Named(ImageDataset):
    def __init__(self, domain, ids, labels=None):
        self.domain, self.ids, self.labels = domain, ids, labels

    def read(self, index):
        raise AssertionError("an order reads no images")


def entries(order: Order) -> list[tuple[str, int]]:
    return [(order.domains[d], i) for d, i in zip(order.domain.tolist(), order.index.tolist(), strict=True)]


def all_kinds(labels: np.ndarray, seed: int, skew: Skew) -> list[Order]:
    one, many = {"fog": labels}, {"fog": labels, "snow": labels[::-1], "frost": labels[: len(labels) // 2]}
    count = len(labels) // 2
    options = {"seed": seed, "batch_size": 7}
    return [
        orders.iid(one, **options),
        orders.imbalanced(one, ratio=skew.ratio, **options),
        orders.correlated(one, delta=skew.delta or 0.1, slots=skew.slots, **options),
        orders.continual(many, samples=-1, **dataclasses.asdict(skew), **options),
        orders.continual(many, samples=count, straddle=True, **options),
        orders.mixed(many, **dataclasses.asdict(skew), **options),
        orders.cameras(many, per_domain=2, **dataclasses.asdict(skew), **options),
        orders.cameras(many, in_turn=True, **options),
        *orders.hold_out(one, samples=count, **options),
        *orders.few_classes(one, classes=1, samples=1, **options),
    ]


@pytest.mark.parametrize("case", ["total100_adapt32_seed2020", "total77_adapt5_seed1234", "total50_adapt50_seed9999"])
def test_split_is_the_published_one(shared, case):
    index = json.loads((shared / "golden" / "index.json").read_text())
    recorded = next(trace for trace in index["traces"] if trace["id"] == "split")["values"][case]
    total, adapt, seed = (int(part.lstrip("adeoptsl")) for part in case.split("_"))
    adapting, validating = orders.split(total, adapt, seed)
    assert adapting.tolist() == recorded["adapt_indices"]
    assert validating.tolist() == recorded["validation_indices"]


def test_at_most_so_many_are_all_of_a_domain_that_has_fewer():
    sizes = {"fog": 600, "snow": 100}
    for order in (orders.continual, orders.mixed, orders.recurring, orders.changes, orders.cameras):
        made = order(sizes, samples=512, at_most=True)
        shown = [len(np.unique(made.index[made.domain == made.domains.index(name)])) for name in sizes]
        assert shown == [512, 100]
    assert len(orders.iid({"snow": 100}, samples=512, at_most=True)) == 100
    with pytest.raises(DataError, match="only 100"):
        orders.continual(sizes, samples=512)


def test_split_of_everything():
    adapt, validate = orders.split(20, -1, 5)
    assert sorted(adapt.tolist()) == list(range(20))
    assert len(validate) == 0
    assert adapt.tolist() == orders.split(20, 20, 5)[0].tolist()
    with pytest.raises(DataError, match="21 samples are asked for but there are only 20"):
        orders.split(20, 21, 5)


def test_orders_never_change():
    """These values are part of the format: results of different versions are compared by them."""
    assert orders.iid({"fog": 10}, seed=2020).index.tolist() == [5, 4, 3, 1, 0, 2, 7, 6, 8, 9]
    assert orders.iid({"snow": 10}, seed=7).index.tolist() == [5, 3, 8, 2, 6, 9, 1, 7, 4, 0]
    assert orders.continual(dict.fromkeys("abcde", 2), samples=2).domains == ("c", "e", "b", "a", "d")
    labels = {"fog": np.arange(40) % 4}
    assert orders.correlated(labels, delta=0.1).hash().startswith("5282bacab864a825")
    assert orders.imbalanced(labels, ratio=5).hash().startswith("2339a04c129aa5ba")
    assert orders.mixed({"a": 9, "b": 9}).hash().startswith("ae5831e433817d7b")


def test_orders_follow_the_documented_recipe():
    words = np.frombuffer(hashlib.sha256(b'[3, "fog", "order"]').digest(), dtype="<u4")
    expected = np.random.RandomState(words.astype(np.uint32)).permutation(50)
    assert orders.iid({"fog": 50}, seed=3).index.tolist() == expected.tolist()


@settings(max_examples=30)
@given(label_arrays, seeds, skews)
def test_no_sample_comes_twice_and_all_agree(labels, seed, skew):
    again = all_kinds(labels, seed, skew)
    for order, twin in zip(all_kinds(labels, seed, skew), again, strict=True):
        assert len(set(entries(order))) == len(order) == len(order.index)
        assert order.hash() == twin.hash() == pickle.loads(pickle.dumps(order)).hash()
        lengths = dict.fromkeys(order.domains, len(labels))
        assert orders.replay(json.loads(json.dumps(order.manifest())), lengths).hash() == order.hash()


@settings(max_examples=30)
@given(label_arrays, seeds, skews)
def test_batches_cover_the_order_in_order(labels, seed, skew):
    for order in all_kinds(labels, seed, skew):
        parts = order.batches()
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(order)))
        assert all(1 <= part.stop - part.start <= 7 for part in parts)
        if order.straddle:
            assert all(part.stop - part.start == 7 for part in parts[:-1])
        else:
            assert all(len(set(order.domain[part])) == 1 for part in parts)


@given(st.lists(st.sampled_from("abcdef"), min_size=2, unique=True), seeds, st.randoms())
def test_domains_do_not_disturb_each_other(names, seed, random):
    sizes = {name: 5 + ord(name) % 4 for name in names}
    other = random.sample(names, len(names))
    for make in (orders.continual, orders.mixed):
        whole = make(sizes, samples=5, seed=seed)
        assert make({name: sizes[name] for name in other}, samples=5, seed=seed).hash() == whole.hash()
        fewer = make({name: sizes[name] for name in names[1:]}, samples=5, seed=seed)
        assert entries(fewer) == [entry for entry in entries(whole) if entry[0] != names[0]]
        for name in names:
            alone = orders.iid({name: sizes[name]}, samples=5, seed=seed)
            assert entries(alone) == [entry for entry in entries(whole) if entry[0] == name]


def test_domains_can_follow_as_given():
    order = orders.continual(dict.fromkeys("zebra", 4), samples=2, shuffle=False)
    assert [name for name, _ in entries(order)[::2]] == list("zebra")


def test_seeds_and_domains_give_other_orders():
    drawn = [tuple(orders.iid({domain: 50}, seed=seed).index) for domain in ("fog", "snow") for seed in (0, 1, 2)]
    assert len(set(drawn)) == 6
    sequences = {orders.continual(dict.fromkeys("abcde", 1), samples=1, seed=s).domains for s in range(20)}
    assert len(sequences) > 10


@given(label_arrays, seeds, st.data())
def test_few_classes_are_even(labels, seed, data):
    present, sizes = np.unique(labels, return_counts=True)
    classes = data.draw(st.integers(1, len(present)))
    samples = data.draw(st.integers(0, int(np.sort(sizes)[:classes].sum())))
    disjoint = data.draw(st.booleans())
    adapt, validate = orders.few_classes(
        {"fog": labels}, classes=classes, samples=samples, disjoint=disjoint, seed=seed
    )
    chosen = drawing.few_classes(labels, samples, classes, seed, "fog")[2].tolist()
    counts = {label: int((labels[adapt.index] == label).sum()) for label in chosen}
    assert len(set(chosen)) == classes
    assert sum(counts.values()) == len(adapt) == samples
    for (early, first), (late, second) in itertools.combinations(counts.items(), 2):
        assert 0 <= first - second <= 1 or first == (labels == early).sum() or second == (labels == late).sum()
    assert not set(adapt.index) & set(validate.index)
    left = ~np.isin(labels, chosen) if disjoint else np.isin(np.arange(len(labels)), adapt.index, invert=True)
    assert sorted(validate.index) == np.flatnonzero(left).tolist()


def test_first_classes_get_one_more():
    adapt, validate = orders.few_classes({"fog": LABELS}, classes=4, samples=50, held_out=100)
    chosen = drawing.few_classes(LABELS, 50, 4, 2020, "fog")[2].tolist()
    assert [int((LABELS[adapt.index] == label).sum()) for label in chosen] == [13, 13, 12, 12]
    assert len(validate) == 100
    fewer = orders.few_classes({"fog": LABELS}, classes=3, samples=50).adapt
    assert set(LABELS[fewer.index]) == set(chosen[:3])


def test_long_tail_has_its_ratio():
    labels = np.arange(10_000) % 10
    order = orders.imbalanced({"fog": labels}, ratio=50)
    counts = np.sort(np.bincount(labels[order.index]))[::-1]
    assert counts[0] == 1000
    assert counts[-1] == 20
    np.testing.assert_allclose(counts[1:] / counts[:-1], 50 ** (-1 / 9), rtol=0.02)


def test_small_delta_gives_bursts_and_large_delta_independence():
    labels = np.arange(5000) % 10

    def repeats(order: Order) -> float:
        seen = labels[order.index]
        return float((seen[1:] == seen[:-1]).mean())

    near, far = (orders.correlated({"fog": labels}, delta=delta) for delta in (0.01, 1000.0))
    assert sorted(near.index) == sorted(far.index) == list(range(5000))
    assert repeats(near) > 0.4
    assert repeats(far) == pytest.approx(0.1, abs=0.02)


def test_skews_combine_with_the_number_of_samples():
    order = orders.correlated({"fog": LABELS}, delta=0.1, ratio=10, samples=60)
    tail = orders.imbalanced({"fog": LABELS}, ratio=10)
    assert len(order) == 60
    assert sorted(order.index) == sorted(tail.index[:60])


def test_cameras_that_share_a_domain_share_its_samples():
    order = orders.cameras({"fog": 20, "snow": 9}, per_domain=2)
    assert order.cameras == ("fog camera 1", "fog camera 2", "snow camera 1", "snow camera 2")
    assert np.bincount(order.camera).tolist() == [10, 10, 5, 4]
    assert all(order.cameras[c].startswith(order.domains[d]) for c, d in zip(order.camera, order.domain, strict=True))
    assert len(set(entries(order))) == 29


def test_cameras_take_turns():
    order = orders.cameras({"fog": 20, "snow": 9}, samples=3, in_turn=True)
    assert order.camera.tolist() == [0, 1] * 3
    assert orders.cameras({"fog": 90, "snow": 90}).camera.tolist() != [0, 1] * 90


@given(st.integers(2, 40), seeds, st.data())
def test_hash_sees_order_batches_and_cameras(size, seed, data):
    order = orders.cameras({"fog": size, "snow": size}, seed=seed)
    assert order.hash() == orders.cameras({"snow": size, "fog": size}, seed=seed).hash()
    manifest = order.manifest()
    left, right = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=2)))
    ids = manifest["ids"] = list(manifest["ids"])
    assume(ids[left] != ids[right])
    ids[left], ids[right] = ids[right], ids[left]
    with pytest.raises(DataError, match="does not match its own hash"):
        orders.replay(manifest, {"fog": size, "snow": size})
    other = orders.cameras({"fog": size, "snow": size}, seed=seed, batch_size=size)
    assert other.hash() != order.hash()
    assert orders.mixed({"fog": size, "snow": size}, seed=seed).hash() != order.hash()


def test_the_hash_is_that_of_sizes_domains_ids_and_cameras():
    order = orders.mixed({"fog": 3, "snow": 2}, batch_size=2)
    content = [[2, 2, 1], [order.domains[d] for d in order.domain], list(order.ids), []]
    assert order.hash() == hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def test_hash_is_the_same_in_another_process():
    code = "from neotta.data import orders; print(orders.mixed({'fog': 40, 'snow': 30}, samples=20).hash())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == orders.mixed({"snow": 30, "fog": 40}, samples=20).hash()


def test_saved_orders_are_replayed_on_datasets_in_another_order(tmp_path):
    ids = {"fog": [f"f{i}" for i in range(30)], "snow": [f"s{i}" for i in range(30)]}
    order = orders.mixed([Named(name, names) for name, names in ids.items()], samples=20)
    order.save(tmp_path / "order.json")
    loaded = Order.load(tmp_path / "order.json")
    assert loaded.hash() == order.hash()
    assert json.dumps(loaded.manifest()) == json.dumps(order.manifest())
    assert entries(loaded) == entries(order)
    datasets = [Named(name, sorted(names, reverse=True)) for name, names in ids.items()]
    again = orders.replay(loaded.manifest(), datasets)
    assert again.hash() == order.hash()
    lists = {dataset.domain: dataset.ids for dataset in datasets}
    assert tuple(lists[name][index] for name, index in entries(again)) == order.ids


def test_replay_takes_a_order_its_manifest_or_its_file(tmp_path):
    order = orders.iid([Named("fog", list("abcdef"))])
    order.save(tmp_path / "order.json")
    turned = [Named("fog", list("fedcba"))]
    for recorded in (order, order.manifest(), tmp_path / "order.json", str(tmp_path / "order.json")):
        again = orders.replay(recorded, turned)
        assert again.hash() == order.hash()
        assert (again.index == 5 - order.index).all()


def test_orders_are_made_of_what_open_data_gives():
    assert orders.iid(open_data("digits")).hash() == orders.iid(digits("test")).hash()
    clean = digits("test")
    domains = ("fog/5", "snow/5")
    source = DataSource("digits-c", None, domains, lambda name: Named(f"digits-c/{name}", clean.ids, clean.labels))
    assert orders.mixed(source).domains == ("digits-c/fog/5", "digits-c/snow/5")
    with pytest.raises(DataError, match="digits-c has 2 domains, name one: fog/5; snow/5"):
        orders.iid(source)


def test_a_order_is_shown_in_one_line():
    shown = repr(orders.mixed(dict.fromkeys(("fog", "snow", "frost", "rain"), 1000)))
    assert shown == "<Order 'mixed', seed 2020: 4,000 samples in batches of 64, 4 domains (fog, snow, frost, ...)>"


def test_replay_names_what_is_missing():
    ids = [f"{i}.png" for i in range(10)]
    order = orders.iid(Named("fog", ids))
    third = order.ids[3]
    with pytest.raises(DataError, match=f"needs sample '{third}'"):
        orders.replay(order.manifest(), Named("fog", [i for i in ids if i not in order.ids[3:5]]))
    with pytest.raises(DataError, match=r"needs the domain 'fog', but there are only \['snow'\]"):
        orders.replay(order.manifest(), Named("snow", ids))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "else"}, "not an order manifest"),
        ({"version": 99}, "version 99"),
        ({"domain": None}, "damaged"),
        ({"domain": [0, 7]}, "damaged"),
        ({"ids": []}, "damaged"),
        ({"batch_size": 2}, "does not match"),
        ({"batch_size": "many"}, "damaged"),
    ],
)
def test_damaged_manifests_are_refused(change, message, tmp_path):
    path = tmp_path / "order.json"
    path.write_text(json.dumps(orders.iid({"fog": 10}).manifest() | change))
    with pytest.raises(DataError, match=message):
        Order.load(path)


def test_unreadable_manifests_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"none\.json"):
        Order.load(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"format": "neotta')
    with pytest.raises(DataError, match=r"half\.json"):
        Order.load(tmp_path / "half.json")


def test_orders_cannot_be_changed():
    order = orders.iid({"fog": 10})
    with pytest.raises(ValueError, match="read-only"):
        order.index[0] = 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: orders.iid({}), "at least one domain"),
        (lambda: orders.iid({"fog": 3, "snow": 3}), "takes one domain"),
        (lambda: orders.iid({"fog": 3}, samples=4), "only 3"),
        (lambda: orders.iid({"fog": 3}, samples=-2), "-1: all.* of at least -1, got -2"),
        (lambda: orders.iid({"fog": -3}), "samples of domain 'fog' must be a whole number of at least 0, got -3"),
        (lambda: orders.iid({"fog": 3}, batch_size=0), "batch_size"),
        (lambda: orders.iid({"fog": np.ones(3)}), "whole numbers"),
        (lambda: orders.iid({"fog": 3}, seed=1.5), "seed must be a whole number"),
        (lambda: orders.hold_out({"fog": 3}, samples=1, seed="1"), "seed must be a whole number"),
        (lambda: orders.iid([Named("fog", ["a"]), Named("fog", ["b"])]), "same domain"),
        (lambda: orders.imbalanced({"fog": 3}, ratio=2), "'fog' has none"),
        (lambda: orders.imbalanced({"fog": LABELS}, ratio=0.5), "ratio"),
        (lambda: orders.correlated({"fog": LABELS}, delta=0), "delta"),
        (lambda: orders.correlated({"fog": LABELS}, slots=0), "slots"),
        (lambda: orders.few_classes({"fog": LABELS}, classes=11), "there are 10 in 'fog'.* from 1 to 10, got 11"),
        (lambda: orders.few_classes({"fog": LABELS}, classes=1, samples=31), "only 30"),
        (lambda: orders.iid({"fog": True}), "whole number"),
        (lambda: orders.iid({"fog": 3}, samples=1.5), "samples .* must be a whole number"),
        (lambda: orders.iid({"fog": 3}, samples="x"), "samples .* must be a whole number"),
        (lambda: orders.iid({"fog": 3}, samples=True), "samples .* must be a whole number"),
        (lambda: orders.hold_out({"fog": 3}, samples=1.0), "samples .* must be a whole number"),
        (lambda: orders.iid({"fog": 3}, seed=2**70), "seed must be a whole number"),
        (lambda: orders.hold_out({"fog": 3}, samples=1, seed=2**70), "seed must be a whole number"),
        (lambda: orders.imbalanced({"fog": LABELS}, ratio="3"), "ratio"),
        (lambda: orders.correlated({"fog": LABELS}, delta="x"), "delta"),
        (lambda: orders.correlated({"fog": LABELS}, slots=2.5), "slots"),
        (lambda: orders.few_classes({"fog": LABELS}, classes=2.0), "classes"),
        (lambda: orders.iid("digits"), r"open it with open_data\('digits'\)"),
        (lambda: orders.iid(5), "expected datasets .* got 5 of type int"),
        (lambda: orders.mixed(["fog"]), "expected datasets .* got 'fog' of type str"),
        (lambda: orders.cameras({"fog": 3}, per_domain=2, samples=2), "camera 2'"),
        (lambda: orders.cross_domain({"fog": 3}, samples=2), "source"),
        (lambda: orders.outliers({"fog": LABELS}), "images"),
        (lambda: orders.iid({"fog": 3}, ratio=2), "'ratio'"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(NeottaError, match=message) as caught:
        make()
    assert isinstance(caught.value, DataError | OptionError)


def test_numbers_of_numpy_are_numbers(tmp_path):
    five, two = np.int64(5), np.int64(2)
    order = orders.iid({"fog": np.int64(9)}, samples=five, seed=five, batch_size=two)
    order.save(tmp_path / "order.json")
    plain = orders.iid({"fog": 9}, samples=5, seed=5, batch_size=2)
    assert Order.load(tmp_path / "order.json").hash() == plain.hash()


def test_empty_orders():
    order = orders.iid({"fog": np.array([], dtype=np.int64)})
    assert len(order) == 0
    assert order.batches() == []
    assert orders.hold_out({"fog": 5}, samples=-1).validate.batches() == []
    assert len(orders.correlated({"fog": []}, ratio=3)) == 0


NO_SKEW = {"ratio": 1.0, "delta": None, "slots": None}


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: orders.iid({"fog": LABELS}), {"samples": -1}),
        (lambda: orders.imbalanced({"fog": LABELS}, ratio=3), {"samples": -1, "ratio": 3, "whole": False}),
        (lambda: orders.correlated({"fog": LABELS}), {**NO_SKEW, "samples": -1, "delta": 0.1, "whole": False}),
        (
            lambda: orders.continual({"fog": 600}, samples=512),
            {"samples": 512, "shuffle": True, "straddle": False, **NO_SKEW},
        ),
        (lambda: orders.mixed({"fog": 600}), {"samples": -1, **NO_SKEW}),
        (lambda: orders.hold_out({"fog": 600}, samples=9).adapt, {"samples": 9}),
        (
            lambda: orders.few_classes({"fog": np.arange(5000) % 10}, classes=10, samples=50).adapt,
            {"classes": 10, "samples": 50, "disjoint": False},
        ),
    ],
)
def test_an_order_says_how_it_was_made_and_what_was_not_given_is_as_documented(make, parameters):
    order = make()
    assert order.parameters == parameters
    assert (order.seed, order.batch_size) == (2020, 64)
    assert len(order) == (parameters["samples"] if parameters["samples"] > 0 else len(order))
    assert order.hash() == orders.replay(json.loads(json.dumps(order.manifest())), {"fog": 5000}).hash()


def test_samples_in_the_order_of_the_dataset():
    order = orders.stored({"fog": 100}, samples=70)
    assert (order.kind, order.index.tolist()) == ("stored", list(range(70)))
    assert len(orders.stored({"fog": 100})) == 100


def test_bursts_of_a_mixture_hold_several_domains():
    labels = {"fog": np.repeat(np.arange(10), 50), "snow": np.tile(np.arange(10), 50)}
    plain = orders.mixed(labels)
    order = orders.mixed(labels, delta=0.01, slots=4)
    seen = np.array([labels[name][index] for name, index in entries(order)])
    assert sorted(entries(order)) == sorted(entries(plain))
    assert (seen[1:] == seen[:-1]).mean() > 0.3
    burst = seen == seen[0]
    assert len(set(order.domain[burst].tolist())) == 2
    assert order.hash() != orders.mixed(labels, delta=0.01, slots=2).hash()


def test_a_long_tail_is_within_each_domain_of_a_mixture():
    labels = {"fog": np.arange(1000) % 10, "snow": np.arange(1000) % 10}
    order = orders.mixed(labels, ratio=10, delta=1.0)
    for number in range(2):
        counts = np.sort(np.bincount(labels["fog"][order.index[order.domain == number]], minlength=10))
        assert (counts[0], counts[-1]) == (10, 100)


def test_few_classes_leave_out_their_own_only_if_asked():
    labels = np.arange(300) % 10
    for disjoint in (False, True):
        adapt, validate = orders.few_classes({"fog": labels}, classes=3, samples=9, disjoint=disjoint)
        assert bool(set(labels[adapt.index]) & set(labels[validate.index])) != disjoint


def test_a_change_of_domain_ends_a_batch_unless_they_may_straddle():
    domains = {"fog": 10, "snow": 10}
    assert [part.stop for part in orders.continual(domains, samples=10, batch_size=4).batches()] == [
        4,
        8,
        10,
        14,
        18,
        20,
    ]
    straddling = orders.continual(domains, samples=10, batch_size=4, straddle=True)
    assert [part.stop for part in straddling.batches()] == [4, 8, 12, 16, 20]


def test_batches_of_one_sample():
    assert [part.stop for part in orders.iid({"fog": 3}, batch_size=1).batches()] == [1, 2, 3]


@pytest.mark.parametrize("name", ["domain", "index", "camera"])
def test_every_array_of_an_order_is_checked_and_read_only(name):
    order = orders.cameras({"fog": 4, "snow": 4})
    assert not getattr(order, name).flags.writeable
    for bad in (getattr(order, name)[:-1], getattr(order, name).astype(np.int32), getattr(order, name) - 1):
        with pytest.raises(DataError, match=f"'{name}' of an order"):
            dataclasses.replace(order, **{name: bad})
    if name != "index":
        with pytest.raises(DataError, match=rf"'{name}' of an order holds 0 to 2, allowed is 0 to 2"):
            dataclasses.replace(order, **{name: getattr(order, name) * 2})


def test_the_manifest_of_today_is_compact_and_says_its_version(tmp_path):
    nothing = np.zeros(0, dtype=np.int64)
    order = Order("iid", 0, ("a",), nothing, nothing, ())
    assert order.batch_size == 64
    order.save(tmp_path / "order.json")
    text = (tmp_path / "order.json").read_text()
    assert text.startswith('{"format":"neotta-order","version":1,"hash":"')
    assert text.endswith("}\n")
