"""Zero-shot: CLIP or SigLIP names photos by their class names; what does adapting do to its accuracy?

    python examples/zero_shot.py photos
    python examples/zero_shot.py photos --model google/siglip-base-patch16-224 --template "a sketch of a {}"

`photos` has one folder per class, and the name of the folder is what the class is called ("golden_retriever" is read as
"golden retriever"). The model is downloaded from the Hugging Face hub on first use, or is a folder with one. It takes
the extra `neotta[lab,hf]`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoProcessor

import neotta
from neotta.data import ImageDataset, open_data, orders

METHODS = ("none", "neo", "neo-stream", "neo-continual", "t3a", "lame")


def batches(dataset: ImageDataset, processor: Any, size: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """All images as the model takes them, with their labels, in random order."""
    order = orders.iid(dataset, seed=seed).index.tolist()
    found = []
    for start in range(0, len(order), size):
        part = order[start : start + size]
        images = processor(images=[dataset.read(index) for index in part], return_tensors="pt")["pixel_values"]
        found.append((images, torch.tensor([int(dataset.labels[index]) for index in part])))
        print(f"{min(start + size, len(order))} of {len(order)} images read", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    return found


def accuracy(method: str, classifier: torch.nn.Module, data: list[tuple[Tensor, Tensor]]) -> float:
    """Share of images that a method gets right while it adapts."""
    adapter = neotta.create(method, classifier)
    right = sum(int((adapter(images).argmax(dim=1) == labels).sum()) for images, labels in data)
    adapter.detach()
    return 100 * right / sum(len(labels) for _, labels in data)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", type=Path, help="a folder with one folder of images per class")
    parser.add_argument("--model", default="openai/clip-vit-base-patch32", help="name on the hub, or folder")
    parser.add_argument("--template", action="append", help="a sentence with {} for the class; may be repeated")
    parser.add_argument("--batch", type=int, default=64, help="images per batch (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: 0)")
    given = parser.parse_args()
    dataset = open_data(given.photos, layout="folder").dataset()
    if dataset.classes is None or len(dataset.classes) < 2:
        parser.error(f"{given.photos} has no folders of two or more classes")
    names = [name.replace("_", " ") for name in dataset.classes]
    model, processor = AutoModel.from_pretrained(given.model).eval(), AutoProcessor.from_pretrained(given.model)
    classifier = neotta.zero_shot(model, processor, given.template or ["a photo of a {}"], names)
    data = batches(dataset, processor, given.batch, given.seed)
    print("| method | accuracy in % |\n|---|---|")
    for method in METHODS:
        print(f"| {method} | {accuracy(method, classifier, data):.1f} |")


if __name__ == "__main__":
    main()
