def finish(adapter, trace, context):
    for name in context.tensors:
        if name.startswith("final/param/"):
            context.close(name, adapter.params[name.removeprefix("final/param/")])
