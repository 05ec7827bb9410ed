"""What a sweep from cached embeddings costs beside one plain pass of the encoder.

The NEO family (neo, neo-mse, and neo-continual with 6 alphas), T3A and LAME with 3 seeds, 6 batch sizes and 8 sample
counts on one domain, over a thousand runs. Without the cache each of them would take the encoder through its own
samples.

    python benchmarks/sweep.py [--images 2000] [--model vit_small_patch16_224] [--protocol hold-out] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from side_by_side import machine

from neotta.data.loading import Loader
from neotta.data.orders import iid
from neotta.evaluate.plan import Plan
from neotta.evaluate.records import Records
from neotta.evaluate.sweep import Watcher, sweep
from neotta.evaluate.workbench import Workbench

CLASSES = 10
LIMIT = 1.25
METHODS = "neo,neo-mse,neo-continual:alpha=0.01|0.02|0.05|0.1|0.2|0.5,t3a,lame"
BATCH_SIZES = [1, 4, 8, 16, 32, 64]  # those of the paper
SHARES = [1 / 250, 1 / 125, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1]


class Pass(NamedTuple):
    """One pass of the plain model."""

    seconds: float
    cpu: float


class Clock(Watcher):
    """When the encoder was done."""

    def planned(self, runs, skipped, images):
        self.runs, self.images, self.start = runs, images, time.perf_counter()

    def encoded(self, count):
        self.encoding = time.perf_counter() - self.start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--images", type=int, default=2000)
    options.add_argument("--model", default="vit_small_patch16_224", help="of timm, with random weights")
    options.add_argument("--protocol", default="online", choices=["online", "hold-out"])
    options.add_argument("--threads", type=int, help="of torch (default: all cores)")
    options.add_argument(
        "--jobs", type=int, help="processes of the sweep (default: as many as the encoder has threads)"
    )
    options.add_argument("--pass-images", type=int, help="time the plain pass on so many images, and scale it up")
    options.add_argument("--json", type=Path, help="save the figures in this file")
    args = options.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_images(folder / "images", args.images)
        counts = sorted({max(1, round(args.images * share)) for share in SHARES})
        if args.protocol == "hold-out":
            counts[-1] = args.images // 2
        plan = Plan.make(
            {
                "model": f"timm:{args.model}",
                "model_options": {"pretrained": False, "num_classes": 1000},
                "data": f"folder={folder / 'images'}",
                "methods": METHODS,
                "seeds": 3,
                "batch_sizes": BATCH_SIZES,
                "samples": counts,
                "protocol": args.protocol,
            }
        )
        bench = Workbench.for_plan(plan)
        one_pass(bench, 8, args.images)
        before = one_pass(bench, args.pass_images or args.images, args.images)
        clock = Clock()
        jobs = args.jobs or torch.get_num_threads()
        began, cpu = time.perf_counter(), cpu_seconds()
        fresh = Workbench.for_plan(plan, cache=folder / "cache")
        summary = sweep(fresh, plan, folder / "results.jsonl", jobs=jobs, progress=clock)
        total, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        after = one_pass(bench, args.pass_images or args.images, args.images)
        if summary.failed:
            raise SystemExit(summary.failed[0]["error"])
        seen = sum(record["count"] for record in Records(folder / "results.jsonl").read())
        if args.protocol == "hold-out":
            seen += sum(run.samples for run in clock.runs)
    report(args, clock, before, after, total, cpu, seen / args.images)


def make_images(folder: Path, count: int) -> None:
    """Pictures of 256 px, smooth as photographs are, in folders of classes."""
    random = np.random.RandomState(0)
    for number in range(count):
        coarse = Image.fromarray(random.randint(0, 256, size=(12, 12, 3)).astype(np.uint8))
        path = folder / f"class{number % CLASSES}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=90)


def one_pass(bench: Workbench, images: int, scaled_to: int) -> Pass:
    """What it takes the plain model to see images once, loaded as usual; from some of them to all."""
    name = bench.data.names()[0]
    order = iid({name: bench.data.dataset(name)}, samples=images)
    began, cpu = time.perf_counter(), cpu_seconds()
    with torch.inference_mode():
        for batch in Loader({name: bench.data.dataset(name)}, order, bench.loaded.preprocess):
            bench.model(batch.images)
    scale = scaled_to / images
    return Pass((time.perf_counter() - began) * scale, (cpu_seconds() - cpu) * scale)


def cpu_seconds() -> float:
    """Of this process and those it started and waited for."""
    mine, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return mine.ru_utime + mine.ru_stime + others.ru_utime + others.ru_stime


def report(args, clock, before, after, total, cpu, passes) -> None:
    plain, plain_cpu = (before.seconds + after.seconds) / 2, (before.cpu + after.cpu) / 2
    runs = len(clock.runs)
    rows = [
        ("one plain pass", plain, f"before and after: {before.seconds:.1f} and {after.seconds:.1f} s"),
        ("the sweep, all in all", total, f"{runs:,} runs"),
        ("  of it: encoding", clock.encoding, f"{clock.images:,} images, each once"),
        ("  of it: everything else", total - clock.encoding, f"{1e3 * (total - clock.encoding) / runs:.1f} ms a run"),
        ("without the cache", passes * plain, f"{passes:.0f} passes (reckoned, not measured)"),
    ]
    title = f"{args.model}, {args.images:,} images, {args.protocol}, {torch.get_num_threads()} threads"
    table = Table("", "seconds", "passes", "", title=title, title_justify="left", box=None)
    for name, seconds, note in rows:
        table.add_row(name, f"{seconds:.1f}", f"{seconds / plain:.2f}", note)
    console = Console(width=110)
    console.print(table)
    verdict = "within" if total <= LIMIT * plain else "ABOVE"
    console.print(f"the sweep costs {total / plain:.2f} plain passes: {verdict} the limit of {LIMIT}")
    console.print(
        f"in CPU time, which a busy machine disturbs less: {cpu:.0f} s to {plain_cpu:.0f} s, {cpu / plain_cpu:.2f}"
    )
    if args.json:
        figures = {name.strip(): seconds for name, seconds, _ in rows}
        content = {
            "title": title,
            **machine(),
            "ratio": total / plain,
            "limit": LIMIT,
            "runs": runs,
            "cpu ratio": cpu / plain_cpu,
        }
        args.json.write_text(json.dumps({**content, "seconds": figures, "passes": passes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
