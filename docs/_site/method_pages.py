"""The pages of methods: what one does and needs, where it does not fit, what was measured, and its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from neotta.adapters.registry import methods
from neotta.cli.methods import changes, shown, takes


def methods_index() -> str:
    """A table of all methods."""
    rows = [
        f"| [{kind.title}]({name}.md) | {summary(kind)} | {kind.declaration.needs} "
        f"| {'yes' if kind.declaration.gradients else 'no'} | {kind.declaration.forward_passes} |"
        for name, kind in methods().items()
    ]
    names = "\n".join(methods())
    return (
        "# Methods by name\n\n"
        "You want to know what a method does, what it needs and which options it has. These pages are generated from "
        "the code; `neotta methods NAME` prints the same. How to run methods: [Methods](../../methods.md).\n\n"
        "| method | what it does | needs | gradients | forward passes |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
        + f"\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


BENCHMARK, MIT = "mariodoebler/test-time-adaptation", "MIT"
PUBLISHED_CODE = {
    "bn": {BENCHMARK: "MIT, its file with a notice of Apache-2.0", "bethgelab/robustness": "Apache-2.0"},
    "eta": {"mr-eggplant/EATA": MIT},
    "eata": {"mr-eggplant/EATA": MIT, BENCHMARK: MIT},
    "rdumb": {"oripress/CCC": MIT, BENCHMARK: MIT},
    "deyo": {"Jhyun17/DeYO": MIT},
    "roid": {BENCHMARK: MIT},
    "rotta": {"BIT-DA/RoTTA": MIT},
}
"""Repositories of published code, and their licences as they were read; those of other methods were not recorded."""


def sources_page() -> str:
    """The paper of each method, and the licence of published code where it is known."""
    rows = []
    for name, kind in methods().items():
        own = name == "neo-stream"
        paper = "[Streams and NEO-Stream](../../ideas/streams.md)" if own else escaped(kind.paper)
        code = [f"[{each}](https://github.com/{each})" for each in PUBLISHED_CODE.get(name, {})]
        found = PUBLISHED_CODE.get(name, {}).values() or ["Apache-2.0, as neotta" if own else "not known"]
        if name != "none":
            rows.append(f"| [{kind.title}]({name}.md) | {paper} | {'<br>'.join(code)} | {'<br>'.join(found)} |")
    return "\n".join(
        [
            "# Where each method comes from",
            "",
            "You want to cite a method, or to know whose licence its code has. What neotta ships is its own code, "
            "under Apache-2.0: written from the papers and from specifications of behaviour, without the published "
            "code. Recorded runs of that code are numbers, and only the tests read them.",
            "",
            "| method | paper | published code | its licence |",
            "|---|---|---|---|",
            *rows,
            "",
            "Not known means that the licence was not recorded, not that there is none. The loss of COME, "
            '`uncertainty="come"`, is from *COME: Test-time Adaption by Conservatively Minimizing Entropy*, ICLR 2025. '
            "Its code, [BlueWhaleLab/COME](https://github.com/BlueWhaleLab/COME), had no licence file, so "
            "nothing may be taken from it. Licences can change: look before you take code from a repository.",
            "",
        ]
    )


def method_page(name: str, kind: Any, table: list[str] | None) -> str:
    """One method: what it does, what it needs, what was measured, its options and presets."""
    return "\n".join(
        [
            f"# {kind.title}",
            "",
            re.split(r"\n\s*(?:Attributes|Args):", inspect.cleandoc(kind.__doc__ or ""))[0],
            "",
            published(name, kind.paper),
            "",
            *example(name, kind.declaration),
            "",
            "## What it needs",
            "",
            *(f"- {need}" for need in needs(kind.declaration)),
            "",
            "```{admonition} When not to use this",
            *(f"- {reason}" for reason in unsuitable(name, kind.declaration)),
            "```",
            "",
            "## What was measured",
            "",
            *(table or [BASELINE if name == "none" else NOT_MEASURED]),
            "",
            "## Options",
            "",
            *options(kind),
            "",
        ]
    )


def published(name: str, paper: str) -> str:
    """Where a method is described."""
    if name == "neo-stream":
        return "*Described in:* [Streams and NEO-Stream](../../ideas/streams.md)"
    return f"*Published in:* {paper}" if paper else ""


def example(name: str, has: Any) -> Iterator[str]:
    """A few lines that run the method on a small random model."""
    model = "batch-norm" if has.batch_norm or name == "bn" else "vit"
    source = f", source=torch.randn({has.source_images}, 3, 32, 32)" if has.source_images else ""
    yield "```python"
    yield "import neotta"
    yield "import neotta.testing"
    yield "import torch"
    yield ""
    yield f'model = neotta.testing.MODELS["{model}"]().eval()  # or any classifier'
    yield "images = torch.randn(8, 3, 32, 32)"
    yield ""
    yield f'adapter = neotta.create("{name}", model{source})'
    yield "logits = adapter(images)  # predict and adapt"
    yield "```"


def needs(has: Any) -> Iterator[str]:
    """What a method declares, in words."""
    yield "embeddings: it can run from a cache" if has.needs == "embeddings" else "images"
    yield "gradients" if has.gradients else "no gradients"
    yield f"at most {has.forward_passes} forward pass{'es' if has.forward_passes > 1 else ''} per batch"
    if has.batch_norm:
        yield "BatchNorm layers"
    if has.source_images:
        yield f"{has.source_images} clean source images (option `source`)"
    if has.normalisation:
        yield "the model's normalisation (options `mean` and `std`)"
    if has.random:
        yield "a seed (option `seed`); an evaluation sets it to the seed of the run"


def unsuitable(name: str, has: Any) -> Iterator[str]:
    """Where a method does not fit, as far as its declaration says so."""
    if has.gradients:
        yield "Time or memory is short: it trains while it predicts. `neotta bench` measures the cost."
    elif has.forward_passes > 1:
        yield f"Time is short: a batch takes {has.forward_passes} forward passes."
    if has.batch_norm:
        yield "The model has no BatchNorm layers: it is rejected."
    if has.source_images:
        yield f"You have no clean images like those the model was trained on: it needs {has.source_images}."
    if not has.batch_size_independent and name != "neo-stream":
        yield "Batches are small, or their size varies: its predictions depend on the batch size."
    yield WHERE.get(name, "The stream shows few classes for long: measure that order first (`--order correlated`).")


WHERE = {
    "none": "You want to adapt: this is the plain model, the baseline of every comparison.",
    "neo-stream": "One class fills most of a strongly shifted stream: [that can cost points](../../will-it-help.md).",
    "neo": "The stream shows few classes for long: [NEO then does harm](../../will-it-help.md).",
}
"""The last reason, for methods that have one of their own."""
NOT_MEASURED = "Not measured yet on the models of [the results](../../results/README.md) with this version."
BASELINE = "It is the column *plain* in the tables of the other methods."


def options(kind: Any) -> Iterator[str]:
    """The options as a table."""
    fields = kind.Options.model_fields
    if not fields:
        yield "It has no options."
        return
    yield "| option | takes | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        given = "; ".join([f"`{shown(field.default)}`", *changes(kind.Options, name)])
        yield f"| `{name}` | {escaped(takes(field))} | {escaped(given)} | {escaped(field.description or '')} |"


def escaped(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def summary(thing: Any) -> str:
    """The first line of a docstring."""
    return escaped(inspect.cleandoc(thing.__doc__ or "").split("\n")[0])
