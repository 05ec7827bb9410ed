"""What a deployment would cost on clean data, measured before it: which line to use, or none.

Images of a new place are no such data: where their plain answers show it, nothing is recommended from answers alone.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from neotta.adapters.registry import create
from neotta.data.drawing import Indices
from neotta.data.orders import Order, find_order
from neotta.errors import DataError, ModelError
from neotta.evaluate.bench import Bench
from neotta.evaluate.plan import MethodPlan
from neotta.neo.adapt import adapt
from neotta.neo.context import streams as stream_ids
from neotta.neo.find_head import logits_of
from neotta.neo.head import NEOHead
from neotta.neo.model_inputs import evaluating
from neotta.neo.output_head import check_outputs
from neotta.neo.reference import measured
from neotta.neo.reference_file import HeadReference, Reference
from neotta.neo.statefile import fingerprint
from neotta.neo.streams import Streams
from neotta.neo.variants import rule_of

ORDERS = {
    "iid": "mixed",
    "by-class": "by class",
    "bursts:length=100": "bursts",
    "dominant:share=0.9": "mostly one",
    "some-classes:classes=2": "two classes",
    "some-classes": "one class",
}
"""The orders of the images, with what they are called."""
MIXED = "iid"
BATCH_SIZES = (1, 16, 64)
DRAWS = 3
"""Number of draws of each order."""
RULES = ("neo-stream", "neo", "neo-continual")
BATCH_NORM_RULE, BATCH_NORM_IMAGES, BATCH_NORM_SIZE = "neo-bn", 128, 16
"""The rule that needs images instead of their embeddings, and takes longer: so it is shown fewer, in one batch size."""
BEARABLE, BEARABLE_DRAW = 1.0, 5.0
"""Points of accuracy that a rule may cost in one of the orders and still be recommended: on average, in one draw."""
LEAST_IMAGES = 32
LEAST_FRAMES, MOST_FRAMES = 64, 200  # orders with fewer images show them again, as a camera does
SURE = 0.85  # images on which the model is less sure, relative to its reference, do not look clean
_DEFAULT: str = inspect.signature(adapt).parameters["method"].default
_PROOF = 8  # images that prove the head

Progress = Callable[[str, int, int], None]
Draws = dict[str, dict[int, list[float]]]
"""Changes of accuracy in points, by order and batch size, one for each draw."""
Adapted = Callable[[Sequence[Tensor], int], list[Tensor]]
"""From streams of rows and a batch size to the classes of each stream."""


@dataclass(frozen=True)
class RuleCost:
    """What a rule, with or without a reference, costs or gains: points of accuracy by domain."""

    rule: str
    reference: bool
    changes: dict[str, Draws]

    def of_order(self, domain: str, kind: str) -> tuple[float, float]:
        """The mean and the worst change in one order, over batch sizes and draws."""
        values = [value for row in self.changes[domain][kind].values() for value in row]
        return float(np.mean(values)), min(values)

    def mean(self, domain: str) -> float:
        return float(np.mean([self.of_order(domain, kind)[0] for kind in self.changes[domain]]))

    def worst(self, domain: str) -> float:
        return min(self.of_order(domain, kind)[1] for kind in self.changes[domain])

    @property
    def bearable(self) -> bool:
        each = [self.of_order(domain, kind) for domain, kinds in self.changes.items() for kind in kinds]
        return all(mean >= -BEARABLE and worst >= -BEARABLE_DRAW for mean, worst in each)

    @property
    def title(self) -> str:
        return f"{self.rule}{', reference' if self.reference else ''}"

    @property
    def line(self) -> str:
        name = "" if self.rule == _DEFAULT else f'"{self.rule}"'
        known = 'reference="reference.safetensors"' if self.reference else ""
        return f"neotta.adapt({', '.join(part for part in ('model', name, known) if part)})"


@dataclass
class CheckReport:
    model: str
    data: str
    head: str
    classes: int
    images: int  # number of images; half are the reference, the others the streams
    labelled: bool  # whether they have labels; if not, accuracies are agreements with the plain model
    accuracy: float  # accuracy of the plain model in percent; NaN without labels
    guessing: float  # accuracy of always giving the most frequent label, in percent; NaN without labels
    shares: list[float]  # how often each class is predicted
    reference: Reference = field(repr=False)  # where the data lies, from all of the images
    rules: list[RuleCost] = field(default_factory=list)
    surety: float = math.nan  # how sure the model is, relative to clean images; NaN without a reference of these

    @property
    def images_shown(self) -> int:
        return self.images - self.images // 2

    @property
    def guesses(self) -> bool:
        """Whether the model is no better than guessing, so that its accuracies say nothing."""
        return self.labelled and self.accuracy <= self.guessing

    @property
    def doubts(self) -> list[str]:
        """Why these do not look like clean images of mixed classes."""
        found, most = [], max(self.shares)
        if self.classes > 2 and most > 0.5 and not self.guessing > 50:
            found.append(f"{most:.0%} of the plain answers are class {self.shares.index(most)}")
        if self.surety < SURE:
            found.append(f"the model is {self.surety:.0%} as sure of them as of those of the reference")
        return found

    @property
    def noise(self) -> float:
        """Twice the standard error of the plain accuracy on the images shown, in points."""
        return 2 * math.sqrt(self.accuracy * (100 - self.accuracy) / self.images_shown)

    @property
    def shifted(self) -> list[str]:
        return [domain for domain in self.rules[0].changes if domain != self.data]

    def gain(self, rule: RuleCost) -> float:
        return float(np.mean([rule.mean(domain) for domain in self.shifted]))

    @property
    def gaining(self) -> RuleCost | None:
        """The rule that gains most on these images, as their labels show; None if no gain is beyond noise."""
        if self.guesses:
            return None
        rules = [rule for rule in self.rules if rule.of_order(self.data, MIXED)[0] > self.noise]
        return max(rules, key=lambda rule: rule.mean(self.data), default=None)

    @property
    def advice(self) -> RuleCost | None:
        """The rule to use; None to use none, or, of images without labels that do not look clean, not to say.

        It is the one that gains most on these images, if their labels show a gain. Else it is one of those that cost
        little in every order: the one that gains most under the corruptions, if there are any; else NEO-Stream, or NEO
        with a reference where there are two classes, since NEO-Stream is the plain model there.
        """
        if self.gaining is not None or self.doubts:
            return self.gaining
        bearable = [] if self.guesses else [rule for rule in self.rules if rule.bearable]
        if self.shifted:
            gaining = [rule for rule in bearable if self.gain(rule) > 0]
            return max(gaining, key=lambda rule: round(self.gain(rule), 1), default=None)
        if self.classes == 2:
            return next((rule for rule in bearable if rule.rule == "neo" and rule.reference), None)
        return next((rule for rule in bearable if rule.rule == "neo-stream"), None)

    def as_dict(self) -> dict[str, Any]:
        entries = {name: value for name, value in asdict(self).items() if name not in ("reference", "rules")}
        for name in ("accuracy", "guessing", "surety"):
            entries[name] = None if math.isnan(entries[name]) else entries[name]
        entries["doubts"] = self.doubts
        entries["rules"] = [
            {**asdict(rule), "mean": rule.mean(self.data), "worst": rule.worst(self.data)} for rule in self.rules
        ]
        entries["advice"] = None if self.advice is None else self.advice.line
        return entries


def check(
    bench: Bench, domains: Sequence[str], samples: int, progress: Progress, clean_reference: Reference | None = None
) -> CheckReport:
    """Check a model on clean data, and on corrupted copies of it; a reference tells how sure it is of clean data."""
    clean = domains[0]
    head = next((name for name, module in bench.model.named_modules() if module is bench.head), "head")
    check_outputs(bench.model, [bench.head.out_features])
    which = _readable(bench, clean, samples, progress)
    embeddings = {domain: _embedded(bench, domain, which, progress) for domain in domains}
    _check_head(bench, clean, which)
    with torch.inference_mode():
        predicted = bench.head(embeddings[clean]).argmax(1).numpy()
    labels = _labels(bench, clean, which)
    targets = predicted if labels is None else labels
    outputs, half = bench.head.out_features, len(which) // 2
    known, every = (measured(bench.head, rows, head) for rows in (embeddings[clean][:half], embeddings[clean]))
    reference = Reference({head: every}, {head: fingerprint(dict(bench.head.named_parameters()))})
    if clean_reference is None or clean_reference.fingerprints != reference.fingerprints:
        surety = math.nan
    else:
        surety = every.peak / clean_reference.heads[head].peak
    report = CheckReport(
        model=bench.name,
        data=clean,
        head=head,
        classes=outputs,
        images=len(which),
        labelled=labels is not None,
        accuracy=math.nan if labels is None else 100 * float((predicted == labels).mean()),
        guessing=math.nan if labels is None else 100 * float(np.bincount(labels).max() / len(labels)),
        shares=(np.bincount(predicted, minlength=outputs) / len(predicted)).tolist(),
        reference=reference,
        surety=surety,
    )
    orders = Orders(targets[half:])
    rules = [(rule, with_) for rule in RULES for with_ in (False, True)]
    for place, (rule, with_) in enumerate(rules):
        progress(f"{rule}{' with a reference' if with_ else ''}", place, len(rules))
        answer = partial(recentered, bench.head, rule, known if with_ else None)
        changes = {
            domain: orders.changes(rows[half:], bench.head, answer, BATCH_SIZES) for domain, rows in embeddings.items()
        }
        report.rules.append(RuleCost(rule, with_, changes))
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in bench.model.modules()):
        report.rules.append(_batch_norm(bench, domains, which[half:], targets[half:], progress))
    return report


class Orders:
    """Draws of the orders of some images, by their classes, (N,)."""

    def __init__(self, targets: Indices) -> None:
        self._targets = torch.from_numpy(targets)
        self._frames: dict[tuple[str, int], Tensor] = {}
        for kind, seed in itertools.product(ORDERS, range(DRAWS)):
            order = MethodPlan.parse(kind)
            drawn = find_order(order.method)({"check": targets}, seed=seed, **order.options)
            which = cast(Order, drawn).index
            count = min(max(len(which), LEAST_FRAMES), MOST_FRAMES)
            self._frames[kind, seed] = torch.from_numpy(np.resize(which, count))

    def changes(self, rows: Tensor, plain: Callable[[Tensor], Tensor], adapted: Adapted, sizes: Sequence[int]) -> Draws:
        """The changes of accuracy in points, for embeddings or images, one for each target.

        `plain` makes logits of rows, `adapted` the classes of streams in batches of a size.
        """
        changes: Draws = {kind: {size: [] for size in sizes} for kind in ORDERS}
        with torch.inference_mode():
            right = torch.cat([plain(part) for part in torch.split(rows, 64)]).argmax(1).cpu() == self._targets
            for size in sizes:
                answers = adapted([rows[frames] for frames in self._frames.values()], size)
                for (kind, _), frames, classes in zip(self._frames, self._frames.values(), answers, strict=True):
                    now = classes == self._targets[frames]
                    changes[kind][size].append(100 * float(now.double().mean() - right[frames].double().mean()))
        return changes


def recentered(
    head: nn.Linear, rule: str, known: HeadReference | None, streams: Sequence[Tensor], size: int
) -> list[Tensor]:
    """The classes of streams of embeddings, (n, d) each; all streams at once, each with a state of its own."""
    how = rule_of(rule, {})
    width = how.size(head.in_features, head.out_features)
    neo = NEOHead(head, Streams(how, width, many=True, device=head.weight.device), reference=known)
    classes: list[list[Tensor]] = [[] for _ in streams]
    for start in range(0, max(map(len, streams)), size):
        parts = {place: rows[start : start + size] for place, rows in enumerate(streams) if start < len(rows)}
        with stream_ids([place for place, rows in parts.items() for _ in rows]):
            logits = neo(torch.cat(list(parts.values())))
        for place, part in zip(parts, logits.argmax(1).split([len(rows) for rows in parts.values()]), strict=True):
            classes[place].append(part)
    return [torch.cat(parts) for parts in classes]


def _batch_norm(bench: Bench, domains: Sequence[str], which: Indices, targets: Indices, progress: Progress) -> RuleCost:
    adapter = create(BATCH_NORM_RULE, bench.model, example=bench.example)
    orders, which = Orders(targets[:BATCH_NORM_IMAGES]), which[:BATCH_NORM_IMAGES]

    def classes(streams: Sequence[Tensor], size: int) -> list[Tensor]:
        answers = []
        for images in streams:
            adapter.reset()
            answers.append(torch.cat([adapter(batch).argmax(1).cpu() for batch in torch.split(images, size)]))
        adapter.reset()
        return answers

    changes = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few classes: that is what is measured
        for place, domain in enumerate(domains):
            progress(f"{BATCH_NORM_RULE} on {domain}", place, len(domains))
            images = _images(bench, domain, which)
            changes[domain] = orders.changes(images, partial(_plain, bench), classes, [BATCH_NORM_SIZE])
    adapter.detach()
    return RuleCost(BATCH_NORM_RULE, False, changes)


def _images(bench: Bench, domain: str, which: Indices) -> Tensor:
    read = bench.data.dataset(domain).read
    return torch.stack([bench.data.preprocess(read(int(index))) for index in which]).to(bench.head.weight)


def _plain(bench: Bench, images: Tensor) -> Tensor:
    with evaluating(list(bench.model.modules())):
        return logits_of(bench.model(images))


def _readable(bench: Bench, domain: str, samples: int, progress: Progress) -> Indices:
    dataset = bench.data.dataset(domain)
    which = np.random.RandomState(0).permutation(len(dataset.ids))[:samples]
    _embedded(bench, domain, which, progress)
    which = which[bench.embeddings.get(dataset, which)[1]]
    if len(which) < LEAST_IMAGES:
        raise DataError(f"{domain} has {len(which)} readable images: a check needs at least {LEAST_IMAGES}")
    return which


def _labels(bench: Bench, domain: str, which: Indices) -> Indices | None:
    labels = bench.data.dataset(domain).labels
    known = None if labels is None else np.asarray(labels)[which]
    return None if known is None or (known < 0).any() else known


def _embedded(bench: Bench, domain: str, which: Indices, progress: Progress) -> Tensor:
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress(f"encoding {domain}", done, len(which))

    progress(f"encoding {domain}", 0, len(which))
    dataset = bench.data.dataset(domain)
    bench.embeddings.fill(dataset, which, step)
    return bench.embeddings.get(dataset, which)[0].cpu()


def _check_head(bench: Bench, domain: str, which: Indices) -> None:
    batch = _images(bench, domain, which[:_PROOF])
    with torch.inference_mode():
        returned = _plain(bench, batch)
        computed = bench.head(bench.encoder(batch))
    if returned.shape != computed.shape or not torch.allclose(returned, computed, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"what the head of {type(bench.model).__name__} returns, {tuple(computed.shape)}, is not what the model "
            f"returns, {tuple(returned.shape)}: re-centering would not change the answers as intended"
        )
