"""What NEO costs beside the plain model: time and memory, ViT-Tiny and ViT-Small shapes, batches of 1, 8 and 64.

python benchmarks/overhead.py [--quick] [--json FILE]
"""

from __future__ import annotations

import copy

import torch
from side_by_side import compare, parser, show

import neotta
from neotta.models._torchvision import guard

LIMITS = {1: 1.03, 8: 1.03, 64: 1.01}


def models(name):
    """The plain model, the same with NEO, and the same folded, sharing no weights."""
    guard()
    import timm

    torch.manual_seed(0)
    plain = timm.create_model(name, pretrained=False).eval()
    neo = neotta.adapt(copy.deepcopy(plain))
    folded = copy.deepcopy(plain)
    neotta.adapt(folded)
    folded(torch.randn(8, 3, 224, 224))
    return plain, neo, neotta.fold(folded)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="fewer rounds and only ViT-Tiny")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    rounds = 7 if args.quick else max(args.rounds, 31)
    rows = []
    with torch.inference_mode():
        for name in ("vit_tiny_patch16_224", "vit_small_patch16_224")[: 1 if args.quick else 2]:
            plain, neo, folded = models(name)
            for batch in (1, 8, 64):
                images = torch.randn(batch, 3, 224, 224)
                ways = {
                    "plain": lambda images=images, plain=plain: plain(images),
                    "neo": lambda images=images, neo=neo: neo(images),
                    "folded": lambda images=images, folded=folded: folded(images),
                }
                limits = {"neo": LIMITS[batch], "folded": LIMITS[batch]}
                rows += compare(f"{name}, batch {batch}", ways, rounds=rounds * (5 if batch == 1 else 1), limits=limits)
        linear = torch.nn.Linear(768, 1000)
        head = neotta.NEOHead.from_linear(copy.deepcopy(linear))
        embeddings = torch.randn(64, 768)
        folded = head.folded()
        rows += compare(
            "layer (64, 768) -> 1000",
            {
                "nn.Linear": lambda: linear(embeddings),
                "NEOHead": lambda: head(embeddings),
                "folded": lambda: folded(embeddings),
            },
            rounds=rounds * 10,
            warmup=50,
            limits={"NEOHead": 1.10, "folded": 1.03},
        )
    state = sum(buffer.numel() * buffer.element_size() for buffer in head.centroid.buffers())
    show("NEO against plain inference", rows, args.json, {"state_bytes": state})
    print(f"state of NEO for 768 features: {state} bytes (one vector and four numbers)")


if __name__ == "__main__":
    main()
