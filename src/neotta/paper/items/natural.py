"""Shifts that nobody made: drawings, other people's digits; and how many answers of a person show what a rule does."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import torch

from neotta.adapters.base import EmbeddingAdapter
from neotta.data.orders import find_order
from neotta.errors import NeottaError
from neotta.evaluate.bench import Bench
from neotta.evaluate.judgement import MOST_ANSWERS, NONE, Judgement
from neotta.evaluate.metrics import verdict
from neotta.evaluate.plan import Plan, Run
from neotta.paper.item import Report, Skip, item, need
from neotta.paper.study import Setting
from neotta.paper.tables import Rows, plain
from neotta.report.grids import grid

ORDERS = {"iid": "mixed", "by-class": "sorted by class", "hold-out": "others, after {} images"}
"""The orders, and what the table calls them."""
BATCHES = (16, 64)
RULES = ("neo", "neo-stream")
DRAWS = 200
"""How often a person is simulated who judges images in another random order."""


def _runs(setting: Setting) -> list[Plan]:
    if setting.subject.corruptions:
        return []
    online = [
        setting.plan(*setting.methods, order=order, samples=[-1], batch_sizes=list(BATCHES))
        for order in ORDERS
        if not find_order(order).scores_others
    ]
    half = setting.plan(*setting.methods, order="hold-out", samples=[setting.images // 2], held_out_samples=-1)
    return [*online, half]


@item(
    title="Shifts that nobody made",
    runs=_runs,
    remarks=(
        "This is not part of the paper. In the rows of others the state is frozen after some images, half of the "
        "smallest set.",
    ),
)
def natural_shifts(report: Report) -> None:
    """Does re-centering help on images that nobody corrupted?"""
    if report.setting.subject.corruptions:
        raise Skip
    results, rows, data, said = report.results(), dict[str, list[str]](), Rows(), list[str]()
    others = [label for label in results.methods if label != "none"]
    places = list(ORDERS)
    several = sorted(results.each(), key=lambda each: (places.index(each.conditions.order), each.conditions.batch_size))
    for domain in results.domains:
        for each in several:
            about, (means, gaps) = each.conditions, each.in_domain(domain)
            if "none" not in means:  # so few images that larger batches are the same
                continue
            order = f"{ORDERS[about.order].format(about.samples)}, batches of {about.batch_size}"
            cells = [each.metric.text(means["none"]), *(each.metric.text(gaps[label], "+") for label in others)]
            rows[f"{domain}, {order}"] = cells
            where = {"domain": domain, "order": about.order, "batch_size": about.batch_size}
            data += [{**where, "method": "none", **plain(means["none"])}]
            data += [
                {**where, "method": label, **plain(gaps[label]), "verdict": verdict(gaps[label])} for label in others
            ]
            if (about.order, about.batch_size) == ("iid", BATCHES[0]):
                said += [
                    f"{label} {each.metric.text(gaps[label], '+')} on {domain}" for label in RULES if label in gaps
                ]
    caption = f"Accuracy of the plain model in %, and points over it on the same images.{results.basis}"
    report.table("natural shifts", grid("images", ["plain", *others], rows), need(data), caption)
    report.say(f"in mixed batches of {BATCHES[0]} the change is: {', '.join(said)}")


@item(
    title="Answers until a verdict",
    remarks=(
        f"Labels play the person, in {DRAWS} random orders of the images to judge; `neotta judge` stops when a rule "
        f"certainly helps, when every rule has a verdict, or after {MOST_ANSWERS} answers.",
    ),
)
def judged(report: Report) -> None:
    """How many answers of a person show whether a rule helps or hurts?"""
    setting, rows, data = report.setting, dict[str, list[str]](), Rows()
    for domain in setting.domains:
        run = Run(method="none", domains=(domain,), order="iid", samples=setting.samples, seed=setting.study.seeds[0])
        found = report.evidence.analysis("judged", setting, [run], functools.partial(_judge, run=run))
        told = [f"{found['answers'][0]:.0f} ({found['answers'][1]:.0f})"]
        for rule in RULES:
            mine = found["rules"][rule]
            told.append(f"{mine['gain']:+.1f}, {mine['changed']} changed")
            told.append(", ".join(f"{100 * share:.0f} % {words}" for words, share in mine["verdicts"].items()))
            data.append({"domain": domain, "rule": rule, "images": found["images"], "gain": mine["gain"]})
            data[-1] |= {name: mine[name] for name in ("changed", "wrong")}
            data[-1] |= {"answers": found["answers"][0], "most": found["answers"][1]}
            data[-1] |= {f"share {words}": share for words, share in mine["verdicts"].items()}
        rows[f"{domain}, {found['images']:,} images"] = told
    columns = ["answers (90 %)", *(f"{rule}{what}" for rule in RULES for what in ("", ": verdicts"))]
    caption = (
        "Answers until the end, median and 90th percentile; what the rule gains on these images in points, seen one at "
        "a time, and how many answers it changes; how often each verdict is reached."
    )
    report.table("answers until a verdict", grid("images", columns, rows), need(data), caption)
    medians, wrong = [row["answers"] for row in data], [row["wrong"] for row in data]
    report.say(
        f"it takes {min(medians):.0f} to {max(medians):.0f} answers (medians); a verdict is wrong in at most "
        f"{100 * max(wrong):.1f} % of the orders"
    )


def _judge(bench: Bench, run: Run) -> dict[str, Any]:
    """Let labels play the person, once for each draw."""
    (order,) = bench.orders(run)
    dataset, domain = bench.data.dataset(run.domain), run.domain
    if dataset.labels is None:
        raise NeottaError(f"the images of {domain!r} have no labels")
    embeddings, readable = bench.embeddings.get(dataset, order.index)
    rows, labels = embeddings.to(bench.head.weight), dataset.labels[order.index[readable]]
    logits = [bench.head(rows).detach()]
    for rule in RULES:
        adapter = bench.adapter(run.model_copy(update={"method": rule}))
        assert isinstance(adapter, EmbeddingAdapter)
        logits.append(torch.cat([adapter.predict_embeddings(row) for row in torch.split(rows, 1)]))
    groups = bench.data.class_groups
    answers = np.stack([(each if groups is None else groups.scores(each)).argmax(1).numpy() for each in logits], 1)
    right = 100 * (answers == labels[:, None]).mean(0)
    gains = {rule: float(right[1 + place] - right[0]) for place, rule in enumerate(RULES)}
    needed, verdicts = [], {rule: Counter[str]() for rule in RULES}
    for draw in range(DRAWS):
        said = {f"{draw}/{place}": tuple(map(str, row)) for place, row in enumerate(answers)}
        judgement = Judgement(said, RULES, lambda name: None)
        while not judgement.finished and (name := judgement.next) is not None:
            label = str(labels[int(name.partition("/")[2])])
            judgement.answer(name, label if label in judgement.candidates(name) else NONE)
        needed.append(len(judgement.given))
        for gain in judgement.gains:
            verdicts[gain.rule][gain.verdict] += 1
    rules = {
        rule: {
            "gain": gains[rule],
            "changed": int((answers[:, 1 + place] != answers[:, 0]).sum()),
            "verdicts": {words: count / DRAWS for words, count in sorted(verdicts[rule].items())},
            "wrong": (verdicts[rule]["helps"] * (gains[rule] <= 0) + verdicts[rule]["hurts"] * (gains[rule] >= 0))
            / DRAWS,
        }
        for place, rule in enumerate(RULES)
    }
    ends = [float(np.quantile(needed, share)) for share in (0.5, 0.9)]
    return {"images": len(labels), "answers": ends, "rules": rules}
