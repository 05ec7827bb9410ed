"""Time of every corruption, beside that of the public scripts.

    python benchmarks/corruptions.py [--size 224] [--repeats 7] [--json FILE]

CPU time of one thread, best of some repeats, after a first call that fills the caches. The times of the
public scripts were measured once, on another machine: they give the order of magnitude. At 224 pixels the 15
corruptions together must take at most 100 ms an image, and none more than 20; else the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from neotta._files import atomic
from neotta.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, corrupt
from neotta.data.corruptions.common import draws_for, fractal

LIMIT_ALL, LIMIT_EACH = 100.0, 20.0
PRESET = {224: "imagenet", 64: "tiny", 32: "cifar"}

# Mean over the severities, ms per image, at 224, 64 and 32 pixels.
PUBLIC = {
    "gaussian_noise": (5.41, 0.30, 0.10),
    "shot_noise": (13.01, 0.75, 0.24),
    "impulse_noise": (4.46, 0.23, 0.13),
    "defocus_blur": (4.82, 0.38, 0.23),
    "glass_blur": (972.57, 53.32, 13.06),
    "motion_blur": (72.41, 4.17, 1.26),
    "zoom_blur": (82.02, 9.72, 2.96),
    "snow": (42.52, 3.90, 1.62),
    "frost": (2.79, 2.37, 2.25),
    "fog": (3.98, 0.71, 0.54),
    "brightness": (21.68, 1.32, 0.48),
    "contrast": (1.98, 0.21, 0.08),
    "elastic_transform": (33.78, 1.53, 0.58),
    "pixelate": (0.51, 0.08, 0.04),
    "jpeg_compression": (0.39, 0.20, 0.17),
    "speckle_noise": (3.54, 0.31, 0.10),
    "gaussian_blur": (2.87, 0.23, 0.14),
    "spatter": (4.59, 0.56, 0.31),
    "saturate": (21.42, 1.30, 0.49),
}


def picture(size):
    """Coloured clouds: the spectrum of a photograph, and all levels."""
    side = 1 << (size - 1).bit_length()
    planes = [fractal(draws_for(channel, "", "fog", 1), side, 1.5)[:size, :size] for channel in range(3)]
    return (np.stack(planes, axis=2) * 255).astype(np.uint8)


def milliseconds(image, name, severity, preset, repeats):
    corrupt(image, name, severity, preset)
    best = float("inf")
    for seed in range(repeats):
        start = time.process_time()
        corrupt(image, name, severity, preset, seed)
        best = min(best, time.process_time() - start)
    return 1000 * best


def table_of(times, size):
    table = Table(title=f"ms per image, {size} px, one core")
    table.add_column("corruption")
    for severity in SEVERITIES:
        table.add_column(str(severity), justify="right")
    for heading in ("mean", "public", "times faster"):
        table.add_column(heading, justify="right")
    for name, row in times.items():
        mean, public = float(np.mean(row)), PUBLIC[name][list(PRESET).index(size)]
        cells = [f"{value:.2f}" for value in (*row, mean, public)]
        table.add_row(name, *cells, f"{public / mean:.1f}", end_section=name == CORRUPTIONS[-1])
    return table


def main():
    parser = argparse.ArgumentParser(description="Time of every corruption.")
    parser.add_argument("--size", type=int, choices=list(PRESET), default=224)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="save the numbers here")
    options = parser.parse_args()

    image = picture(options.size)
    times = {
        name: [milliseconds(image, name, severity, PRESET[options.size], options.repeats) for severity in SEVERITIES]
        for name in CORRUPTIONS + EXTRA_CORRUPTIONS
    }
    together = sum(float(np.mean(times[name])) for name in CORRUPTIONS)
    public = sum(PUBLIC[name][list(PRESET).index(options.size)] for name in CORRUPTIONS)
    slowest, most = max(((name, max(row)) for name, row in times.items()), key=lambda pair: pair[1])
    console = Console(width=110)
    console.print(table_of(times, options.size))
    console.print(f"the 15 together: {together:.1f} ms (limit {LIMIT_ALL:.0f}; public scripts {public:.0f})")
    console.print(f"slowest: {slowest} with {most:.1f} ms (limit {LIMIT_EACH:.0f})")
    if options.json:
        record = {"size": options.size, "ms": times, "sum_of_15": together, "public_sum_of_15": public}
        with atomic(options.json) as file:
            file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(together > LIMIT_ALL or most > LIMIT_EACH)


if __name__ == "__main__":
    raise SystemExit(main())
