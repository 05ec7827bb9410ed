import torch

from golden_replay.replay import Views

LEFT_OUT = ("adapted_parameters", "class_subset", "head_scale")


def options(trace, context):
    given = {name: value for name, value in trace["hyperparameters"].items() if name not in LEFT_OUT}
    context.memory["views"] = Views(context, "views_rotta")
    return {**given, "augmentation": context.memory["views"], "augment_domain": "normalised"}


def start(adapter, trace, context):
    """Count the updates."""
    assert list(adapter.params) == trace["hyperparameters"]["adapted_parameters"]
    update, context.memory["updates"] = adapter._update, 0

    def counting():
        context.memory["updates"] += 1
        update()

    adapter._update = counting


def step(adapter, trace, context, index):
    if f"step{index}/updates_so_far" in context.tensors:
        if trace["steps"][index]["op"] == "reset":
            context.memory["updates"] = 0
        context.close(f"step{index}/updates_so_far", context.memory["updates"])
    content = adapter.memory.state()
    rows = [context.memory["views"].row(image) for image in content["images"]]
    content["rows"] = torch.tensor(rows, dtype=torch.int64)
    for name, tensor in content.items():
        if f"step{index}/memory_{name}" in context.tensors:
            context.close(f"step{index}/memory_{name}", tensor)


def finish(adapter, trace, context):
    for who, network in (("student", adapter.student), ("teacher", adapter.teacher)):
        for prefix, tensors in ((f"final/{who}/", network.params), (f"final/{who}_stats/", network.statistics())):
            for name in context.tensors:
                if name.startswith(prefix):
                    context.close(name, tensors[name.removeprefix(prefix)])
