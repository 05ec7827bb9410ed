"""`neotta judge`: does a rule help on the images of a new place? A few answers of a person say so."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neotta._words import counted
from neotta.cli import options as shared
from neotta.cli.options import class_names, model_options, words
from neotta.errors import OptionError

if TYPE_CHECKING:
    from neotta.cli.console import Console
    from neotta.evaluate.judgement import Judgement


def judge(
    model: shared.Model,
    data: Annotated[str, typer.Argument(help="Images of the new place: a folder, LAYOUT=PATH, or digits-all.")],
    methods: Annotated[str, typer.Option(help="Rules to compare with the plain model.")] = "neo,neo-stream",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file for the answers. Default: judged-DATA.jsonl."),
    ] = None,
    ask: Annotated[
        Path | None, typer.Option(help="Instead of a page: write the images to judge to this .csv file.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(help="Read back the file of --ask; or labels that are known, a .csv file of image and class."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of images, at most: the first by name.")] = 2000,
    shuffled: Annotated[bool, typer.Option("--shuffled", help="The order of the images means nothing.")] = False,
    batch_size: shared.BatchSize = 1,
    labels: shared.Labels = None,
    model_option: shared.ModelOption = None,
    device: shared.Device = None,
) -> None:
    """Judge about thirty images, and know whether adapting helps or hurts on these images.

    Only images on which the plain model and a rule disagree are shown, on a page that only this machine can see.

    Examples:
      neotta judge timm:vit_base_patch16_224 photos/
      neotta judge mine.safetensors photos/ --ask questions.csv
    """
    from neotta.cli.console import Console, next_step, progress_bar, say
    from neotta.cli.data import fetch_data
    from neotta.cli.options import user_cache

    options = model_options(model_option)
    names = class_names(labels)
    for name, file in (("ask", ask), ("answers", answers)):
        if file is not None and file.suffix.lower() != ".csv":
            raise OptionError(f"--{name} is {str(file)!r}: name a .csv file")
    fetch_data(data)
    with progress_bar(Console(stderr=True)) as progress:
        import torch

        from neotta.evaluate.judge import judge as begin
        from neotta.evaluate.judgement import read_csv
        from neotta.models.load import load_model

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        rows = [] if answers is None else read_csv(answers, ("image",))
        if rows and "plain" in rows[0]:
            raise OptionError(f"--answers is {str(answers)!r}, the answers of models as `neotta predict` writes them")
        known = {row["image"]: row["class"] for row in rows if row.get("class", "").strip()}
        judgement = begin(
            load_model(model, **{"labels": names, "device": device, **options}),
            data,
            words(methods) or [],
            labels=known,
            batch_size=batch_size,
            shuffled=shuffled,
            samples=samples,
            path=output or Path(f"judged-{Path(data.rpartition('=')[2]).resolve().name}.jsonl"),
            cache=user_cache(),
            progress=progress,
        )
    console = Console(highlight=False)
    for note in judgement.notes:
        say(console, note)
    if answers is not None and not known:
        judgement.read(answers)
    if ask is not None:
        number = counted(judgement.ask(ask), "image")
        say(console, f"{number} to judge: fill in the column right of {ask} from the top, in any tool.")
        next_step(f"the same command with --answers {ask} in place of --ask")
    elif judgement.decided or judgement.next is None or answers is not None or not _judged_on_page(judgement, console):
        say(console, "\n".join(judgement.sentences()))


def _judged_on_page(judgement: Judgement, console: Console) -> bool:
    """Show the page until Ctrl-C; whether it came to an end, and this was told."""
    import threading
    import webbrowser

    from neotta.cli.console import say
    from neotta.report.judge_page import JudgePage, JudgeServer

    ended = False

    def answered() -> None:
        nonlocal ended
        gains = "   ".join(f"{gain.rule} {gain.low:+.1f} to {gain.high:+.1f}" for gain in judgement.gains)
        say(console, f"{counted(len(judgement.given), 'answer'):10}   {gains} points")
        if judgement.finished and not ended:
            say(
                console,
                "\n".join([*judgement.sentences(), "Ctrl-C ends; until then the page takes answers back, or more."]),
            )
        ended = judgement.finished

    with JudgeServer(JudgePage(judgement, answered)) as server:
        say(console, f"Judge on {server.address}   Ctrl-C ends: every answer is kept, and the same command continues.")
        if sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return ended
