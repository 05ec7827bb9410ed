"""What a deployment would cost on clean data, measured before it: which line to use, or none."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neotta.data.drawing import Indices
from neotta.data.real_streams import order
from neotta.errors import DataError, ModelError
from neotta.evaluate.unlabelled import Shift
from neotta.evaluate.workbench import Workbench
from neotta.neo.adapt import adapt
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.outputs import check_outputs
from neotta.neo.reference import measured
from neotta.neo.reference_file import HeadReference, Reference
from neotta.neo.split import evaluating
from neotta.neo.statefile import fingerprint
from neotta.neo.variants import VARIANTS

ORDERS = {"iid": "mixed", "sorted": "sorted by class", "1-class": "one class", "bursts-100": "bursts of 100"}
"""The orders of the clean images, with what they are called."""
BATCH_SIZES = (1, 16, 64)
RULES = ("neo-stream", "neo", "neo-continual")
BEARABLE = 1.0
"""Points of accuracy that a rule may cost in one of the orders and still be recommended."""
LEAST_IMAGES = 32
_DEFAULT: str = inspect.signature(adapt).parameters["method"].default
_PROOF = 8  # images that prove the head

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RuleCost:
    """What a rule costs on clean data.

    Attributes:
        rule: Its name.
        reference: Whether it re-centers towards the other half of the images.
        changes: Points of accuracy gained (or lost, if negative), by order and batch size.
    """

    rule: str
    reference: bool
    changes: dict[str, dict[int, float]]

    @property
    def mean(self) -> float:
        """The mean change over all orders and batch sizes."""
        return float(np.mean([value for row in self.changes.values() for value in row.values()]))

    @property
    def worst(self) -> float:
        """The worst change."""
        return min(value for row in self.changes.values() for value in row.values())

    @property
    def line(self) -> str:
        """The line of Python that uses it."""
        name = "" if self.rule == _DEFAULT else f'"{self.rule}"'
        known = 'reference="reference.safetensors"' if self.reference else ""
        return f"neotta.adapt({', '.join(part for part in ('model', name, known) if part)})"


@dataclass
class CheckReport:
    """What was found.

    Attributes:
        model: Name of the model.
        data: Name of the clean data.
        head: Name of the linear head.
        classes: Number of classes.
        images: Number of images; half are the reference, the others the streams.
        labelled: Whether they have labels; if not, accuracies are agreements with the plain model.
        accuracy: Of the plain model, in percent; NaN without labels.
        guessing: Accuracy of always giving the most frequent label, in percent; NaN without labels.
        shares: How often each class is predicted.
        mean_to_spread: Distance of the mean embedding from the origin, divided by the spread of the embeddings.
        rules: What each rule costs.
        reference: Where the clean data lies, from all of the images.
    """

    model: str
    data: str
    head: str
    classes: int
    images: int
    labelled: bool
    accuracy: float
    guessing: float
    shares: list[float]
    mean_to_spread: float
    reference: Reference = field(repr=False)
    rules: list[RuleCost] = field(default_factory=list)

    @property
    def images_shown(self) -> int:
        """Number of images in the streams."""
        return self.images - self.images // 2

    @property
    def guesses(self) -> bool:
        """Whether the model is no better than guessing, so that its accuracies say nothing."""
        return self.labelled and self.accuracy <= self.guessing

    @property
    def advice(self) -> RuleCost | None:
        """The rule to use: without a reference if that does no harm, else with one; None to use none."""
        if self.guesses:
            return None
        wanted = [rule for rule in self.rules if rule.rule == "neo-stream"]
        if self.classes == 2:  # where neo-stream is the plain model
            wanted = [rule for rule in self.rules if rule.rule == "neo" and rule.reference]
        return next((rule for rule in wanted if rule.worst >= -BEARABLE), None)

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON."""
        found = {name: value for name, value in asdict(self).items() if name not in ("reference", "rules")}
        for name in ("accuracy", "guessing"):
            found[name] = None if math.isnan(found[name]) else found[name]
        found["rules"] = [{**asdict(rule), "mean": rule.mean, "worst": rule.worst} for rule in self.rules]
        found["advice"] = None if self.advice is None else self.advice.line
        return found


def check(bench: Workbench, domain: str, samples: int, progress: Progress, seed: int = 0) -> CheckReport:
    """Check a model on clean data.

    Args:
        bench: The model and the data.
        domain: The domain of the data that is clean.
        samples: Maximum number of images.
        progress: Told what is done: a name, how much of it, and out of how many.
        seed: Of the choice of the images and of their orders.

    Raises:
        ModelError: The head is not what the model's output comes from, or its outputs are no classes.
        DataError: There are too few readable images, or their labels are not those of the model.
    """
    head = _name(bench.model, bench.head)
    check_outputs(bench.model, [bench.head])
    embeddings, labels = _embedded(bench, domain, samples, progress, seed)
    _prove(bench, domain)
    with torch.inference_mode():
        plain = bench.head(embeddings)
    predicted = plain.argmax(1).numpy()
    labelled = bool((labels >= 0).all())
    outputs = bench.head.out_features
    if labelled and labels.max() >= outputs:
        raise DataError(
            f"the labels of {domain} go up to {labels.max()}, and the model has {outputs} outputs: they are not its "
            "labels. Take images of its own classes, or images without labels (all in one folder)"
        )
    targets = labels if labelled else predicted
    half = len(embeddings) // 2
    known = measured(bench.head, embeddings[:half], head)
    whole = Reference(
        {head: measured(bench.head, embeddings, head)}, {head: fingerprint(dict(bench.head.named_parameters()))}
    )
    report = CheckReport(
        model=bench.opened.name,
        data=domain,
        head=head,
        classes=outputs,
        images=len(embeddings),
        labelled=labelled,
        accuracy=100 * float((predicted == labels).mean()) if labelled else math.nan,
        guessing=100 * float(np.bincount(labels).max() / len(labels)) if labelled else math.nan,
        shares=(np.bincount(predicted, minlength=outputs) / len(predicted)).tolist(),
        mean_to_spread=Shift.of(embeddings).relative,
        reference=whole,
    )
    streams = _Streams(bench.head, embeddings[half:], targets[half:], seed)
    wanted = [(rule, with_) for rule in RULES for with_ in (False, True)]
    for place, (rule, with_) in enumerate(wanted):
        progress(f"{rule}{' with a reference' if with_ else ''}", place, len(wanted))
        report.rules.append(streams.cost(rule, known if with_ else None))
    return report


class _Streams:
    """The clean images in several orders."""

    def __init__(self, head: nn.Linear, embeddings: Tensor, labels: Indices, seed: int) -> None:
        self._head, self._embeddings, self._labels = head, embeddings, labels
        self._orders = {kind: order(kind, labels, seed, "check") for kind in ORDERS}

    def cost(self, rule: str, known: HeadReference | None) -> RuleCost:
        changes = {kind: {size: self._change(rule, known, kind, size) for size in BATCH_SIZES} for kind in ORDERS}
        return RuleCost(rule, known is not None, changes)

    def _change(self, rule: str, known: HeadReference | None, kind: str, size: int) -> float:
        """The change of accuracy on one order, in points."""
        which = self._orders[kind]
        rows, labels = self._embeddings[torch.from_numpy(which)], torch.from_numpy(self._labels[which])
        neo = NEOHead.variant(self._head, rule, VARIANTS[rule].make(rule, {}), None, known)
        with torch.inference_mode():
            adapted = torch.cat([neo(batch) for batch in rows.split(size)])  # type: ignore[no-untyped-call]
            plain = self._head(rows)
        hits = [(logits.argmax(1) == labels).double().mean() for logits in (adapted, plain)]
        return 100 * float(hits[0] - hits[1])


def _embedded(
    bench: Workbench, domain: str, samples: int, progress: Progress, seed: int
) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """Embeddings, (n, d), and labels, (n,), of some images in random order; -1 for images without a label."""
    dataset = bench.data.dataset(domain)
    which = np.random.RandomState(seed).permutation(len(dataset.ids))[:samples]
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress("encoding images", done, len(which))

    progress("encoding images", 0, len(which))
    bench.embeddings.fill(dataset, which, step)
    embeddings, kept = bench.embeddings.get(dataset, which)
    if len(kept) < LEAST_IMAGES:
        raise DataError(f"{domain} has {len(kept)} readable images: a check needs at least {LEAST_IMAGES}")
    labels = np.full(len(which), -1) if dataset.labels is None else np.asarray(dataset.labels)[which]
    return embeddings.cpu(), labels[kept]


def _prove(bench: Workbench, domain: str) -> None:
    """Check on real images that what the head returns is what the model returns.

    Raises:
        ModelError: It is not.
    """
    dataset, images = bench.data.dataset(domain), []
    for index in range(min(len(dataset.ids), _PROOF)):
        with contextlib.suppress(DataError):  # an unreadable image proves nothing
            images.append(bench.data.preprocess(dataset.read(index)))
    weight = bench.head.weight
    batch = torch.stack(images).to(weight.device, weight.dtype)
    with torch.inference_mode(), evaluating(list(bench.model.modules())):
        returned = logits_of(bench.model(batch))
        computed = bench.head(bench.opened.encoder(batch))
    if returned.shape != computed.shape or not torch.allclose(returned, computed, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"what the head of {type(bench.model).__name__} returns, {tuple(computed.shape)}, is not what the model "
            f"returns, {tuple(returned.shape)}: re-centering would not change the answers as intended"
        )


def _name(model: nn.Module, head: nn.Linear) -> str:
    return next((name for name, module in model.named_modules() if module is head), "head")
