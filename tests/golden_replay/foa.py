"""What was recorded is compared, and then put in the place of what CMA-ES proposes and is told.

Two candidates may tie to rounding, and then their order, and all that CMA-ES makes of it, is a matter of chance.
"""

import torch

NAMES = {"lambda": "lambda_", "cma_seed": "seed"}


def options(trace, context):
    given = dict(trace["hyperparameters"])
    given.pop("class_subset", None)
    rows = slice(*given.pop("source_rows_of_images_clean"))
    images = context.golden.data["images_clean"][rows].to(context.dtype)
    return {**{NAMES.get(name, name): value for name, value in given.items()}, "source": images}


class Recorded:
    """The evolution strategy, proposing and learning what was recorded."""

    def __init__(self, search, trace, context):
        self.search = search
        self.context = context
        self.index = -1

    def ask(self):
        self.index += 1
        recorded = self.context.tensors[f"step{self.index}/candidates"].flatten(1)[:-1]
        torch.testing.assert_close(self.search.ask(), recorded, rtol=1e-5, atol=1e-5)
        return recorded

    def tell(self, vectors, fitness):
        self.vectors, self.fitness = vectors, fitness
        self.search.tell(vectors, self.context.tensors[f"step{self.index}/fitness"].tolist())

    @property
    def sigma(self):
        return self.search.sigma


def start(adapter, trace, context):
    context.close("source_std", adapter.source.std)
    context.close("source_mean", adapter.source.mean)
    initial = context.tensors["initial_prompts"]
    bound = adapter.vit.prompt_bound()
    for prompts in (initial, adapter.best):
        assert bound * 0.8 < prompts.abs().max() <= bound
    context.compared.add("initial_prompts")
    adapter.best = initial.flatten(0, 1).float()
    adapter.search = Recorded(adapter.search, trace, context)
    judge = adapter._judge

    def recording(features):
        trial = judge(features)
        context.memory.setdefault("trials", []).append(trial)
        return trial

    adapter._judge = recording
    context.memory["shift"] = adapter._shift()


def step(adapter, trace, context, index):
    best, *others = context.memory.pop("trials")
    trials = [*others, best]
    prefix = f"step{index}/"
    recorded = {name.removeprefix(prefix): name for name in context.tensors if name.startswith(prefix)}
    fitness = context.tensors[recorded["fitness"]]
    relative = trace["tolerance"]["fitness_relative"] if context.kind == "f32" else 1e-7
    close = relative * float(fitness.abs().max())
    context.close(recorded["fitness"], torch.tensor(adapter.search.fitness, dtype=torch.float64), close)
    context.close(recorded["entropy_part"], torch.tensor([trial.entropy for trial in trials]).double(), close)
    context.close(recorded["candidate_outputs"], torch.stack([trial.logits for trial in trials]))
    context.close(recorded["candidates"], adapter.search.vectors, 0)
    context.close(recorded["running_test_mean"], adapter.hist)
    context.close(recorded["sigma_after_update"], torch.tensor(adapter.search.sigma), 1e-6)
    chosen = int(context.tensors[recorded["best_index"]])
    context.compared.add(recorded["best_index"])
    if chosen != adapter.search.fitness.index(min(adapter.search.fitness)):
        assert adapter.search.fitness[chosen] <= min(adapter.search.fitness) + close
        adapter.best = adapter.search.vectors[chosen].view_as(adapter.best)
    context.close(recorded["best_prompts"], adapter.best, 0)
    if "shift_vector" in recorded:
        context.close(recorded["shift_vector"], context.memory["shift"])
    else:
        assert context.memory["shift"] is None
    context.memory["shift"] = adapter._shift()


def finish(adapter, trace, context):
    context.close("frozen_output", adapter(context.images(trace["frozen_rows"]), adapt=False))
