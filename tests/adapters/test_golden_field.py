"""Replays the recorded runs of the methods of the field; with `NEOTTA_GOLDEN`, `test_golden.py` replays that folder."""

from __future__ import annotations

import pytest
from golden_replay.replay import golden_field, replay

FIELD = golden_field()
RUNS = [(trace, kind) for trace in FIELD.index["traces"] for kind in ("f32", "f64")]


@pytest.mark.filterwarnings("ignore:bn changes nothing")
@pytest.mark.parametrize(
    ("trace", "kind"), [pytest.param(trace, kind, id=f"{trace['id']}-{kind}") for trace, kind in RUNS]
)
def test_method(trace, kind):
    context = replay(trace, kind, FIELD)
    assert set(context.tensors) == context.compared, "every recorded tensor is compared"
