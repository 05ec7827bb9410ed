"""Replays the recorded runs of the reference implementations, one test for each trace and dtype.

`NEOTTA_GOLDEN` names another folder of the same form; every trace is then taken from there.
"""

from __future__ import annotations

import pytest
import torch
from golden_replay.replay import DTYPES, METHODS, golden, replay

import neotta

TRACES = golden().index["traces"]
RUNS = [(trace, kind) for trace in TRACES for kind in trace["dtypes"]]
LAYERS = {"neo_layer": {}, "neo_continual_layer": None}


def runs(wanted):
    return pytest.mark.parametrize(
        ("trace", "kind"),
        [pytest.param(trace, kind, id=f"{trace['id']}-{kind}") for trace, kind in RUNS if wanted(trace)],
    )


def is_method(trace):
    return bool(trace["steps"]) and trace["method"] not in LAYERS


@runs(is_method)
def test_method(trace, kind):
    if METHODS.get(trace["method"], trace["method"]) not in neotta.methods():
        pytest.fail(f"no method {trace['method']!r}")
    context = replay(trace, kind)
    assert set(context.tensors) == context.compared, "every recorded tensor is compared"


@runs(lambda trace: trace["method"] == "none")
def test_features(trace, kind):
    model = golden().model(trace, DTYPES[kind])
    tensors = golden().tensors(trace["id"], kind)
    encoder, head = neotta.split(model)
    with torch.no_grad():
        features = encoder(golden().data["images"][: len(tensors["features"])].to(DTYPES[kind]))
        logits = head(features)
    close = {"atol": trace["tolerance"][kind], "rtol": 0}
    torch.testing.assert_close(features, tensors["features"], **close)
    torch.testing.assert_close(logits[: len(tensors["logits"])], tensors["logits"], **close)


@runs(lambda trace: trace["method"] in LAYERS)
def test_layer(trace, kind):
    tensors = golden().tensors(trace["id"], kind)
    weight = tensors["weight"]
    head = neotta.NEOHead(weight.shape[1], weight.shape[0], dtype=weight.dtype, **trace["hyperparameters"])
    head.load_state_dict({"weight": weight, "bias": tensors["bias"]})
    close = {"atol": trace["tolerance"][kind], "rtol": 0}
    for index in range(len(trace["steps"])):
        output = head(tensors[f"step{index}/input"])
        torch.testing.assert_close(output.detach(), tensors[f"step{index}/output"], **close)
        torch.testing.assert_close(head.centroid.mean.to(weight.dtype), tensors[f"step{index}/centroid"], **close)
