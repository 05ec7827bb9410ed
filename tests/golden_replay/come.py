"""COME is an option of the methods it is the loss of; they are replayed as they are without it."""

from golden_replay import eta, sar
from golden_replay.replay import final_parameters


def options(trace, context):
    given = trace["hyperparameters"]
    loss = {"uncertainty": "come", "evidence_classes": given["evidence_classes"]}
    compat = [name for name in trace["compat"] if not name.startswith("come_")]
    if given["base"] == "sar":
        return {**sar.options({**trace, "compat": compat}, context), **loss}
    options = {**eta.options({**trace, "compat": compat}, context), **loss}
    if given["base"] == "tent":
        assert not options.pop("nesterov")
        assert not options.pop("compat")
    return options


def start(adapter, trace, context):
    if adapter.name in ("eta", "eata"):
        eta.start(adapter, trace, context)
    if adapter.name == "sar":
        recover, context.memory["recoveries"] = adapter._recover, 0

        def counting():
            context.memory["recoveries"] += 1
            recover()

        adapter._recover = counting


def step(adapter, trace, context, index):
    if adapter.name in ("eta", "eata"):
        eta.step(adapter, trace, context, index)
    if adapter.name == "sar":
        sar.step(adapter, trace, context, index)
        if f"step{index}/recoveries_so_far" in context.tensors:
            context.close(f"step{index}/recoveries_so_far", context.memory["recoveries"])


def finish(adapter, trace, context):
    if adapter.name == "sar":
        sar.finish(adapter, trace, context)
    else:
        final_parameters(adapter, context)
