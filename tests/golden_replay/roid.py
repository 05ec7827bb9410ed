import torch

from golden_replay.replay import Views, final_parameters

LEFT_OUT = ("adapted_parameters", "class_subset", "head_scale")


def options(trace, context):
    given = {name: value for name, value in trace["hyperparameters"].items() if name not in LEFT_OUT}
    context.memory["views"] = Views(context, "views_roid")
    views = {"augmentation": context.memory["views"], "augment_domain": "normalised"}
    return {**given, **views, "compat": trace["compat"]}


def start(adapter, trace, context):
    """Note the loss of each batch."""
    assert list(adapter.params) == trace["hyperparameters"]["adapted_parameters"]
    objective = adapter._objective

    def noting(*given):
        found = objective(*given)
        context.memory["loss"] = found.loss.detach()
        return found

    adapter._objective = noting


def step(adapter, trace, context, index):
    if f"step{index}/class_probabilities" in context.tensors:
        context.close(f"step{index}/class_probabilities", adapter.class_probabilities)
    if f"step{index}/loss" in context.tensors:
        context.close(f"step{index}/loss", context.memory["loss"])
    if f"step{index}/kept_rows" in context.tensors:
        context.close(f"step{index}/kept_rows", torch.tensor(context.memory["views"].rows))


def finish(adapter, trace, context):
    final_parameters(adapter, context)
