"""Loading speed: neotta's loader beside a plain torch DataLoader over a timm-transformed ImageFolder.

Both read the same JPEG files with the same number of workers, in turn, in one run; what counts is the ratio.
Then a ViT-Small runs over the batches of either, and the share of time that it waits for data is measured.

    python benchmarks/loading.py [--data FOLDER] [--json FILE]

The exit status is 1 if our loader needs more than `LIMIT` times the CPU time of the plain one.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from side_by_side import Row, show

from neotta._words import counted
from neotta.data.loading import Loader
from neotta.data.opening import open_data
from neotta.data.orders import iid
from neotta.models._timm import guard_torchvision, timm_package
from neotta.models.preprocess import Preprocess

CLASSES = 8
LIMIT = 1.1


def make_images(folder: Path, count: int) -> None:
    """Write pictures of 300 to 500 px a side, with smooth colours and some noise as photographs have."""
    random = np.random.RandomState(0)
    for number in range(count):
        height, width = random.randint(300, 501, size=2)
        coarse = random.randint(0, 256, size=(height // 16, width // 16, 3)).astype(np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
        noisy = (smooth + random.normal(0, 8, size=smooth.shape)).clip(0, 255).astype(np.uint8)
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(noisy).save(path, quality=90)


def make_plain(folder: Path, batch_size: int, workers: int) -> Callable[[], Iterator[torch.Tensor]]:
    guard_torchvision()
    from timm.data import create_transform
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder

    half = (0.5, 0.5, 0.5)
    transform = create_transform((3, 224, 224), interpolation="bicubic", mean=half, std=half, crop_pct=0.9)
    data = ImageFolder(str(folder), transform)
    return lambda: (images for images, _ in DataLoader(data, batch_size=batch_size, num_workers=workers))


def make_ours(folder: Path, batch_size: int, workers: int) -> Callable[[], Iterator[torch.Tensor]]:
    dataset = open_data(folder, layout="folder").dataset()
    preprocess = Preprocess(size=(224, 224), resize=248, crop=True, interpolation="bicubic")
    loader = Loader(dataset, iid(dataset, batch_size=batch_size), preprocess, workers=workers)
    return lambda: (batch.images for batch in loader)


def cpu_seconds() -> float:
    """CPU time of this process and of the workers that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def drain(batches: Iterable[torch.Tensor]) -> dict[str, float]:
    """Load everything: images, wall and CPU seconds."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    images = sum(len(batch) for batch in batches)
    return {"images": images, "wall": time.perf_counter() - wall, "cpu": cpu_seconds() - cpu}


def wait(batches: Iterator[torch.Tensor], encoder: torch.nn.Module, count: int) -> dict[str, float]:
    """Run the encoder over some batches; seconds until the first, then seconds of waiting and of work."""
    times = []
    with torch.inference_mode(), contextlib.suppress(StopIteration):
        for _ in range(count + 1):
            start = time.perf_counter()
            images = next(batches)
            loaded = time.perf_counter()
            encoder(images)
            times.append((loaded - start, time.perf_counter() - loaded))
    waiting, working = (sum(column) for column in zip(*times[1:], strict=True))
    return {
        "first": times[0][0],
        "waiting": waiting,
        "working": working,
        "share": waiting / (waiting + working),
    }


def compare(makers: dict[str, Callable[[], Iterator[torch.Tensor]]], group: str, rounds: int) -> list[Row]:
    """Drain both in turn; a ratio is that of a round, ours over the plain one, so below 1 ours is faster."""
    for make in makers.values():
        drain(make())
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in makers}
    for number in range(rounds):
        for name in list(makers)[:: 1 if number % 2 else -1]:
            runs[name].append(drain(makers[name]()))
    rows = []
    for unit in ("wall", "cpu"):
        for name, measured in runs.items():
            ratios = [ours[unit] / plain[unit] for ours, plain in zip(measured, runs["plain"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            per_image = statistics.median(run[unit] / run["images"] for run in measured) * 1e3
            limit = LIMIT if (unit, name) == ("cpu", "neotta") else None
            rows.append(Row(f"{group}, {unit} time", name, per_image, middle, low, high, limit))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with one subfolder a class, instead of made images")
    parser.add_argument("--images", type=int, default=512, help="how many images to make")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--encoder-batches", type=int, default=5, help="after the first; 0: no encoder")
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    about: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        if options.data is None:
            make_images(folder, options.images)
        for workers in options.workers:
            makers = {
                "plain": make_plain(folder, options.batch_size, workers),
                "neotta": make_ours(folder, options.batch_size, workers),
            }
            rows += compare(makers, counted(workers, "worker"), options.rounds)
        if options.encoder_batches:
            about["encoder"] = encode(folder, options.batch_size, options.encoder_batches)
    show("Loading one image", rows, options.json, about)
    return int(any(row.verdict == "ABOVE" for row in rows))


def encode(folder: Path, batch_size: int, count: int) -> dict[str, object]:
    print(f"\nViT-Small on {torch.get_num_threads()} threads beside 1 worker, {count} batches of {batch_size}")
    encoder = timm_package().create_model("vit_small_patch16_224", num_classes=0).eval()
    result: dict[str, object] = {}
    for name, make in (("plain", make_plain), ("neotta", make_ours)):
        measured = wait(make(folder, batch_size, 1)(), encoder, count)
        print(
            f"{name:8} waits {measured['share']:6.2%} of the time ({measured['waiting']:.2f} s beside "
            f"{measured['working']:.2f} s of work); {measured['first']:.2f} s for the first batch"
        )
        result[name] = measured
    return result


if __name__ == "__main__":
    raise SystemExit(main())
