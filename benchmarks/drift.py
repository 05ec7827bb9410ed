"""How soon a change of domain is noticed, and how often there is a false alarm.

The bundled digits and their model, all 15 corruptions at severity 5. From clean to each corruption: samples until the
alarm (median over seeds), and how often it came at all. In streams that do not change: false alarms per 10,000
samples, beside the stated bound.

python benchmarks/drift.py [--seeds 3] [--batch-size 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from side_by_side import machine

import neotta
from neotta.data import digits
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.monitoring import ChangeDetector

CLEAN = "clean"
SEVERITY = 5
BEFORE = 400
"""Clean samples before a change."""

STREAM = 10_000
"""Samples of a stream that does not change."""

RATES = (1e-6, 1e-5, 1e-4)


def encode():
    """Embeddings by domain, (n, d) each."""
    model, preprocess, *_ = neotta.load_model("digits")
    encoder, _ = neotta.split(model)
    data = digits("test")
    clean = [data.read(index) for index in range(len(data))]
    found = {}
    for name in (CLEAN, *CORRUPTIONS):
        images = [
            image if name == CLEAN else corrupt(image, name, SEVERITY, "cifar", 0, image_id=id)
            for image, id in zip(clean, data.ids, strict=True)
        ]
        batches = torch.split(preprocess.batch(np.stack(images)), 128)
        with torch.inference_mode():
            found[name] = torch.cat([encoder(part) for part in batches]).numpy()
    return found


def alarms(rows, batch_size, rate=1e-6):
    """The samples after which there was an alarm; each time the detector starts again."""
    detector = ChangeDetector(rows.shape[1], false_alarm_rate=rate)
    found, start = [], 0
    while start < len(rows):
        alarm = detector.observe(rows[start : start + batch_size])
        start += batch_size if alarm is None else alarm.position + 1
        if alarm is not None:
            found.append(start)
            detector.restart(detector.recent(alarm.since))
    return found


def delays(embeddings, seeds, batch_size):
    """Samples from clean to the alarm, for each corruption and seed; None where it never came, below 0 if false."""
    found = {name: [] for name in CORRUPTIONS}
    for name, seed in [(name, seed) for name in CORRUPTIONS for seed in range(seeds)]:
        order = np.random.default_rng(seed).permutation(len(embeddings[CLEAN]))
        rest = np.random.default_rng(seed + 1000).permutation(len(embeddings[name]))
        rows = np.concatenate([embeddings[CLEAN][order[:BEFORE]], embeddings[name][rest]])
        found[name].append(next((sample - BEFORE for sample in alarms(rows, batch_size)), None))
    return found


def false_alarms(embeddings, seeds, rate):
    """Alarms in streams of one domain, drawn with replacement; their number and that of the samples."""
    count = 0
    for name, seed in [(name, seed) for name in (CLEAN, "fog") for seed in range(seeds)]:
        which = np.random.default_rng(seed).integers(len(embeddings[name]), size=STREAM)
        count += len(alarms(embeddings[name][which], 250, rate))
    return count, 2 * seeds * STREAM


def table(title, columns, rows):
    shown = Table(*columns, title=title, title_justify="left", box=None)
    for row in rows:
        shown.add_row(*row)
    Console(width=110).print(shown, "")


def show(result):
    """Print what was measured."""
    rows = []
    for name, values in result["delays"].items():
        known = [value for value in values if value is not None]
        rows.append((name, f"{np.median(known):.0f}" if known else "–", f"{len(known)} of {len(values)}"))
    table("From clean to a corruption", ("", "samples until the alarm", "noticed"), rows)
    rows = [
        (f"{rate:g}", f"{count / samples * 1e4:.3f}", f"{rate * 1e4:g}", f"{count} in {samples:,}")
        for rate, count, samples in result["false-alarms"]
    ]
    table("Streams that do not change", ("rate", "false alarms in 10,000", "bound", ""), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--json", help="save the figures in this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    embeddings = encode()
    result = {
        "delays": delays(embeddings, args.seeds, args.batch_size),
        "false-alarms": [(rate, *false_alarms(embeddings, args.seeds, rate)) for rate in RATES],
    }
    show(result)
    if args.json:
        about = {"title": __doc__.splitlines()[0], **machine(), **vars(args)}
        Path(args.json).write_text(json.dumps({**about, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
