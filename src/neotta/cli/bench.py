"""`neotta bench`: what each method costs on this device, in time and memory, beside the plain model."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta.cli import options as shared
from neotta.cli.options import model_options

if TYPE_CHECKING:
    from rich.table import Table

    from neotta.evaluate.costs import Cost
    from neotta.evaluate.records import Record


def bench(
    model: shared.Model = "digits",
    methods: Annotated[str, typer.Option(help="As none,neo,tent, or all.")] = "all",
    batch_size: shared.BatchSize = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurements; take more on a busy device.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also add the results to this .jsonl file.")
    ] = None,
    model_option: shared.ModelOption = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    allow_code: shared.AllowCode = False,
) -> None:
    """Measure what methods cost on this device: time per image, memory, passes and operations.

    Weights of timm and Hugging Face are random, so that nothing is downloaded.

    Examples:
      neotta bench timm:vit_tiny_patch16_224 --methods none,neo,tent --batch-size 8
      neotta bench digits --rounds 3 -o pi.jsonl
    """
    from neotta.cli.console import Console, next_step, progress_bar, say
    from neotta.evaluate.costs import cost_record, measure_costs
    from neotta.evaluate.records import Records

    file = None if output is None else Records(output)  # what is wrong with it is said before the work begins
    console = Console(highlight=False)
    records: list[Record] = []
    failed: dict[str, str] = {}

    def keep(cost: Cost) -> None:
        records.append(cost_record(cost))
        if file is not None:
            file.append(records[-1])

    random = {"pretrained": False} if model.startswith(("timm:", "hf:")) else {}
    options = {**random, **model_options(model_option, allow_code=allow_code)}
    with progress_bar(Console(stderr=True), every=0.0) as show:
        costs = measure_costs(
            _names(methods),
            model,
            progress=lambda name, done, total: show(name, done + 1, total),
            on_measured=keep,
            on_failure=lambda name, error: failed.update({name: str(error)}),
            model_options=options,
            batch_size=batch_size,
            rounds=rounds,
            device=device,
            dtype=dtype,
        )
    if costs:
        console.print(_title(model, next(iter(costs.values())), records[0].machine))
        console.print(_table(costs))
        console.print("\n+MiB: peak memory above the plain model's. Passes per batch, GFLOP per image.")
    for name, reason in failed.items():
        console.print(f"left out: {name} ({reason})", markup=False)
    if file is not None:
        say(Console(stderr=True), f"{len(records)} records added to {output}")
    next_step(f"neotta run --model {model}   what the methods gain for that")


def _names(methods: str) -> list[str]:
    from neotta.adapters.registry import find
    from neotta.adapters.registry import methods as known
    from neotta.errors import OptionError

    names = list(known()) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    if not names:
        raise OptionError("--methods names no method: give some with commas between, such as none,neo,tent")
    for name in names:
        find(name)
    return list(dict.fromkeys(names))


def _title(model: str, cost: Cost, machine: dict[str, Any]) -> str:
    height, width = cost.image_size
    where = machine["gpu"] if cost.conditions.device != "cpu" else f"{machine['processor']}, {cost.threads} threads"
    return (
        f"[bold]{model}[/bold], {cost.conditions.dtype}, batches of {cost.conditions.batch_size} images of "
        f"{height} x {width}\n{where}\n"
    )


def _table(costs: dict[str, Cost]) -> Table:
    from neotta.cli.methods import columns

    plain = statistics.median(cost.plain_seconds_per_image for cost in costs.values())
    table = columns("method")
    for title in ("ms/image", "x plain", "images/s", "+MiB", "forward", "backward", "GFLOP"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_row("plain", *_speed(plain, 1.0), "0", "1", "0", "")
    for name, cost in sorted(costs.items(), key=lambda item: item[1].seconds_per_image):
        table.add_row(
            name,
            *_speed(cost.seconds_per_image, cost.slowdown),
            "?" if cost.memory_above_plain is None else f"{cost.memory_above_plain / 2**20:.0f}",
            f"{cost.forward_passes:g}",
            f"{cost.backward_passes:g}",
            "?" if cost.flops_per_image is None else f"{cost.flops_per_image / 1e9:.3g}",
        )
    return table


def _speed(seconds: float, slowdown: float) -> tuple[str, str, str]:
    return f"{seconds * 1e3:.3g}", f"{slowdown:.2f}", f"{1 / seconds:,.{0 if seconds < 0.1 else 2}f}"
