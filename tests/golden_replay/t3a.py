import torch


def options(trace, context):
    given = dict(trace["hyperparameters"])
    given.pop("class_subset", None)
    if "warmup_rows" in given:
        given["warmup_rows"] = given["warmup_rows"].split()[0]
    return given


def step(adapter, trace, context, index):
    context.close(f"step{index}/num_supports", adapter.counts.sum())


def finish(adapter, trace, context):
    context.close("final/supports_sum_per_class", adapter.sums.T)
    labels, entropies = alive(adapter) if adapter.filtered else judged(adapter, trace, context)
    assert torch.equal(labels.bincount(minlength=len(adapter.counts)), adapter.counts)
    wanted = context.tensors["final/support_labels"], context.tensors["final/support_entropies"]
    # The supports may come in any order: bring ours into the order of the recording, class by class, by entropy.
    ours, theirs = by_class(labels, entropies), by_class(*wanted)
    for name, got in (("support_labels", labels), ("support_entropies", entropies)):
        placed = torch.empty_like(got)
        placed[theirs] = got[ours]
        context.close(f"final/{name}", placed)


def alive(adapter):
    used = adapter.labels >= 0
    return adapter.labels[used], adapter.entropies[used]


def judged(adapter, trace, context):
    """Without a filter no support is kept: what they were is judged once more, as the adapter did."""
    parts = [adapter.judge(adapter.head.weight.detach())]
    for taken in trace["steps"]:
        if taken["op"] == "reset":
            del parts[1:]
        elif taken["op"] == "forward" and taken["adapt"]:
            with torch.no_grad():
                parts.append(adapter.judge(adapter.encode(context.images(taken["rows"]))))
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def by_class(labels, entropies):
    order = entropies.argsort()
    return order[labels[order].argsort(stable=True)]
