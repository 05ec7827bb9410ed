"""Replays the recorded runs of the reference implementations, one test for each trace and dtype.

`NEOTTA_GOLDEN` names another folder of the same form; every trace is then taken from there.
"""

from __future__ import annotations

import pytest
import torch
from golden_replay.replay import DTYPES, golden, method_of, replay
from torch import nn

import neotta
from neotta.evaluate.answers import PredictionStats
from neotta.evaluate.metrics import Reliability, metrics
from neotta.neo.mean import MeanRule, MovingMeanRule
from neotta.neo.streams import Streams

TRACES = golden().index["traces"]
RUNS = [(trace, kind) for trace in TRACES for kind in trace["dtypes"]]
LAYERS = {"neo_layer": MeanRule, "neo_continual_layer": MovingMeanRule}


def runs(wanted):
    return pytest.mark.parametrize(
        ("trace", "kind"),
        [pytest.param(trace, kind, id=f"{trace['id']}-{kind}") for trace, kind in RUNS if wanted(trace)],
    )


def is_method(trace):
    return bool(trace["steps"]) and trace["method"] not in LAYERS


@pytest.mark.filterwarnings("ignore:bn changes nothing")
@runs(is_method)
def test_method(trace, kind):
    if method_of(trace) not in neotta.methods():
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
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.load_state_dict({"weight": weight, "bias": tensors["bias"]})
    head = neotta.NEOHead(layer, Streams(LAYERS[trace["method"]](**trace["hyperparameters"]), weight.shape[1]))
    close = {"atol": trace["tolerance"][kind], "rtol": 0}
    for index in range(len(trace["steps"])):
        output = head(tensors[f"step{index}/input"])
        torch.testing.assert_close(output.detach(), tensors[f"step{index}/output"], **close)
        torch.testing.assert_close(head.offset().to(weight.dtype), tensors[f"step{index}/centroid"], **close)


def values(trace):
    return {**trace["values"], **trace.get("derived_values", {})}


OTHER_DEFINITIONS = {
    "nc1_pinv_trace_over_C",
    "nc1_trace_quotient",
    "nc2_norm_coefficient_of_variation",
    "nc3_papyan_frobenius_distance",
}
"""Recorded measures of neural collapse that no table uses."""


def check(trace, kind, got):
    wanted = values(trace)
    assert got.keys() == wanted.keys() - OTHER_DEFINITIONS
    for name in got:
        assert got[name] == pytest.approx(wanted[name], abs=trace["tolerance"][kind]), name


@runs(lambda trace: trace["method"] == "metrics")
def test_metrics(trace, kind):
    tensors = golden().tensors(trace["id"], kind)
    logits, labels = tensors["logits"], tensors["labels"]
    edge, edge_labels = tensors["edge_probabilities"], tensors["edge_labels"]
    stats = PredictionStats.of(logits, labels)
    found = metrics(stats)
    top, predicted = edge.max(dim=1)
    got = {
        "ece_15_bins_from_logits": found["ece"],
        "ece_10_bins_from_logits": Reliability.of(stats.confidence, stats.predicted == labels, bins=10).error(),
        "ece_15_bins_from_edge_probabilities": Reliability.of(top, predicted == edge_labels).error(),
        "top1_percent": found["top1"],
        "top5_percent": found["top5"],
        "mean_entropy_from_logits": found["entropy"],
        "mean_entropy_from_edge_probabilities": metrics(PredictionStats.of(edge.log(), edge_labels))["entropy"],
    }
    check(trace, kind, got)


@runs(lambda trace: trace["method"] == "neural_collapse_metrics")
def test_neural_collapse(trace, kind):
    collapse = pytest.importorskip("neotta.paper.items.collapse")
    tensors = golden().tensors(trace["id"], kind)
    features, weight, bias = tensors["features"], tensors["classifier_weight"], tensors["classifier_bias"]
    statistics = collapse.class_statistics(features, tensors["labels"])
    got = {
        "nc1_cdnv": collapse.cdnv(statistics),
        "nc2_simplex_etf_error": collapse.simplex_error(statistics),
        "nc3_self_duality_error": collapse.duality_error(statistics, weight),
        "nc4_agreement_no_bias": collapse.agreement(features, statistics, weight, None),
        "nc4_agreement_with_bias": collapse.agreement(features, statistics, weight, bias),
    }
    check(trace, kind, got)
    default = collapse.neural_collapse(features, tensors["labels"], weight, bias)
    assert default == (
        got["nc1_cdnv"],
        got["nc2_simplex_etf_error"],
        got["nc3_self_duality_error"],
        got["nc4_agreement_with_bias"],
    )


@runs(lambda trace: trace["method"] == "latent_shift_decomposition")
def test_latent_shift(trace, kind):
    shift = pytest.importorskip("neotta.paper.latent")
    tensors = golden().tensors(trace["id"], kind)
    classes = len(tensors["class_shifts"])
    got = shift.latent_shift(tensors["features_clean"], tensors["features_shifted"], tensors["labels"], classes)
    close = {"atol": trace["tolerance"][kind], "rtol": 0}
    for name in ("global_shift", "class_shifts", "residuals"):
        torch.testing.assert_close(getattr(got, name), tensors[name], **close)
    assert torch.equal(got.dominant, tensors["argmax_dimension"])
    torch.testing.assert_close(got.cumulative, tensors["cumulative_fraction"], **close, check_dtype=False)
    names = {"minus_global_class": "minus_class", "minus_global_class_residual": "minus_residual"}
    names["minus_shifted_mean"] = "minus_mean"
    for name, wanted in trace["values"].items():
        if isinstance(wanted, dict):
            mine = getattr(got, names.get(name, name))
            assert mine.cosine == pytest.approx(wanted["mean_cosine"], abs=trace["tolerance"][kind])
            assert mine.norm_difference == pytest.approx(
                wanted["mean_abs_norm_difference"], abs=trace["tolerance"][kind]
            )
