"""What one model for many streams costs: beside plain inference, beside one head per stream, and per stream kept.

One by one, the whole model gains from the batch only where a batch of one leaves the device idle (a GPU, many cores);
what adapting itself costs is shown on its own.

python benchmarks/streams.py [--quick] [--million] [--json FILE]
"""

from __future__ import annotations

import copy
import itertools
import random
import resource

import torch
from side_by_side import compare, parser, show

import neotta
from neotta.fleet.centroids import StreamCentroids
from neotta.fleet.head import StreamHead
from neotta.models._torchvision import guard

BATCH = 64


def whole_model(rounds):
    """A batch of 64 from 64 streams, beside the plain model and beside 64 batches of one with a head each."""
    guard()
    import timm

    torch.manual_seed(0)
    plain = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    many = neotta.adapt(copy.deepcopy(plain), streams=True)
    single = neotta.adapt(copy.deepcopy(plain))
    images, ids = torch.randn(BATCH, 3, 224, 224), [f"camera {place}" for place in range(BATCH)]

    def streams():
        with neotta.streams(ids):
            many(images)

    def one_by_one():
        for image in images.split(1):
            single(image)

    group = f"ViT-Tiny, batch {BATCH} of {BATCH} streams"
    rows = compare(group, {"plain": lambda: plain(images), "streams": streams}, rounds=rounds, limits={"streams": 1.05})
    return rows + compare(f"{group} ", {"streams": streams, "one by one": one_by_one}, rounds=max(rounds // 4, 5))


def layer(rounds):
    """The same for what adapting adds, and for the layer with its product of matrices, on embeddings (64, 192)."""
    linear = torch.nn.Linear(192, 1000)
    heads = [neotta.NEOHead.from_linear(copy.deepcopy(linear)) for _ in range(BATCH)]
    many = StreamHead.from_linear(copy.deepcopy(linear))
    embeddings, ids = torch.randn(BATCH, 192), [f"camera {place}" for place in range(BATCH)]
    pairs = list(zip(heads, embeddings.split(1), strict=True))

    def adapt_streams():
        return embeddings - many.streams.step(embeddings, ids)

    def adapt_apart():
        for head, row in pairs:
            head.centroid.update(row)
            head.recenter(row)

    def streams():
        with neotta.streams(ids):
            many(embeddings)

    def apart():
        for head, row in pairs:
            head(row)

    rows = compare(
        f"adapting {BATCH} streams (update, subtract)",
        {"one by one": adapt_apart, "streams": adapt_streams},
        rounds=rounds,
        warmup=5,
        limits={"streams": 1 / 20},
        repeat=20,
    )
    ways = {"one by one": apart, "streams": streams}
    return rows + compare(f"layer ({BATCH}, 192) -> 1000", ways, rounds=rounds, warmup=5, repeat=20)


def sizes(rounds, numbers):
    """The cost of a batch of 64 different streams while ever more of them exist."""
    tables = {}
    for number in numbers:
        table = StreamCentroids(768)
        for start in range(0, number, 1000):
            ids = range(start, min(start + 1000, number))
            table.step(torch.randn(len(ids), 768), ids)
        tables[f"{number:,} streams"] = (table, number)
    embeddings = torch.randn(BATCH, 768)
    chance = random.Random(0)

    def stepping(table, number):
        batches = itertools.cycle([chance.sample(range(number), BATCH) for _ in range(500)])
        return lambda: table.step(embeddings, next(batches))

    ways = {name: stepping(table, number) for name, (table, number) in tables.items()}
    return compare(f"batch {BATCH}, d = 768", ways, rounds=rounds * 10, warmup=20)


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
        rows = whole_model(rounds) + layer(rounds) + rows
    about = {"streams": max(numbers), "peak_bytes": peak}
    show("Many streams in one model", rows, args.json, about)
    print(f"memory at the peak of filling a table of {max(numbers):,} streams of 768: {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
