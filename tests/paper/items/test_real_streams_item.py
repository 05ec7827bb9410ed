"""Gains and harm over kinds of streams, recomputed by hand."""

from __future__ import annotations

import pytest

from neotta.data.real_streams import CHANGES, EVERY_KIND
from neotta.evaluate.records import Record
from neotta.paper.items import real_streams
from neotta.paper.items.real_streams import Summary, embedding_methods, gains, plain


def record(method, domain, seed, top1, per_domain=None, **options):
    about = {"method": method, "preset": "paper", "options": options, "domain": domain, "seed": seed}
    return Record.make({"key": "", **about, "status": "ok", "metrics": {"top1": top1}, "per_domain": per_domain})


def test_gains_are_taken_on_the_same_samples():
    neo = {"weighting": "sample", "shrinkage": None}
    records = [
        record("none", "fog/5", 1, 50.0),
        record("none", "fog/5", 2, 60.0),
        record("neo", "fog/5", 1, 40.0, **neo),
        record("neo", "fog/5", 2, 65.0, **neo),
        record("neo", "fog/5", 1, 55.0, weighting="sample", shrinkage="james-stein"),
    ]
    alone = [record("neo", "fog/5", 1, 10.0, **neo)]  # without its baseline
    found = gains({"sorted": [*records, records[0].model_copy(update={"status": "failed"})], "1-class": alone})
    assert found["neo"] == {("sorted", "fog/5", 1): -10.0, ("sorted", "fog/5", 2): 5.0}
    assert found["neo shrinkage=james-stein"] == {("sorted", "fog/5", 1): 5.0}


def test_a_summary_counts_the_cells_that_lose_more_than_a_point():
    found = Summary.of([4.0, -0.5, -1.5, -6.0])
    assert found == (pytest.approx(-1.0), pytest.approx(-5.325), -6.0, 50.0, 4)


def test_cells_of_a_stream_through_domains_are_its_domains():
    plain_parts = {"fog/5": {"top1": 40.0}, "clean": {"top1": 70.0}}
    neo_parts = {"fog/5": {"top1": 52.0}, "clean": {"top1": 68.0}}
    both = [
        record("none", "2 domains", 1, 55.0, plain_parts),
        record("neo", "2 domains", 1, 60.0, neo_parts, weighting="sample"),
    ]
    found = gains({"changes-64": both})
    assert found["neo"] == {("changes-64", "fog/5", 1): 12.0, ("changes-64", "clean", 1): -2.0}
    assert plain({"changes-64": both}) == {"changes-64": 40.0}


class FakeSetting:
    """What planning asks of a subject."""

    def __init__(self, domains):
        self.domains, self.study = domains, type("Study", (), {"seeds": list(range(10))})

    def can(self, method):
        return method != "lame"

    def plan(self, *methods, **given):
        return methods, given


def test_every_kind_of_stream_and_every_embedding_method_is_planned():
    from neotta.paper.item import chosen

    (item,) = chosen(["real-streams"])
    assert item is real_streams.real_streams
    assert item.claim == ""
    planned = item.runs(FakeSetting(["fog/5", "snow/5"]))
    assert [given["order_options"]["kind"] for _, given in planned] == list(EVERY_KIND)
    assert len(EVERY_KIND) == 29
    draws = {given["order_options"]["kind"]: len(given["seeds"]) for _, given in planned}
    assert {draws.pop(kind) for kind in real_streams.DRAWN} == {10}
    assert set(draws.values()) == {3}
    methods = planned[0][0]
    assert methods[0] == "none"
    assert {"neo", "neo-continual", "neo-mse", "neo-stream", "t3a"} <= set(methods)
    assert "lame" in embedding_methods()
    assert not {"lame", "tent", "bn"} & set(methods)
    alone = item.runs(FakeSetting(["fog/5"]))
    assert not {given["order_options"]["kind"] for _, given in alone} & set(CHANGES)
