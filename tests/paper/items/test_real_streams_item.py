"""Gains and harm over kinds of streams, recomputed by hand."""

from __future__ import annotations

import pytest

from neotta.data.real_streams import KINDS
from neotta.paper.items import real_streams
from neotta.paper.items.real_streams import Summary, gains


def record(method, domain, seed, top1, **options):
    about = {"method": method, "preset": "paper", "options": options, "domain": domain, "seed": seed}
    return {**about, "status": "ok", "metrics": {"top1": top1}}


def test_gains_are_taken_on_the_same_samples_and_averaged_over_seeds():
    neo = {"weighting": "sample", "shrinkage": None}
    records = [
        record("none", "fog/5", 1, 50.0),
        record("none", "fog/5", 2, 60.0),
        record("neo", "fog/5", 1, 40.0, **neo),
        record("neo", "fog/5", 2, 65.0, **neo),
        record("neo", "fog/5", 1, 55.0, weighting="sample", shrinkage="james-stein"),
    ]
    alone = [record("neo", "fog/5", 1, 10.0, **neo)]  # without its baseline
    found = gains({"sorted": [*records, {**records[0], "status": "failed"}], "1-class": alone})
    assert found["neo"] == {("sorted", "fog/5"): pytest.approx(-2.5)}
    assert found["neo shrinkage=james-stein"] == {("sorted", "fog/5"): pytest.approx(5.0)}


def test_a_summary_counts_the_cells_that_lose_more_than_a_point():
    found = Summary.of([4.0, -0.5, -1.5, -6.0])
    assert found == (pytest.approx(-1.0), -6.0, 50.0, 4)


def test_every_kind_of_stream_is_planned():
    from neotta.paper.catalog import chosen

    (item,) = chosen(["real-streams"])
    assert item is real_streams.show
    assert item.claim == ""
    assert len(KINDS) == 19
