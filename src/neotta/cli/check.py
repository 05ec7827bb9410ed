"""`neotta check`: before deployment, what adapting would cost on clean data, and which line to use."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta.cli import options as shared
from neotta.cli.options import model_options, read_labels, words
from neotta.errors import OptionError, StateError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from neotta.evaluate.check import CheckReport, RuleCost


def check(
    model: shared.Model = "digits",
    data: Annotated[
        str, typer.Argument(help="Clean images, with or without labels: a folder, LAYOUT=PATH, or digits.")
    ] = "digits",
    corruptions: Annotated[
        str | None, typer.Option(help="Also corrupt the images, as fog,snow/3 (severity 3, else 5).")
    ] = None,
    samples: Annotated[int, typer.Option(help="Number of images, at most.", min=32)] = 1000,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Also write a reference, a .safetensors file; an old one is compared with."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
) -> None:
    """Check on clean images what adapting would cost, and recommend one line to use, or none.

    Examples:
      neotta check timm:resnet18 path/to/clean -o clean.safetensors
      neotta check digits digits --corruptions fog,gaussian_noise
    """
    import contextlib
    import json

    from neotta.cli.console import Console, next_step, progress_bar

    options = model_options(model_option)
    names, folders = read_labels(labels)
    options |= {"labels": names} if names else {}
    if output is not None and output.suffix != ".safetensors":
        raise OptionError(f"--output is {str(output)!r}: a reference goes to a .safetensors file")
    with progress_bar(Console(stderr=True)) as progress:
        from neotta.evaluate.bench import Bench
        from neotta.evaluate.check import check as measure
        from neotta.evaluate.domains import CLEAN, clean_domain
        from neotta.evaluate.plan import Plan
        from neotta.neo.reference_file import Reference

        known = None
        with contextlib.suppress(StateError):  # there is none yet, or it is damaged
            known = None if output is None else Reference.load(output)
        shifts = [name if "/" in name else f"{name}/5" for name in words(corruptions) or []]
        entries = {"model": model, "model_options": options, "data": data, "corruptions": shifts}
        bench = Bench(Plan.make({**entries, "class_names": folders or {}}), device=device)
        clean = CLEAN if shifts else clean_domain(bench.data.source) or bench.data.source.domains[0]
        report = measure(bench, [clean, *shifts], samples, progress, known)
    keep = known is not None and bool(report.doubts)
    if output is not None and not keep:
        report.reference.save(output)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
        return
    console = Console(highlight=False)
    _show(console, report)
    if output is not None:
        what = "stays as it was" if keep else "was written"
        console.print(f"The reference {what}: {output}", markup=False)
    if report.doubts:
        next_step(f"neotta judge {model} {data}   whether adapting helps on these images")
    elif report.shifted:
        next_step(f"neotta predict {model} FOLDER -o answers.csv")
    else:
        next_step(f"neotta check {model} {data} --corruptions fog,gaussian_noise   the same under a shift")


def _show(console: Console, report: CheckReport) -> None:
    from rich.text import Text

    from neotta.evaluate.check import BATCH_SIZES, DRAWS

    what = "accuracy" if report.labelled else "agreement with the plain model"
    console.print(Text(f"{report.model} on {report.images} images of {report.data}\n"))
    if report.doubts:
        console.print(Text(f"{doubt(report)}\n", style="bold"))
    shown = f"{report.images_shown} of them"
    sizes = ", ".join(map(str, BATCH_SIZES))
    told = f"in points: mean and, below it, the worst of {DRAWS} draws in batches of {sizes}"
    console.print(Text(f"Change of {what} on {shown}, {told}"))
    for domain in (report.data, *report.shifted):
        console.print(_table(report, domain))
        console.print()
    for line in sentences(report):
        console.print(Text(line))


def _table(report: CheckReport, domain: str) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    from neotta.evaluate.check import ORDERS

    columns = (Column(Text(name), justify="right") for name in ORDERS.values())
    heading = Column(Text(domain), no_wrap=True)
    table = Table(heading, *columns, box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for rule in report.rules:
        cells = []
        for mean, worst in (rule.of_order(domain, kind) for kind in ORDERS):
            style = "red" if mean < -1.0 else "green" if mean > 1.0 else ""
            cells.append(Text(f"{mean:+.1f}\n{worst:+.1f}", style=style))
        table.add_row(rule.title, *cells)
    return table


def doubt(report: CheckReport) -> str:
    """That these are not the images that a check is for."""
    return (
        "These do not look like clean images of mixed classes; for images of the new place use `neotta judge`: "
        f"{', and '.join(report.doubts)}."
    )


def sentences(report: CheckReport) -> list[str]:
    """What was found, and which line to use, in plain words."""
    lines = [
        f"The head is the layer {report.head!r}: what it returns is what the model returns (tried on real images)."
    ]
    if report.labelled:
        lines.append(f"Without adapting, {report.accuracy:.1f} % of the {report.images} images are classified right.")
    without = "" if report.labelled else " They have no labels, so the table counts answers that change."
    half = report.images // 2
    lines.append(
        f"{half} of the {report.images} images are the reference, the other {report.images_shown} are shown.{without}"
    )
    most, unseen = max(report.shares), report.shares.count(0)
    if not report.doubts and (most > max(3 / report.classes, 0.3) or (report.classes == 2 and most > 0.65)):
        lines.append(
            f"The classes are unbalanced: {most:.0%} of the answers are class {report.shares.index(most)}. NEO takes "
            "the frequent one for a shift; a reference knows how frequent it is."
        )
    elif not report.doubts and unseen:
        lines.append(
            f"{unseen} of {report.classes} classes are never predicted here: more images are a better reference."
        )
    return [*lines, "", *_advice(report)]


def _advice(report: CheckReport) -> list[str]:
    from neotta.evaluate.check import BEARABLE, BEARABLE_DRAW

    if report.guesses:
        return [
            f"The model is no better than always giving the most frequent label ({report.guessing:.1f} %), so the "
            "table says nothing. The order of the classes, the preprocessing or the weights may be wrong: correct that "
            "first.",
            "Use none.",
        ]
    if report.gaining is not None:
        return _gain(report, report.gaining)
    if report.doubts and not report.labelled:
        return [
            "Nothing is recommended from this table: it counts answers that change, and where plain answers are wrong "
            "a rule that helps changes them."
        ]
    two, lines = report.classes == 2, list[str]()
    if two:
        lines.append("With two classes a shift and a label are one number: NEO-Stream gives the plain answers.")
    if report.doubts:
        why = f"no rule gains more than {report.noise:.1f} points where classes are mixed, the noise."
        return [*lines, f"Use none: {why}"]
    chosen = report.advice
    if chosen is None and report.shifted and any(rule.bearable for rule in report.rules):
        return [*lines, "Use none: the rules that cost little in every order gain nothing under the corruptions."]
    if chosen is None:
        who = "NEO with a reference" if two else "each rule" if report.shifted else "NEO-Stream"
        costs = f"costs more than {BEARABLE:g} point in some order, or {BEARABLE_DRAW:g} in some draw"
        return [*lines, f"Use none: {who} {costs}{'' if two else ', with a reference too'}."]
    if report.shifted:
        lines.append(
            f"{chosen.title} changes accuracy under {', '.join(report.shifted)} by {report.gain(chosen):+.1f} points "
            "on average, the most of the rules that cost little in every order."
        )
    else:
        lines.append("What it gains under a shift was not measured: --corruptions fog,gaussian_noise does that.")
    lines.append(f"Use: model = {chosen.line}")
    if chosen.reference:
        lines.append("Write the reference with -o reference.safetensors, once, from clean images.")
    return lines


def _gain(report: CheckReport, rule: RuleCost) -> list[str]:
    """The rule that gains on these images, with the orders in which it costs too much."""
    from neotta.evaluate.check import BEARABLE, BEARABLE_DRAW, MIXED, ORDERS

    mixed = rule.of_order(report.data, MIXED)[0]
    lines = [
        f"{rule.title} changes accuracy by {mixed:+.1f} points where the classes are mixed, more than the noise "
        f"({report.noise:.1f}), and by {rule.mean(report.data):+.1f} over all orders, the most of all rules."
    ]
    costs = []
    for domain, (kind, name) in itertools.product(rule.changes, ORDERS.items()):
        mean, worst = rule.of_order(domain, kind)
        if mean < -BEARABLE or worst < -BEARABLE_DRAW:
            where = "" if domain == report.data else f" under {domain}"
            costs.append(f"{name}{where} ({mean:+.1f}, worst draw {worst:+.1f})")
    if costs:
        lines.append(f"It can cost accuracy where the order of the classes is: {', '.join(costs)}.")
    return [*lines, f"Use{', where that does not occur' if costs else ''}: model = {rule.line}"]
