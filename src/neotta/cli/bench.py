"""`neotta bench`: what each method costs on this device, in time and memory, beside the plain model."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta.cli import options as shared
from neotta.cli.options import model_options, words

if TYPE_CHECKING:
    from rich.table import Table

    from neotta.evaluate.records import Record

NOISE = 0.1
"""Largest error of a factor, relative to it, that still counts as measured."""


def bench(
    model: shared.Model = "digits",
    methods: Annotated[str, typer.Option(help="As none,neo,tent, or all.")] = "all",
    batch_size: shared.BatchSize = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurements; take more on a busy device.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also add the results to this .jsonl file.")
    ] = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
) -> None:
    """Measure what methods cost on this device: time per image, memory, passes and operations.

    Weights of timm and Hugging Face are random, so that nothing is downloaded.

    Examples:
      neotta bench timm:vit_tiny_patch16_224 --methods none,neo,tent --batch-size 8
      neotta bench digits --rounds 3 -o pi.jsonl
    """
    from neotta.cli.console import Console, next_step, progress_bar, say
    from neotta.evaluate.costs import measure_costs
    from neotta.evaluate.records import Records

    file = None if output is None else Records(output)  # what is wrong with it is said before the work begins
    console = Console(highlight=False)
    failed: dict[str, str] = {}

    random = {"pretrained": False} if model.startswith(("timm:", "hf:")) else {}
    options = {**random, **model_options(model_option)}
    with progress_bar(Console(stderr=True)) as show:
        import torch

        costs = measure_costs(
            _names(methods),
            model,
            progress=lambda name, done, total: show(name, done + 1, total),
            on_measured=None if file is None else file.append,
            on_failure=lambda name, error: failed.update({name: str(error)}),
            model_options=options,
            batch_size=batch_size,
            rounds=rounds,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        )
    if costs:
        console.print(_title(model, next(iter(costs.values()))))
        console.print(_table(costs))
        console.print("\n+MiB: peak memory above the plain model's. Passes per batch, GFLOP per image.")
    for name, reason in failed.items():
        console.print(f"left out: {name} ({reason})", markup=False)
    if file is not None:
        say(Console(stderr=True), f"{len(costs)} records added to {output}")
    next_step(f"neotta run {model}   what the methods gain for that")


def _names(methods: str) -> list[str]:
    from neotta.adapters.registry import find
    from neotta.adapters.registry import methods as known
    from neotta.errors import OptionError

    names = list(known()) if methods == "all" else words(methods)
    if not names:
        raise OptionError("--methods names no method: give some with commas between, such as none,neo,tent")
    for name in names:
        find(name)
    return list(dict.fromkeys(names))


def _title(model: str, cost: Record) -> str:
    (height, width), how, machine = cost.image_size or (0, 0), cost.conditions, cost.machine
    where = machine["gpu"] if how["device"] != "cpu" else f"{machine['processor']}, {cost.threads} threads"
    return (
        f"[bold]{model}[/bold], {how['dtype']}, batches of {how['batch_size']} images of {height} x {width}\n{where}\n"
    )


def _table(costs: dict[str, Record]) -> Table:
    from neotta.cli.methods import columns

    plain = statistics.median(cost.plain_seconds_per_image or 0.0 for cost in costs.values())
    table = columns("method")
    for title in ("ms/image", "x plain", "images/s", "+MiB", "forward", "backward", "GFLOP"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("plain", *_speed(plain, 1.0), "0", "1", "0", "")
    for name, cost in sorted(costs.items(), key=lambda row: row[1].slowdown or 0.0):
        above, flops = cost.memory_above_plain, cost.flops_per_image
        table.add_row(
            name,
            *_speed(plain, cost.slowdown or 0.0, cost.slowdown_error),
            "?" if above is None else f"{above / 2**20:.0f}",
            f"{cost.forward_passes:g}",
            f"{cost.backward_passes:g}",
            "?" if flops is None else f"{flops / 1e9:.3g}",
        )
    if noisy := [name for name, cost in costs.items() if (cost.slowdown_error or 0) > NOISE * (cost.slowdown or 0)]:
        table.caption = f"Too noisy for {', '.join(noisy)}: take a quiet device, or more --rounds."
    return table


def _speed(plain: float, slowdown: float, error: float | None = None) -> tuple[str, str, str]:
    """All columns from the factor, which was measured in turns: the load of the device is not in it."""
    seconds = plain * slowdown
    factor = f"{slowdown:.2f}" if error is None else f"{slowdown:.2f} ±{error:.2f}"
    return f"{seconds * 1e3:.3g}", factor, f"{1 / seconds:,.{0 if seconds < 0.1 else 2}f}"
