import torch

from golden_replay.replay import recorded_parameter

AUGMENTATIONS = {
    "identity": lambda images: images,
    "horizontal flip (torch.flip(x, [3]))": lambda images: images.flip(3),
}


def options(trace, context):
    left_out = ("head_scale", "class_subset", "linear_layers")
    given = {name: value for name, value in trace["hyperparameters"].items() if name not in left_out}
    return {
        **given,
        "augmentation": AUGMENTATIONS[given["augmentation"]],
        "augment_domain": "normalised",
        "compat": [name.removeprefix("surgeon_") for name in trace["compat"]],
    }


def start(adapter, trace, context):
    """Take the recorded rows for the importance pass."""
    context.memory["step"] = 0

    def recorded(count):
        rows = context.tensors[f"step{context.memory['step']}/importance_sample_rows"]
        assert len(rows) == min(count, adapter.options.importance_samples)
        return rows

    adapter._importance_rows = recorded
    wanted = [f"{name}.weight" for name in trace["hyperparameters"]["linear_layers"]]
    assert [name for name, _ in adapter.layers] == wanted


def step(adapter, trace, context, index):
    keep = f"step{index}/keep_fraction_per_linear"
    if keep in context.tensors:
        context.close(keep, torch.tensor([1 - layer.ratio for _, layer in adapter.layers], dtype=torch.float64))
        context.compared.add(f"step{index}/importance_sample_rows")
    context.memory["step"] = index + 1


def finish(adapter, trace, context):
    for name in context.tensors:
        if name.startswith("final/param/"):
            context.close(name, recorded_parameter(adapter, adapter.params, name.removeprefix("final/param/")))
