"""Gains and harm over kinds of streams, recomputed by hand."""

from __future__ import annotations

import pandas
import pytest

from neotta.evaluate.records import Record
from neotta.evaluate.stream_harm import gains, summed
from neotta.paper.item import chosen
from neotta.paper.items import real_streams
from neotta.paper.study import Setting, Study, Subject


def record(method, domain, seed, top1, per_domain=None, kind="by-class", **options):
    about = {"method": method, "preset": "paper", "options": options, "domain": domain, "seed": seed}
    about |= {"order": kind.partition(":")[0], "order_options": {"every": 64} if ":" in kind else {}}
    return Record.make({"key": "", **about, "status": "ok", "metrics": {"top1": top1}, "per_domain": per_domain})


def gained(records, method):
    """Gains by kind, domain and seed."""
    found = gains(records)
    mine = found[found["method"] == method]
    return {(row.kind, row.domain, row.seed): row.gain for row in mine.itertuples()}


def test_gains_are_taken_on_the_same_samples():
    neo = {"weighting": "sample", "shrinkage": None}
    records = [
        record("none", "fog/5", 1, 50.0),
        record("none", "fog/5", 2, 60.0),
        record("neo", "fog/5", 1, 40.0, **neo),
        record("neo", "fog/5", 2, 65.0, **neo),
        record("neo", "fog/5", 1, 55.0, weighting="sample", shrinkage="james-stein"),
        record("neo", "fog/5", 1, 10.0, kind="in-turn", **neo),  # without its baseline
    ]
    records.append(records[0].model_copy(update={"status": "failed"}))
    assert gained(records, "neo") == {("by-class", "fog/5", 1): -10.0, ("by-class", "fog/5", 2): 5.0}
    assert gained(records, "neo shrinkage=james-stein") == {("by-class", "fog/5", 1): 5.0}


def test_a_summary_counts_the_streams_that_lose_more_than_a_point():
    found = summed(pandas.Series([4.0, -0.5, -1.5, -6.0]))
    assert list(found.values()) == [pytest.approx(-1.0), pytest.approx(-5.325), -6.0, 50.0, 4]


def test_streams_through_domains_are_taken_apart_by_domain():
    plain_parts = {"fog/5": {"top1": 40.0}, "clean": {"top1": 70.0}}
    neo_parts = {"fog/5": {"top1": 52.0}, "clean": {"top1": 68.0}}
    both = [
        record("none", "2 domains", 1, 55.0, plain_parts, kind="changes:every=64"),
        record("neo", "2 domains", 1, 60.0, neo_parts, kind="changes:every=64", weighting="sample"),
    ]
    assert gained(both, "neo") == {("changes:every=64", "fog/5", 1): 12.0, ("changes:every=64", "clean", 1): -2.0}


def planned(**given):
    """What the item plans on digits in fog and snow, where everything works but LAME."""
    domains = given.pop("domains", ("fog/5", "snow/5"))
    study = Study(seeds=list(range(10)), **given)
    given = {"domains": domains, "images": 600, "why_not": lambda name: "no" if name == "lame" else ""}
    setting = Setting(study, Subject(), **given)
    (item,) = chosen(["real-streams"])
    return dict(zip(real_streams._kinds(setting), item.runs(setting), strict=True))


def names(plan):
    return [method.method for method in plan.methods]


def test_every_kind_of_stream_and_every_embedding_method_is_planned():
    plans = planned()
    assert list(plans) == list(real_streams.STREAMS)
    assert len(plans) == 29
    draws = {kind: len(plan.seeds) for kind, plan in plans.items()}
    assert {draws.pop(kind) for kind in real_streams.DRAWN} == {10}
    assert set(draws.values()) == {3}
    methods = names(plans["iid"])
    assert methods[0] == "none"
    assert {"neo", "neo-continual", "neo-mse", "neo-stream", "t3a"} <= set(methods)
    assert not {"lame", "tent", "bn"} & set(methods)
    assert not any(plan.order == "changes" for plan in planned(domains=("fog/5",)).values())


def test_the_methods_that_a_study_names_are_planned_if_they_run_from_embeddings():
    assert names(planned(methods=["none", "tent", "neo-stream"])["iid"]) == ["none", "neo-stream"]
