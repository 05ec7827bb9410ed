"""What each method costs: time beside the least that it has to do, and memory in a process of its own.

    python benchmarks/methods.py [--batch 64] [--rounds 31] [--methods neo,t3a] [--no-memory] [--cpu-time] [--json F]

The least is the passes through the network, and the optimiser's step. Some methods do more than that, which shows with
a network as small as ViT-Tiny:

- CoTTA, once its anchor is unsure, makes 32 augmented views. On one core a view takes 2 ms an image where the network
  takes 25 ms, which adds 0.07 to the ratio; a fifth of it is the generator of random numbers for the noise, which no
  thread can share.
- Surgeon chooses the largest of all inputs of the linear layers (200 million numbers in a batch of 64, and as many of
  the view), packs them, and puts them back for the backward pass. On one core that takes 5 to 8 ns a number, most of it
  to find positions in a mask and to move what is there, and adds 0.2 to the ratio. The row "all kept" leaves it out.
- ROID and RoTTA make one view of each batch. The rows "views given" leave that out.

Methods that select samples are measured with options that select all of them.
"""

from __future__ import annotations

import copy
import statistics
import time
import warnings

import bare
import torch
from side_by_side import Row, compare, parser, show

import neotta
from neotta.evaluate._cost_worker import sharpen
from neotta.evaluate.costs import measure_costs

MODEL = "timm:vit_tiny_patch16_224"
LIMIT = 1.05
PLAIN = {"none": None, "neo": 1.01, "neo-continual": None, "neo-mse": None, "t3a": LIMIT, "lame": LIMIT}
"""Methods that are compared with plain inference, all in one group, and their limits."""
VIEWS = 32
"""What CoTTA makes when its anchor is unsure."""
STREAM = (1, 10, 100, 1000, 2000)
FULL = 1000
"""After so many batches of 64, each of the 1000 classes has about all supports that it can have."""


ALL_SELECTED = {"e_margin": 100.0, "d_margin": 1.1}
"""Options of ETA and its kin with which every sample is learnt from: the most that they do."""
MOST = {
    "eta": ALL_SELECTED,
    "eata": ALL_SELECTED,
    "rdumb": ALL_SELECTED,
    "deyo": {"deyo_margin": 100.0, "plpd_threshold": -1.0},
    "roid": {"use_weighting": False},
}
GIVEN = {"augmentation": lambda images: images, "augment_domain": "normalised"}
"""Views that cost nothing."""


def options(method, images):
    source = {"source": images[:32]} if method in ("foa", "eata") else {}
    return {**source, **MOST.get(method, {}), **({"update_frequency": len(images)} if method == "rotta" else {})}


def keep_everything(surgeon):
    """Let no layer forget: the ratios stay at 0, as the pass that ranks the layers leaves them."""
    surgeon._prune = lambda importances: None


def remember_all(rotta, images):
    """Let RoTTA's memory hold the whole batch: random images are of few classes, and it would keep one of each."""
    count = len(images)
    parts = {"labels": torch.arange(count), "ages": torch.ones(count), "uncertainties": torch.zeros(count)}
    rotta.memory.load({"images": images, **parts}, images)
    rotta.memory.insert = lambda new: False


def groups(model, images, chosen):
    """For each comparison: its name, the ways (the first is what the others are compared with), and the limits."""

    def adapter(method, change=lambda made: None, **more):
        made = neotta.create(method, copy.deepcopy(model), **options(method, images), **more)
        change(made)
        return lambda: made(images)

    plain = {method: adapter(method) for method in PLAIN if method in chosen}
    if plain:
        limits = {method: limit for method, limit in PLAIN.items() if limit}
        yield "plain inference", {"1 forward": bare.forwards(model, images, 1), **plain}, limits
    least = {
        "tent": ("forward, backward, step", bare.tent),
        "sar": ("twice the same", bare.sar),
        "foa": ("3 forwards", lambda model, images: bare.forwards(model, images, 3)),
        "cotta": ("student, 2 forwards, step", bare.cotta),
        "surgeon": ("10 rows, 2 forwards, step", bare.surgeon),
        "eta": ("forward, backward, step", bare.selective),
        "eata": ("forward, backward, step", bare.selective),
        "rdumb": ("forward, backward, step", bare.selective),
        "deyo": ("2 forwards, backward, step", bare.deyo),
        "roid": ("2 forwards, backward, step", bare.roid),
        "rotta": ("teacher twice, student, step", bare.rotta),
    }
    for method, (name, make) in least.items():
        if method not in chosen:
            continue
        change = (lambda made: remember_all(made, images)) if method == "rotta" else (lambda made: None)
        ways = {name: make(model, images), method: adapter(method, change)}
        if method == "surgeon":  # how much of its time is pruning, which no count of passes holds
            ways["surgeon, all kept"] = adapter(method, keep_everything)
        if method in ("roid", "rotta"):  # the rest of their time is making views
            ways[f"{method}, views given"] = adapter(method, change, **GIVEN)
            yield method, ways, {f"{method}, views given": LIMIT}
            continue
        yield method, ways, dict.fromkeys([method, "surgeon, all kept"], LIMIT)
        if method == "cotta":
            unsure = {"anchor_threshold": 2.0}  # no confidence is so high
            name = f"student, {VIEWS + 1} forwards, step"
            ways = {name: bare.cotta(model, images, VIEWS), "cotta, unsure": adapter(method, **unsure)}
            yield f"cotta, {VIEWS} views", ways, {"cotta, unsure": LIMIT}


def stream(model, rounds, clock):
    """Time of T3A for a batch after so many batches, from embeddings: bounded, however long the stream."""
    adapter = neotta.create("t3a", model)
    times, supports = {mark: [] for mark in STREAM}, {}
    for _ in range(rounds):
        adapter.reset()
        generator = torch.Generator().manual_seed(0)
        last = []
        for number in range(1, STREAM[-1] + 1):
            embeddings = torch.randn(64, adapter.head.in_features, generator=generator)
            start = clock()
            adapter.predict_embeddings(embeddings)
            last = [*last[-4:], clock() - start]
            if number in times:
                times[number].append(min(last))  # of five: a single one of a few milliseconds is often disturbed
                supports[number] = int(adapter.counts.sum())
    rows = []
    for mark in STREAM:
        ratios = [mine / full for mine, full in zip(times[mark], times[FULL], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        limit = 1.1 if mark > FULL else None
        milliseconds = statistics.median(times[mark]) * 1e3
        note = f"{supports[mark]} supports"
        rows.append(Row("T3A, embeddings", f"after {mark:4}", milliseconds, middle, low, high, limit, note))
    return rows


def memory(rows, chosen, batch, threads):
    """Write beside each method how much memory it takes above the plain model."""
    costs = measure_costs(
        chosen,
        MODEL,
        model_options={"pretrained": False},
        batch_size=batch,
        batches=2,
        threads=threads,
        progress=lambda name, done, total: print(f"memory of {name} ({done + 1}/{total})", flush=True),
    )
    for row in rows:
        if row.way in costs:
            cost = costs[row.way]
            row.note = f"+{(cost.memory_above_plain or 0) / 2**20:.0f} MB"
    return {name: cost.entries() for name, cost in costs.items()}


def main() -> None:
    parse = parser(__doc__.splitlines()[0])
    parse.add_argument("--batch", type=int, default=64, help="images in a batch")
    parse.add_argument("--methods", help="only these, separated by commas")
    parse.add_argument("--no-memory", action="store_true", help="measure time only")
    parse.add_argument("--cpu-time", action="store_true", help="for a machine that others use too; give --threads 1")
    args = parse.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    if args.threads:
        torch.set_num_threads(args.threads)
    known = [name for name in neotta.methods() if name not in ("bn", "neo-bn")]  # for networks with BatchNorm
    chosen = args.methods.split(",") if args.methods else known
    warnings.simplefilter("ignore", RuntimeWarning)  # the same batch again and again looks like a collapse
    torch.manual_seed(0)
    model = neotta.load_model(MODEL, pretrained=False).model
    images = torch.randn(args.batch, 3, 224, 224)
    sharpen(model, images[:32])
    rows = []
    for name, ways, limits in groups(model, images, chosen):
        print(f"timing {name}", flush=True)
        rounds = max(args.rounds // 6, 3) if "views" in name else args.rounds  # it takes as long as all the others
        rows += compare(name, ways, rounds=rounds, warmup=1, limits=limits, clock=clock)
    about = {"model": MODEL, "batch": args.batch}
    if not args.no_memory:
        about["costs"] = memory(rows, chosen, args.batch, args.threads)
    if "t3a" in chosen:
        rows += stream(model, min(args.rounds, 5), clock)
    show(f"Methods on {MODEL}, batches of {args.batch}", rows, args.json, about)


if __name__ == "__main__":
    main()
