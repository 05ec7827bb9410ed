"""Orders through several domains, from plans: mixed, cameras, recurring and gradual."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.benches import open_bench

import neotta
from neotta.errors import OptionError
from neotta.evaluate.comparison import compare
from neotta.evaluate.orders import ORDERS
from neotta.evaluate.plan import Plan

PLAN = {"corruptions": ["fog", "contrast"], "methods": "none,neo", "seeds": [1], "samples": [32], "batch_sizes": [16]}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """What is encoded once need not be encoded again."""
    return tmp_path_factory.mktemp("embeddings")


def opened(cache=None, **plan):
    bench = open_bench(Plan.make({**PLAN, **plan}), cache=cache)
    return bench, bench.runs()


def visited(order):
    return [name for name, _ in itertools.groupby(order.domains[domain] for domain in order.domain)]


@pytest.mark.parametrize("labels", [{}, {"delta": 0.05}, {"ratio": 20.0}])
@pytest.mark.parametrize(
    ("order", "options"),
    [
        ("mixed", {}),
        ("cameras", {"per_domain": 2}),
        ("recurring", {"rounds": 2}),
        ("gradual", {}),
    ],
)
def test_every_order_takes_skewed_labels_and_goes_through_all_domains(order, options, labels, cache):
    bench, (run, _) = opened(cache, order=order, order_options={**options, **labels}, samples=[40])
    (made,) = bench.orders(run)
    assert run.protocol == made.kind.replace(order, "continual")
    assert len(run.domains) == (10 if order == "gradual" else 2)
    skew = made.parameters["skew"]
    assert (skew["delta"], skew["ratio"]) == (labels.get("delta"), labels.get("ratio", 1.0))
    even = opened(cache, order=order, order_options=options, samples=[40])
    assert (even[0].key(even[1][0]) == bench.key(run)) is (labels == {})


def test_gradual_severities_follow_from_the_order_unless_given():
    bench, (run, _) = opened(order="gradual", corruptions=["fog"], samples=[4])
    assert visited(bench.orders(run)[0]) == [f"fog/{level}" for level in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    bench, (run, _) = opened(order="gradual", corruptions=["fog"], severities=[2, 4], samples=[4])
    assert visited(bench.orders(run)[0]) == ["fog/2", "fog/4", "fog/2"]


def test_cameras_may_share_a_state_or_have_one_each():
    apart, (_, run) = opened(order="cameras", order_options={"separate": True, "in_turn": True})
    together, (_, joint) = opened(order="cameras", order_options={"in_turn": True})
    assert apart.key(run) != together.key(joint)
    (order,) = apart.orders(run)
    assert np.array_equal(order.index, together.orders(joint)[0].index)
    found = apart.predict(run)
    assert found.stats.predicted.tolist() != together.predict(joint).stats.predicted.tolist()
    for number, name in enumerate(order.cameras):  # as if each camera had come alone, in batches of its own rows
        adapter = neotta.create("neo", apart.model)
        places = np.flatnonzero(order.camera == number)
        embeddings, _ = apart.embeddings.get(apart.data.dataset(name.removesuffix(" camera 1")), order.index[places])
        alone = [adapter.predict_embeddings(part).argmax(dim=1) for part in embeddings.split(8)]
        assert np.concatenate(alone).tolist() == found.stats.predicted[places].tolist()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"order": "mixed", "protocol": "online"}, "goes with the protocol 'continual', not 'online'"),
        ({"order": "mixed", "order_options": {"rounds": 2}}, "has no option 'rounds'"),
        ({"order": "recurring", "order_options": {"round": 2}}, "did you mean 'rounds'"),
        (
            {"order": "recurring", "order_options": {"redraw": 2}},
            "'redraw' .* is 2: input should be a valid bool",
        ),
        ({"order": "iid", "order_options": {"ratio": 2}}, "order 'iid' has no option 'ratio': it takes no options"),
        ({"order": "circular"}, "circular"),
    ],
)
def test_wrong_orders_are_refused(plan, message):
    with pytest.raises(OptionError, match=message):
        Plan.make({**PLAN, **plan})


def test_a_new_camera_begins_anew():
    bench, runs = opened(order="real", order_options={"kind": "first-4"}, corruptions=["fog"], methods="neo")
    (order,) = bench.orders(runs[0])
    found = bench.predict(runs[0]).stats.predicted.tolist()
    embeddings, _ = bench.embeddings.get(bench.data.dataset("fog/5"), order.index)
    expected = []
    for camera in embeddings.split(4):
        adapter = neotta.create("neo", bench.model)
        expected += [int(adapter.predict_embeddings(row[None]).argmax()) for row in camera]
    assert found == expected


def test_bad_frames_are_met_but_not_scored():
    options = {"kind": "outliers"}
    bench, runs = opened(order="real", order_options=options, corruptions=["fog"], samples=[256])
    records = [bench.execute(run)[0] for run in runs]
    assert all(record.status == "ok" for record in records)
    (order,) = bench.orders(runs[0])
    assert len(order) > 256
    assert sum(records[0].per_class["samples"]) == 256
    (block,) = compare(records).blocks
    assert block.domains == ("fog/5",)


@pytest.mark.parametrize(
    ("options", "protocol", "message"),
    [
        ({}, "online", "needs the option 'kind'"),
        ({"kind": "burst-5"}, "online", "did you mean 'bursts-5'"),
        ({"kind": "changes-64"}, "online", "goes with the protocol 'continual'"),
        ({"kind": "sorted"}, "continual", "goes with the protocol 'online'"),
    ],
)
def test_wrong_kinds_of_real_streams_are_refused(options, protocol, message):
    with pytest.raises(OptionError, match=message):
        Plan.make({**PLAN, "order": "real", "order_options": options, "protocol": protocol})


def test_streams_through_domains_imply_the_protocol():
    bench, runs = opened(order="real", order_options={"kind": "changes-64"}, samples=[128])
    assert runs[0].protocol == "continual"
    assert len(visited(bench.orders(runs[0])[0])) == 4


def test_every_order_and_option_is_explained():
    for order in ORDERS.values():
        assert order.about
        assert all(field.description for field in order.options.model_fields.values())


@pytest.mark.parametrize(
    ("order", "place"),
    [
        ("hold-out", ("hold-out", "iid")),
        ("continual", ("continual", "iid")),
        ("few-classes:classes=2", ("hold-out", "few-classes")),
        ("real:kind=changes-64", ("continual", "real")),
        ("real:kind=sorted", ("online", "real")),
    ],
)
def test_the_name_of_an_order_says_its_protocol(order, place):
    plan = Plan.make({**PLAN, "order": order})
    assert (plan.protocol, plan.order) == place
