"""Benches that know the plan they were opened for."""

from __future__ import annotations

import torch

from neotta.evaluate import sweep as sweeping
from neotta.evaluate.bench import Bench
from neotta.evaluate.execute import execute, predict
from neotta.evaluate.key import content, run_key
from neotta.evaluate.records import Records


class PlanBench(Bench):
    """A bench for one plan, with what is done on it."""

    key, content, predict, execute = run_key, content, predict, execute

    def runs(self, plan=None):
        return super().runs(plan or self.plan)

    def record(self, run):
        return execute(self, run)[0]


def open_bench(plan, *, kind=PlanBench, **settings):
    """Open the model and the data of a plan."""
    return kind(plan, **{"workers": 0, **settings})


def sweep(plan, path, *, cache=None, workers=0, **settings):
    """Carry out a plan on a bench of its own."""
    return sweeping.sweep(open_bench(plan, cache=cache, workers=workers), plan, Records(path), **settings)


UNLASTING = ("time", "seconds", "seconds_without_encoder")


def _without(record, *names):
    return {name: value for name, value in record.entries().items() if name not in names}


def lasting(records):
    """What does not depend on when and how fast it was done, by key."""
    return {record.key: _without(record, *UNLASTING) for record in records}


def same_predictions(one, other, **tolerance):
    """Whether two results hold the same predictions of the same samples."""
    assert (one.ids, one.domains) == (other.ids, other.domains)
    for mine, theirs in zip(one.stats, other.stats, strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, **{"rtol": 0, "atol": 0, **tolerance})
