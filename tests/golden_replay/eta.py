import torch

from golden_replay.replay import final_parameters

LEFT_OUT = ("adapted_parameters", "class_subset", "head_scale", "fisher_rows", "base")


def options(trace, context):
    given = {name: value for name, value in trace["hyperparameters"].items() if name not in LEFT_OUT}
    rows = trace["hyperparameters"].get("fisher_rows")
    if rows:
        given["source"] = context.golden.data["images_clean"][rows[0][0] : rows[-1][1]].to(context.dtype)
        given["fisher_batch"] = rows[0][1] - rows[0][0]
        assert rows == [[start, min(start + given["fisher_batch"], rows[-1][1])] for start, _ in rows]
    return {**given, "compat": trace["compat"]}


def start(adapter, trace, context):
    """Note how many samples are selected, and compare what was found in the source images."""
    assert list(adapter.params) == trace["hyperparameters"]["adapted_parameters"]
    select = adapter._select

    def noting(*given):
        found = context.memory["selection"] = select(*given)
        return found

    adapter._select = noting
    for name in context.tensors:
        if name.startswith("fisher/"):
            context.close(name, adapter.fisher[name.removeprefix("fisher/")])


def step(adapter, trace, context, index):
    recorded = {name for name in context.tensors if name.startswith(f"step{index}/")}
    if f"step{index}/num_reliable" in recorded:
        found = context.memory["selection"]
        context.close(f"step{index}/num_reliable", found.reliable.sum())
        context.close(f"step{index}/num_selected", found.selected.sum())
    if f"step{index}/mean_probabilities" in recorded:
        context.close(f"step{index}/mean_probabilities", torch.as_tensor(adapter.mean_probabilities))


def finish(adapter, trace, context):
    final_parameters(adapter, context)
