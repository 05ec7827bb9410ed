from golden_replay.replay import final_parameters

LEFT_OUT = ("adapted_parameters", "class_subset", "head_scale")


def options(trace, context):
    return {name: value for name, value in trace["hyperparameters"].items() if name not in LEFT_OUT}


def start(adapter, trace, context):
    """Take the recorded permutations, and note what is selected."""
    assert list(adapter.params) == trace["hyperparameters"]["adapted_parameters"]
    context.memory["step"] = 0
    select = adapter._select

    def noting(*given):
        found = select(*given)
        context.memory["selection"] = found[0]
        return found

    def recorded(count, length):
        name = f"step{context.memory['step']}/permutations"
        context.compared.add(name)
        return context.tensors[name].reshape(count, length)

    adapter._select, adapter._permutations = noting, recorded


def step(adapter, trace, context, index):
    if f"step{index}/num_reliable" in context.tensors:
        found = context.memory["selection"]
        context.close(f"step{index}/num_reliable", found.reliable.sum())
        context.close(f"step{index}/num_selected", found.selected.sum())
    context.memory["step"] = index + 1


def finish(adapter, trace, context):
    final_parameters(adapter, context)
