def options(trace, context):
    given = trace["hyperparameters"]
    names = ("lr", "rho", "momentum", "reset_threshold", "margin")
    return {**{name: given[name] for name in names}, "compat": trace["compat"]}


def step(adapter, trace, context, index):
    assert list(adapter.params) == trace["hyperparameters"]["adapted_parameters"]
    if f"step{index}/loss_ema" in context.tensors:
        context.close(f"step{index}/loss_ema", adapter.ema)


def finish(adapter, trace, context):
    source = dict(adapter.model.named_parameters())
    for name in context.tensors:
        if name.startswith("final/param/"):
            parameter = name.removeprefix("final/param/")
            context.close(name, adapter.params.get(parameter, source[parameter]))
