def step(adapter, trace, context, index):
    for name, got in (("centroid", adapter.neo.centroid.mean), ("sample_count", adapter.neo.centroid.count)):
        if f"step{index}/{name}" in context.tensors:
            context.close(f"step{index}/{name}", got)
