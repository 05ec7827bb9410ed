"""Orders through several domains, from plans: mixed, cameras, recurring and gradual."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.benches import open_bench

import neotta
from neotta.data.orders import ORDERS
from neotta.errors import OptionError, UnknownNameError
from neotta.evaluate.frame import frame
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
    assert run.order == made.kind == order
    assert len(run.domains) == (10 if order == "gradual" else 2)
    assert (made.parameters["delta"], made.parameters["ratio"]) == (labels.get("delta"), labels.get("ratio", 1.0))
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
    ("plan", "named"),
    [
        ({"order": "mixed", "order_options": {"rounds": 2}}, "'rounds'"),
        ({"order": "recurring", "order_options": {"round": 2}}, "'rounds'"),
        ({"order": "recurring", "order_options": {"redraw": 2}}, "'redraw'"),
        ({"order": "iid", "order_options": {"ratio": 2}}, "'ratio'"),
        ({"order": "few-classes"}, "'classes'"),
        ({"order": "circular"}, "'circular'"),
        ({"order": "burst:length=5"}, "'bursts'"),
    ],
)
def test_wrong_orders_are_refused(plan, named):
    with pytest.raises((OptionError, UnknownNameError), match=named):
        Plan.make({**PLAN, **plan})


def test_a_new_camera_begins_anew():
    bench, runs = opened(order="new-cameras:each=4", corruptions=["fog"], methods="neo")
    (order,) = bench.orders(runs[0])
    found = bench.predict(runs[0]).stats.predicted.tolist()
    embeddings, _ = bench.embeddings.get(bench.data.dataset("fog/5"), order.index)
    expected = []
    for camera in embeddings.split(4):
        adapter = neotta.create("neo", bench.model)
        expected += [int(adapter.predict_embeddings(row[None]).argmax()) for row in camera]
    assert found == expected


def test_bad_frames_are_met_but_not_scored():
    bench, runs = opened(order="outliers", corruptions=["fog"], samples=[256])
    records = [bench.execute(run)[0] for run in runs]
    assert all(record.status == "ok" for record in records)
    (order,) = bench.orders(runs[0])
    assert len(order) > 256
    assert sum(records[0].per_class["samples"]) == 256
    assert set(frame(records)["domain"]) == {"fog/5"}


@pytest.mark.parametrize(
    ("order", "domains", "through", "others"),
    [("changes", 2, True, False), ("by-class", 1, False, False), ("hold-out", 1, False, True)],
)
def test_an_order_says_which_domains_a_run_goes_through_and_what_it_scores(order, domains, through, others):
    kind, bench_runs = ORDERS[order], opened(order=order, samples=[128])[1]
    assert (kind.through, kind.scores_others) == (through, others)
    assert {len(run.domains) for run in bench_runs} == {domains}


def test_every_order_and_option_is_explained():
    for order in ORDERS.values():
        assert order.about
        assert all(field.description for field in order.options.model_fields.values())
