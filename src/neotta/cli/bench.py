"""`neotta bench`: what each method costs on this device, in time and memory, beside the plain model."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neotta.cli import shared_options as shared
from neotta.cli.values import model_options

if TYPE_CHECKING:
    from rich.table import Table

    from neotta.evaluate.costs import Cost
    from neotta.evaluate.records import Record


def bench(
    model: Annotated[
        str, typer.Option("--model", "-m", help="What to measure: see `neotta models`. timm models get random weights.")
    ] = "digits",
    model_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the model, as num_classes=200; may be repeated."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Names separated by commas, or 'all': see `neotta methods`.")] = "all",
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 64,
    batches: Annotated[int, typer.Option(min=1, help="Least number of timed batches; the median is shown.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of measurements, in turns: more on a busy device.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the model and the images.")] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="Of torch; its own choice by default.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Height and width; the model's own by default.")] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Fetch the published weights of the model.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Add the figures to this .jsonl file, one record per method.")
    ] = None,
    allow_code: shared.AllowCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print these records, one per line, not a table.")] = False,
) -> None:
    """Measure what methods cost on this device: time per image, memory, passes and operations."""
    from neotta.cli.console import Console
    from neotta.evaluate.costs import cost_record, measure_costs
    from neotta.evaluate.records import Records, as_line

    file = None if output is None else Records(output)  # what is wrong with it is said before the work begins
    console, progress = Console(highlight=False), Console(stderr=True, highlight=False)
    records: list[Record] = []
    failed: dict[str, str] = {}

    def keep(cost: Cost) -> None:
        records.append(cost_record(cost))
        if file is not None:
            file.append(records[-1])
        if as_json:
            typer.echo(as_line(records[-1]))

    random = not pretrained and model.startswith(("timm:", "hf:"))
    costs = measure_costs(
        _names(methods),
        model,
        progress=lambda name, done, total: progress.print(f"{done + 1} of {total}: {name}"),
        on_measured=keep,
        on_failure=lambda name, error: failed.update({name: str(error)}),
        model_options={
            **({"pretrained": False} if random else {}),
            **model_options(None, None, model_option, allow_code=allow_code),
        },
        batch_size=batch_size,
        batches=batches,
        rounds=rounds,
        device=device,
        dtype=dtype,
        threads=threads,
        image_size=image_size,
    )
    if costs and not as_json:
        console.print(_title(model, next(iter(costs.values())), records[0]["machine"]))
        console.print(_table(costs))
        console.print("\n+MiB: peak memory above the plain model's. Passes per batch, GFLOP per image.")
    for name, reason in failed.items():
        (progress if as_json else console).print(f"left out: {name} ({reason})", markup=False)
    if file is not None:
        progress.print(f"{len(records)} records added to {output}", markup=False)


def _names(methods: str) -> list[str]:
    """The methods asked for, without repetitions."""
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
    from rich.table import Table

    plain = statistics.median(cost.plain_seconds_per_image for cost in costs.values())
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method")
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
    """Milliseconds for an image, how many times the plain model's that is, and images in a second."""
    return f"{seconds * 1e3:.3g}", f"{slowdown:.2f}", f"{1 / seconds:,.{0 if seconds < 0.1 else 2}f}"
