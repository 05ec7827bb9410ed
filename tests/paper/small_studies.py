"""Small studies of the digits, and costs that were never measured."""

from __future__ import annotations

import dataclasses

from neotta.evaluate.costs import Conditions, Cost
from neotta.paper.study import Study, Subject

METHODS = ["none", "t3a", "lame", "neo"]


def small_study(**changes):
    """The digits in fog and at low contrast, unless told otherwise."""
    given = {"methods": METHODS, "samples": 48, "seeds": [2020, 1234], "batch_size": 16, "cost_batches": 1}
    return Study(**{"subjects": [Subject(corruptions=["fog", "contrast"])], **given, **changes})


def made_up_cost(method, milliseconds, mebibytes, **conditions):
    """The fields of a `Cost`, as a record has them."""
    cost = Cost(
        method,
        "paper",
        {},
        Conditions("digits", batch_size=16, **conditions),
        threads=1,
        image_size=(28, 28),
        seconds_per_image=milliseconds / 1e3,
        plain_seconds_per_image=1e-3,
        forward_passes=1.0,
        backward_passes=0.0,
        peak_memory=None if mebibytes is None else int(mebibytes * 2**20),
        memory_above_plain=None if mebibytes is None else 0,
        flops_per_image=None,
    )
    return dataclasses.asdict(cost)
