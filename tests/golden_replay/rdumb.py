from golden_replay import eta


def options(trace, context):
    compat = trace["compat"]
    given = eta.options({**trace, "compat": [name for name in compat if not name.startswith("rdumb_")]}, context)
    return {**given, "reset_keeps_count": "rdumb_reset_keeps_count" in compat}


def start(adapter, trace, context):
    eta.start(adapter.inner, trace, context)


def step(adapter, trace, context, index):
    eta.step(adapter.inner, trace, context, index)


def finish(adapter, trace, context):
    eta.finish(adapter.inner, trace, context)
