"""How soon a change of domain is noticed, how often there is a false alarm, and what reacting to it is worth.

The bundled digits and their model, all 15 corruptions at severity 5. Parts:

- delays: from clean to each corruption, samples until the alarm (median over seeds), and how often it came at all;
- false-alarms: streams that do not change: false alarms per 10,000 samples, beside the stated bound;
- bursts: streams of bursts of one class: false alarms without a change, and delays with one;
- constants: the bursts with other values of EVERY and CLEAR of `monitoring/label_draws.py` (only if it is named);
- reactions: streams that run through all domains: accuracy of the plain model, NEO and NEO-Continual, and of NEO with
  a monitor that resets it, or takes the nearest centroid out of a library (of all domains, or of every second one) made
  from other images.

The constants of the monitor were chosen on the digits, so both parts with bursts can be run on other images as well:

python benchmarks/drift.py [--seeds 3] [--parts delays,bursts] [--batch-size 16] [--json FILE]
python benchmarks/drift.py --parts bursts --model py:docs/results/models.py:resnet20 \\
    --checkpoint data/models/cifar10_resnet20.safetensors --data cifar-10=data/cifar10_test_4000.npz --preset cifar
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from side_by_side import machine

import neotta
from neotta.data import digits, orders
from neotta.data.corruptions import CORRUPTIONS, corrupt
from neotta.evaluate.plan import Plan
from neotta.evaluate.session import Session
from neotta.monitoring import ChangeDetector, label_draws

CLEAN = "clean"
SEVERITY = 5
BEFORE = 400
"""Clean samples before a change."""

LIBRARY = 256
"""Images of each known domain."""

BURSTS = 4_000
"""Samples of a stream of bursts, before the change if there is one."""

AFTER = 2_000
"""Samples of such a stream after the change."""

STREAM = 10_000
"""Samples of a stream that does not change."""

SOME = ("fog", "contrast", "gaussian_noise", "pixelate")
"""The corruptions that streams of bursts change to."""

CONSTANTS = {"EVERY": (8, 16, 32), "CLEAR": (2.0, 2.5, 3.0)}
"""Values that are tried of the constants of the monitor."""

PARTS = ("delays", "false-alarms", "bursts", "reactions", "constants")


def encode(split, count=None):
    """Embeddings by domain, (n, d) each, and the labels."""
    model, preprocess, *_ = neotta.load_model("digits")
    encoder, _ = neotta.split(model)
    data = digits(split)
    clean = [data.read(index) for index in range(len(data))][:count]
    found = {}
    for name in (CLEAN, *CORRUPTIONS):
        images = [
            image if name == CLEAN else corrupt(image, name, SEVERITY, "cifar", 0, image_id=id)
            for image, id in zip(clean, data.ids, strict=False)
        ]
        with torch.inference_mode():
            found[name] = torch.cat([encoder(part) for part in torch.split(preprocess.batch(np.stack(images)), 128)])
    return model, found, torch.as_tensor(data.labels[:count])


def encode_with(args, count=600):
    """The same for any model and images, and a few corruptions only."""
    made = {} if args.checkpoint is None else {"checkpoint": args.checkpoint}
    about = {"model": args.model, "data": args.data, "model_options": made, "corruption_preset": args.preset}
    bench = Session(Plan(**about, corruptions=["all"]), cache=args.cache)
    found = {}
    which = np.random.RandomState(0).permutation(len(bench.data.dataset(CLEAN).ids))[:count]
    for name in (CLEAN, *SOME):
        dataset = bench.data.dataset(name if name == CLEAN else f"{name}/{SEVERITY}")
        bench.embeddings.fill(dataset, which)
        found[name], kept = bench.embeddings.get(dataset, which)
        if len(kept) < len(which):
            raise SystemExit(f"{len(which) - len(kept)} images of {name} cannot be read")
    return bench.model, found, torch.as_tensor(np.asarray(bench.data.dataset(CLEAN).labels)[which])


def delays(embeddings, seeds, batch_size):
    """Samples from clean to the alarm, for each corruption and seed; None where it never came."""
    found = {}
    for name in CORRUPTIONS:
        found[name] = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(embeddings[CLEAN]))
            rest = np.random.default_rng(seed + 1000).permutation(len(embeddings[name]))
            rows = torch.cat([embeddings[CLEAN][order[:BEFORE]], embeddings[name][rest]]).numpy()
            found[name].append(first_alarm(rows, batch_size))
    return found


def first_alarm(rows, batch_size):
    """How long after the change the alarm came; below 0 it was a false one."""
    detector = ChangeDetector(rows.shape[1])
    for start in range(0, len(rows), batch_size):
        alarm = detector.observe(rows[start : start + batch_size])
        if alarm is not None:
            return start + alarm.position + 1 - BEFORE
    return None


def false_alarms(embeddings, seeds, rate):
    """Alarms in streams of one domain, drawn with replacement; their number and that of the samples."""
    alarms = samples = 0
    for seed in range(seeds):
        for name in (CLEAN, "fog"):
            rng = np.random.default_rng(seed)
            rows = embeddings[name].numpy()[rng.integers(len(embeddings[name]), size=STREAM)]
            monitor = neotta.Monitor(false_alarm_rate=rate)
            for start in range(0, STREAM, 250):
                monitor.observe(rows[start : start + 250])
            alarms, samples = alarms + len(monitor.changes), samples + STREAM
    return alarms, samples


def places_of_bursts(labels, length, samples, rng):
    """Places of images in bursts of one class, drawn with replacement."""
    classes = np.unique(labels)
    return np.concatenate(
        [rng.choice(np.flatnonzero(labels == rng.choice(classes)), length) for _ in range(samples // length)]
    )


def alarms_of(model, rows, rate, unit):
    """The samples at which a monitor of NEO raises an alarm in a stream of embeddings, (n, d)."""
    adapter = neotta.create("neo", model)
    monitor = neotta.Monitor(adapter, false_alarm_rate=rate, unit=unit)
    for part in torch.split(rows, 16):
        adapter.predict_embeddings(part)
    return [change.sample for change in monitor.changes]


def bursts(model, embeddings, labels, seeds, rate, units=("label", "sample"), first=0):
    """False alarms and delays in streams of bursts of one class, by length of the bursts and what is tested."""
    found = []
    shown = labels.numpy()
    for length in (20, 200):
        for unit in units:
            alarms = samples = 0
            delay = []
            for seed in range(first, first + seeds):
                rng = np.random.default_rng(seed)
                for name in SOME:
                    before = embeddings[CLEAN][places_of_bursts(shown, length, BURSTS, rng)]
                    after = embeddings[name][places_of_bursts(shown, length, AFTER, rng)]
                    at = alarms_of(model, torch.cat([before, after]), rate, unit)
                    early = sum(sample <= BURSTS for sample in at)
                    alarms, samples = alarms + early, samples + BURSTS
                    delay.append(next((sample - BURSTS for sample in at if sample > BURSTS), None))
            found.append({"length": length, "unit": unit, "alarms": alarms, "samples": samples, "delays": delay})
    return found


def constants(model, embeddings, labels, seeds, rate):
    """What `bursts` finds with other constants of the monitor."""
    found = []
    chosen = {name: getattr(label_draws, name) for name in CONSTANTS}
    try:
        for values in itertools.product(*CONSTANTS.values()):
            tried = dict(zip(CONSTANTS, values, strict=True))
            for name, value in tried.items():
                setattr(label_draws, name, value)
            found += [tried | one for one in bursts(model, embeddings, labels, seeds, rate, ["label"])]
    finally:
        for name, value in chosen.items():
            setattr(label_draws, name, value)
    return found


def ways(model, folder):
    """The adapters to compare, fresh, by name, and the monitors of some of them."""
    names = {"none": "none", "neo": "neo", "neo-continual": "neo-continual"}
    adapters = {name: neotta.create(method, model) for name, method in names.items()}
    monitors = {}
    for name, action, library in (
        ("neo + reset", "reset", None),
        ("neo + nearest of all", "nearest", folder / "all"),
        ("neo + nearest of half", "nearest", folder / "half"),
    ):
        adapters[name] = neotta.create("neo", model)
        monitors[name] = neotta.Monitor(adapters[name], library, action=action)
    return adapters, monitors


def fill(model, known, folder):
    """Make the libraries from images that no stream shows."""
    for position, (name, embeddings) in enumerate(known.items()):
        adapter = neotta.create("neo", model)
        adapter.predict_embeddings(embeddings)
        neotta.DomainLibrary(folder / "all").add(name, adapter)
        if position % 2 == 0:
            neotta.DomainLibrary(folder / "half").add(name, adapter)


def run(model, embeddings, labels, folder, seed, samples, batch_size):
    """Accuracy of each way over one stream through all domains, and what the monitor noticed."""
    stream = orders.continual(
        {name: labels.numpy() for name in embeddings}, samples=samples, seed=seed, batch_size=batch_size
    )
    adapters, monitors = ways(model, folder)
    right = dict.fromkeys(adapters, 0)
    for part in stream.batches():
        name = stream.domains[stream.domain[part.start]]
        rows = torch.as_tensor(stream.index[part].copy())
        for way, adapter in adapters.items():
            logits = adapter.predict_embeddings(embeddings[name][rows])
            right[way] += int((logits.argmax(1) == labels[rows]).sum())
    accuracy = {way: count / len(stream) for way, count in right.items()}
    domains = [(change.sample - 1) // samples for change in monitors["neo + reset"].changes]
    noticed = len(set(domains) - {0})
    return accuracy, {"changes": len(embeddings) - 1, "noticed": noticed, "others": len(domains) - noticed}


def table(title, columns, rows):
    shown = Table(*columns, title=title, title_justify="left", box=None)
    for row in rows:
        shown.add_row(*map(str, row))
    Console(width=110).print(shown, "")


def delay_of(values):
    """The median delay, and how often there was one."""
    found = [value for value in values if value is not None]
    return f"{np.median(found):.0f}" if found else "–", f"{len(found)} of {len(values)}"


def show(result, seeds):
    """Print what was measured."""
    if "delays" in result:
        rows = [(name, *delay_of(values)) for name, values in result["delays"].items()]
        table("From clean to a corruption", ("", "samples until the alarm", "noticed"), rows)
    if "false-alarms" in result:
        rows = [
            (f"{rate:g}", f"{alarms / samples * 1e4:.3f}", f"{rate * 1e4:g}", f"{alarms} in {samples:,}")
            for rate, alarms, samples in result["false-alarms"]
        ]
        table("Streams that do not change", ("rate", "false alarms in 10,000", "bound", ""), rows)
    if "bursts" in result:
        rows = [
            (
                f"{one['length']} per class",
                one["unit"],
                f"{one['alarms'] / one['samples'] * 1e4:.2f}",
                f"{one['alarms']} in {one['samples']:,}",
                *delay_of(one["delays"]),
            )
            for one in result["bursts"]
        ]
        columns = ("bursts", "unit", "false alarms in 10,000", "", "samples until the alarm", "noticed")
        table("Bursts of a class, rate 1e-06", columns, rows)
    if "constants" in result:
        rows = [
            (*(one[name] for name in (*CONSTANTS, "length", "alarms", "samples")), *delay_of(one["delays"]))
            for one in result["constants"]
        ]
        columns = (*CONSTANTS, "burst", "false alarms", "in samples", "samples until the alarm", "noticed")
        table("Other constants of the monitor, rate 1e-06", columns, rows)
    if "accuracy" in result:
        show_reactions(result, seeds)


def show_reactions(result, seeds):
    """Print what reacting to alarms is worth."""
    rows = []
    for way in result["accuracy"][0]:
        values = [100 * one[way] for one in result["accuracy"]]
        gain = [value - 100 * one["neo"] for value, one in zip(values, result["accuracy"], strict=True)]
        spread = f"{np.mean(gain):+.1f} ± {np.std(gain, ddof=1) / np.sqrt(seeds) if seeds > 1 else 0:.1f}"
        rows.append((way, f"{np.mean(values):.1f}", spread))
    table("Streams through all domains: accuracy, %", ("", "mean", "against neo"), rows)
    total = {key: sum(one[key] for one in result["changes"]) for key in result["changes"][0]}
    print("{noticed} of {changes} changes of domain noticed, {others} further alarms".format(**total))


def reactions(model, embeddings, labels, args):
    """What reacting to alarms is worth, in streams through all domains."""
    with tempfile.TemporaryDirectory() as folder:
        fill(model, encode("train", LIBRARY)[1], Path(folder))
        runs = [
            run(model, embeddings, labels, Path(folder), seed, args.samples, args.batch_size)
            for seed in range(args.seeds)
        ]
    return dict(zip(("accuracy", "changes"), (list(part) for part in zip(*runs, strict=True)), strict=True))


def arguments():
    """What was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--first-seed", type=int, default=0, help="of the bursts: other streams")
    options.add_argument("--parts", default=",".join(PARTS[:-1]), help=f"which of {', '.join(PARTS)}")
    options.add_argument("--batch-size", type=int, default=16)
    options.add_argument("--samples", type=int, default=500, help="of each domain in a stream, at most 600")
    options.add_argument("--model", default="digits", help="another model, for the bursts alone")
    options.add_argument("--data", help="its images")
    options.add_argument("--checkpoint")
    options.add_argument("--preset", help="of the corruptions")
    options.add_argument("--cache", help="folder of embeddings")
    options.add_argument("--json", help="save the figures in this file")
    args = options.parse_args()
    args.parts = args.parts.split(",")
    if wrong := set(args.parts) - set(PARTS):
        options.error(f"there is no part {min(wrong)!r}: expected {', '.join(PARTS)}")
    if args.data is not None and not {"bursts", "constants"}.issuperset(args.parts):
        options.error("other images need --parts bursts or --parts constants")
    return args


def main() -> None:
    """Measure the parts that were asked for, and print them."""
    args = arguments()
    torch.set_num_threads(1)
    model, embeddings, labels = encode("test") if args.data is None else encode_with(args)
    result = {}
    if "delays" in args.parts:
        result["delays"] = delays(embeddings, args.seeds, args.batch_size)
    if "false-alarms" in args.parts:
        rates = (1e-6, 1e-5, 1e-4)
        result["false-alarms"] = [(rate, *false_alarms(embeddings, args.seeds, rate)) for rate in rates]
    if "bursts" in args.parts:
        result["bursts"] = bursts(model, embeddings, labels, args.seeds, 1e-6, first=args.first_seed)
    if "constants" in args.parts:
        result["constants"] = constants(model, embeddings, labels, args.seeds, 1e-6)
    if "reactions" in args.parts:
        result |= reactions(model, embeddings, labels, args)
    show(result, args.seeds)
    if args.json:
        about = {"title": __doc__.splitlines()[0], **machine(), **vars(args)}
        Path(args.json).write_text(json.dumps({**about, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
