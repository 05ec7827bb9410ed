from golden_replay.replay import final_parameters


def finish(adapter, trace, context):
    final_parameters(adapter, context)
