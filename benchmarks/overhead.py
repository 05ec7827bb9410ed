"""What NEO costs beside the plain model: time and memory, ViT-Tiny and ViT-Small shapes, batches of 1, 8 and 64.

    python benchmarks/overhead.py [--quick] [--layer] [--json FILE]

The layer alone is measured in two ways: many calls in a row, and one call at a time, each after a product with other
weights that has emptied the cache, as the encoder does. Beside it stands its arithmetic written inline, without a lock,
without checks: nothing made of torch's operations can be faster. With a cold cache each operation costs some 5 to 20 µs
however little it computes, and that does not become less with more threads, as the product does.
"""

from __future__ import annotations

import copy
import math

import torch
from side_by_side import compare, parser, show
from torch.nn import functional as F

import neotta

LIMITS = {1: 1.03, 8: 1.03, 64: 1.01}
STREAM_LIMITS = {1: 1.05, 8: 1.06, 64: 1.02}
CAMERAS, CAMERA_LIMIT = 64, 1.06


def models(name):
    """The plain model, the same with NEO, NEO-Stream, one stream per camera, and folded, sharing no weights."""
    torch.manual_seed(0)
    plain = neotta.load_model(f"timm:{name}", pretrained=False).model
    neo, stream = (neotta.adapt(copy.deepcopy(plain), method) for method in ("neo", "neo-stream"))
    cameras = neotta.adapt(copy.deepcopy(plain), "neo-stream", streams=True)
    folded = copy.deepcopy(plain)
    neotta.adapt(folded, "neo")
    folded(torch.randn(8, 3, 224, 224))
    return plain, neo, stream, cameras, neotta.fold(folded)


def of_cameras(model, images):
    """A batch with one image of each camera."""
    with neotta.streams(range(len(images))):
        return model(images)


def inline(linear, embeddings):
    """What the layer computes, and nothing else."""
    count, mean = torch.zeros((), dtype=torch.int64), torch.zeros(embeddings.shape[1], dtype=torch.float64)

    def step():
        total, size = embeddings.sum(0), len(embeddings)
        if not math.isfinite(total.sum().item()):
            raise ValueError
        seen = count.item() + size
        count.fill_(seen)
        mean.mul_(1 - size / seen).add_(total, alpha=1 / seen)
        return F.linear(embeddings - mean.float(), linear.weight, linear.bias)

    return step


def layer(group, rounds, repeat=1, limit=None):
    """The layer against nn.Linear, each with weights of its own, so that none warms the cache for another."""
    linear, embeddings = torch.nn.Linear(768, 1000), torch.randn(64, 768)
    head = neotta.NEOHead(copy.deepcopy(linear))
    stream = neotta.adapt(torch.nn.Sequential(copy.deepcopy(linear)), "neo-stream", head="0")[0]
    folded = copy.deepcopy(head.folded())
    ways = {
        "nn.Linear": lambda: linear(embeddings),
        "NEOHead": lambda: head(embeddings),
        "NEO-Stream": lambda: stream(embeddings),
        "folded": lambda: folded(embeddings),
        "inline": inline(copy.deepcopy(linear), embeddings),
    }
    limits = {"NEOHead": limit, "folded": limit and 1.03}
    return compare(group, ways, rounds=rounds, warmup=50 // repeat, limits=limits, repeat=repeat)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds and only ViT-Tiny")
    options.add_argument("--layer", action="store_true", help="only the layer")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rounds = 7 if args.quick else max(args.rounds, 31)
    names = ["vit_tiny_patch16_224", "vit_small_patch16_224"][: 0 if args.layer else 1 if args.quick else 2]
    rows = []
    with torch.inference_mode():
        for name in names:
            plain, neo, stream, cameras, folded = models(name)
            for batch in (1, 8, 64):
                images = torch.randn(batch, 3, 224, 224)
                ways = {
                    "plain": lambda images=images, plain=plain: plain(images),
                    "neo": lambda images=images, neo=neo: neo(images),
                    "neo-stream": lambda images=images, stream=stream: stream(images),
                    "folded": lambda images=images, folded=folded: folded(images),
                }
                limits = {"neo": LIMITS[batch], "neo-stream": STREAM_LIMITS[batch], "folded": LIMITS[batch]}
                if batch == CAMERAS:
                    ways["64 cameras"] = lambda images=images, cameras=cameras: of_cameras(cameras, images)
                    limits["64 cameras"] = CAMERA_LIMIT
                rows += compare(f"{name}, batch {batch}", ways, rounds=rounds * (5 if batch == 1 else 1), limits=limits)
        rows += layer("layer (64, 768) -> 1000, in a row", rounds * 4, repeat=20)
        rows += layer("the same, one call at a time", rounds * 30)
    state = neotta.NEOHead(torch.nn.Linear(768, 1000)).streams.table.nbytes
    show("NEO against plain inference", rows, args.json, {"state_bytes": state})
    print(f"state of NEO for 768 features: {state} bytes (one vector and five numbers)")


if __name__ == "__main__":
    main()
