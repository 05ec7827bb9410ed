def finish(adapter, trace, context):
    for name in context.tensors:
        if name.startswith("final/stats/"):
            layer, _, statistic = name.removeprefix("final/stats/").rpartition(".")
            context.close(name, adapter.state_dict()[f"running/{layer}/{statistic}"])
