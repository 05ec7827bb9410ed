"""What one model for many streams costs: beside plain inference, beside one head per stream, and per stream kept.

Two limits: a batch of 64 images of 64 streams takes at most 1.05 of plain inference with a ViT-Tiny, and adapting to it
(update and subtract) at most 1/20 of adapting to the 64 one by one. The whole model, one by one, is shown as well: it
gains from the batch only where a batch of one leaves the device idle (a GPU, many cores).

python benchmarks/streams.py [--quick] [--million] [--json FILE]
"""

from __future__ import annotations

import copy
import itertools
import random
import resource
import tempfile

import torch
from side_by_side import compare, parser, show

import neotta
from neotta.neo.mean import MeanRule
from neotta.neo.spill import Spill
from neotta.neo.streams import Streams

BATCH = 64


def step(table, embeddings, ids):
    """Take in a batch, and return what to subtract."""
    with neotta.streams(ids):
        return table.step(embeddings, None)


def whole_model(rounds):
    """A batch of 64 from 64 streams, beside the plain model and beside 64 batches of one with a head each."""
    torch.manual_seed(0)
    plain = neotta.load_model("timm:vit_tiny_patch16_224", pretrained=False).model
    many = neotta.adapt(copy.deepcopy(plain), "neo", streams=True)
    single = neotta.adapt(copy.deepcopy(plain), "neo")
    images, ids = torch.randn(BATCH, 3, 224, 224), [f"camera {place}" for place in range(BATCH)]

    def streams():
        with neotta.streams(ids):
            many(images)

    def one_by_one():
        for image in images.split(1):
            single(image)

    group = f"ViT-Tiny, {BATCH} images of {BATCH} streams"
    rows = compare(group, {"plain": lambda: plain(images), "streams": streams}, rounds=rounds, limits={"streams": 1.05})
    ways = {"streams": streams, "one by one": one_by_one}
    return rows + compare("the same, beside batches of one", ways, rounds=max(rounds // 4, 5))


def layer(rounds):
    """The same for what adapting adds, and for the layer with its product of matrices, on embeddings (64, 192)."""
    linear = torch.nn.Linear(192, 1000)
    heads = [neotta.NEOHead(copy.deepcopy(linear)) for _ in range(BATCH)]
    table = Streams(MeanRule(), 192, many=True)
    many = neotta.NEOHead(copy.deepcopy(linear), table)
    embeddings, ids = torch.randn(BATCH, 192), [f"camera {place}" for place in range(BATCH)]
    pairs = list(zip(heads, embeddings.split(1), strict=True))

    def adapt_streams():
        return embeddings - step(table, embeddings, ids)

    def adapt_apart():
        for head, row in pairs:
            row - head.streams.step(row, None)

    def streams():
        with neotta.streams(ids):
            many(embeddings)

    def apart():
        for head, row in pairs:
            head(row)

    rows = compare(
        "adapting to them: update, subtract",
        {"one by one": adapt_apart, "streams": adapt_streams},
        rounds=rounds,
        warmup=5,
        limits={"streams": 1 / 20},
        repeat=20,
    )
    ways = {"one by one": apart, "streams": streams}
    return rows + compare(f"the head, ({BATCH}, 192) to 1000 classes", ways, rounds=rounds, warmup=5, repeat=20)


def sizes(rounds, numbers):
    """The cost of a batch of 64 different streams while ever more of them exist."""
    tables = {}
    for number in numbers:
        table = Streams(MeanRule(), 768, many=True)
        for start in range(0, number, 1000):
            ids = range(start, min(start + 1000, number))
            step(table, torch.randn(len(ids), 768), ids)
        tables[f"{number:,} streams"] = (table, number)
    embeddings = torch.randn(BATCH, 768)
    chance = random.Random(0)

    def stepping(table, number):
        batches = itertools.cycle([chance.sample(range(number), BATCH) for _ in range(500)])
        return lambda: step(table, embeddings, next(batches))

    ways = {name: stepping(table, number) for name, (table, number) in tables.items()}
    return compare(f"{BATCH} of so many streams, d = 768", ways, rounds=rounds * 10, warmup=20)


def disk(rounds):
    """A batch of 64 streams that are in memory, and one that comes from the disk while others go there."""
    embeddings = torch.randn(BATCH, 768)
    with tempfile.TemporaryDirectory() as folder:
        spill = Spill(folder, MeanRule().layout(768).width, "benchmark")
        tables = {"in memory": Streams(MeanRule(), 768, many=True)}
        tables["from disk"] = Streams(MeanRule(), 768, many=True, capacity=1000, spill=spill)
        for table in tables.values():
            for start in range(0, 10_000, 500):
                step(table, torch.randn(500, 768), range(start, start + 500))

        def stepping(table):
            starts = itertools.cycle(range(0, 10_000 - BATCH, BATCH))  # so the oldest ones are always next
            return lambda: step(table, embeddings, range(start := next(starts), start + BATCH))

        ways = {name: stepping(table) for name, table in tables.items()}
        return compare(f"{BATCH} of 10,000 streams, 1,000 held", ways, rounds=rounds * 5, warmup=20)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    options.add_argument("--million", action="store_true", help="a million streams too: takes 4 GB")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rounds = 7 if args.quick else args.rounds
    numbers = [BATCH, 10_000, *([1_000_000] if args.million else [])]
    with torch.inference_mode():
        started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rows = sizes(rounds, numbers)
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - started) * 1024
        rows = whole_model(rounds) + layer(rounds) + rows + disk(rounds)
    about = {"streams": max(numbers), "peak_bytes": peak}
    show("Many streams in one model", rows, args.json, about)
    print(f"memory at the peak of filling a table of {max(numbers):,} streams of 768: {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
