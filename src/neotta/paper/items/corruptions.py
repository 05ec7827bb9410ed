"""Accuracy per corruption and method: the main table, models with BatchNorm, and NEO in front of other methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from neotta.evaluate.estimates import METRICS
from neotta.evaluate.metrics import NOTHING, Interval, verdict
from neotta.evaluate.plan import Plan
from neotta.paper import published
from neotta.paper.claims import Holds, at_once, called, doubted, gained, listed, points, some, together
from neotta.paper.item import Report, item, need
from neotta.paper.measured import Gaps, Measured, ahead, rank, with_verdict
from neotta.paper.study import RIVALS, Setting, method_of
from neotta.paper.tables import plain
from neotta.report.grids import grid

BEST, DOMAINS = 12, 15
"""Under so many of the corruptions, the paper says, NEO has the highest accuracy, and the second highest elsewhere."""
PLACES = ("best", "second", "third")


@item(
    title="Accuracy under every corruption, with every method",
    place="Table 2; for ViT-Small and ViT-Large in the appendix",
    claim=(
        "NEO has the highest mean accuracy over the 15 corruptions of ImageNet-C, lowers it under none, and is best "
        "under 12 of them and second under the other 3."
    ),
    rivals=RIVALS,
    runs=lambda setting: setting.online(clean=True),
)
def corruptions(report: Report) -> None:
    """Which method wins back most of the accuracy that a shift costs?"""
    results = report.results()
    against = Measured.of(report.records, baseline="neo")
    report.comparison(results)
    model, data = published.match(report.setting.subject) or (published.REFERENCE, "imagenet-c")
    report.published_values((model, data), results, f"{model} on {data}, as the paper has no other like this")
    report.say(*_judge(results, against), against.gaps if against else ())
    if (model, data) == (published.REFERENCE, "imagenet-c"):
        report.note(f"In the table that the paper prints, NEO is {places_in_words(printed_places().values())}.")


def printed_places() -> dict[str, int]:
    """How many methods the paper's main table prints above NEO, by corruption."""
    table = published.accuracies()[published.REFERENCE, "imagenet-c"]
    return {
        domain: sum(value.mean > values["neo"].mean for value in values.values())
        for domain, values in table.items()
        if domain != published.AVERAGE
    }


def places_in_words(places: Iterable[int]) -> str:
    """`best under 12, second under 2 and third under 1 of 15 corruptions`, from how many are ahead under each."""
    counts = list(places)
    names = [*PLACES, *(f"number {place + 1}" for place in range(len(PLACES), max(counts, default=0) + 1))]
    parts = [f"{name} under {counts.count(place)}" for place, name in enumerate(names) if place in counts]
    return f"{listed(parts)} of {some(len(counts), 'corruption')}"


def _judge(results: Measured, against: Measured | None) -> tuple[str, Holds]:
    sure = results.surest("neo")
    means, gains = sure.means, sure.gaps
    if "neo" not in gains or against is None:
        best = max(means, key=lambda label: means[label].mean, default=None)
        text = f"{called(best)} is best with {means[best].mean:.1f} %" if best else "no method has all domains"
        return text, "unclear"
    where = sure.extent("neo"), against.extent(*against.gaps)
    mine, theirs = ("", "") if where[0] == where[1] else (f" ({where[0]})", f" ({where[1]})")
    hurt = [name for name in sure.domains if verdict(sure.in_domain(name)[1].get("neo", NOTHING)) == "hurts"]
    by_domain = {domain: _rivals(against.in_domain(domain)[1]) for domain in against.averaged}
    placed = (
        f"; beside methods of others it is {places_in_words(map(_ahead, by_domain.values()))}"
        if len(by_domain) > 1
        else ""
    )
    tied = [domain for domain, gaps in by_domain.items() if any(_printed(gap) == 0 for gap in gaps.values())]
    placed += f" (level with others under {listed(tied)})" if tied and placed else ""
    answer = (
        f"NEO changes the mean accuracy from {means['none'].mean:.1f} to {means['neo'].mean:.1f} %, by "
        f"{doubted(gains['neo'])}{mine}, and is {rank(against.gaps)}{theirs}{placed}"
    ) + (f"; it hurts under {listed(hurt)}" if hurt else "")
    harmless: Holds = "no" if hurt else gained(gains["neo"])
    return answer, at_once([ahead(_rivals(against.gaps)), harmless, *([_placed(by_domain)] if placed else [])])


def _rivals(gaps: Gaps) -> Gaps:
    return {label: gap for label, gap in gaps.items() if method_of(label) in ("none", *RIVALS)}


def _ahead(gaps: Gaps) -> int:
    return sum(_printed(gap) > 0 for gap in gaps.values())


def _printed(gap: Interval) -> float:
    return round(gap.mean, METRICS["top1"].digits)


def _placed(by_domain: Mapping[str, Gaps]) -> Holds:
    best = sum(all(_printed(gap) < 0 for gap in gaps.values()) for gaps in by_domain.values())
    if best * DOMAINS >= BEST * len(by_domain) and max(map(_ahead, by_domain.values())) < 2:
        return "yes"
    surely = [sum(verdict(gap) == "helps" for gap in gaps.values()) for gaps in by_domain.values()]
    lost = sum(count > 0 for count in surely)
    return "no" if max(surely) > 1 or (len(surely) - lost) * DOMAINS < BEST * len(surely) else "unclear"


# ---- models with BatchNorm

ADAPT_BATCH_NORM = ("sar", "tent", "cotta")
"""What the paper compares NEO and NEO-BN with on CNNs; those of them that the study has are run."""
RESNET = ("resnet-50", "imagenet-c")


def _cnn_runs(setting: Setting) -> list[Plan]:
    if not setting.can("neo-bn"):
        return []
    others = [method for method in ADAPT_BATCH_NORM if method in setting.methods]
    return setting.online("none", *others, "bn", "neo", "neo-bn", clean=True)


@item(
    title="Models with BatchNorm",
    place="Table 3",
    claim=(
        "On ResNet-50 NEO gains accuracy, also under the corruptions where every method that adapts BatchNorm loses."
    ),
    rivals=ADAPT_BATCH_NORM,
    nothing="No model here could be compared: this needs one with BatchNorm layers, such as timm:resnet50.",
    runs=_cnn_runs,
)
def cnn(report: Report) -> None:
    """Does re-centering help a CNN, and does it add to adapting BatchNorm?"""
    if not report.setting.can("neo-bn"):
        report.note(f"{report.title} is left out: {report.setting.why_not('neo-bn')}.")
    results = report.results()
    report.comparison(results)
    report.published_values(RESNET, results, "ResNet-50 on ImageNet-C, the paper's only CNN")
    words, holds = _cnn_judge(results)
    control = report.against("bn").get("neo-bn")
    if control is not None:
        words += f"; against the statistics of the batch alone (bn), NEO-BN changes it by {points(control)}"
    report.say(words, holds, results.gaps)


def _cnn_judge(results: Measured) -> tuple[str, Holds]:
    neo, neo_bn = results.surest("neo"), results.surest("neo-bn")
    if "neo" not in neo.gaps or "neo-bn" not in neo_bn.gaps:
        return "NEO, NEO-BN or the unadapted model could not be measured", "unclear"
    verdicts = _where_others_lose(results)
    helped = [domain for domain, said in verdicts.items() if said == "helps"]
    there = (
        f"where every method that adapts BatchNorm hurts ({listed(list(verdicts))}), NEO helps in {len(helped)} of "
        f"{len(verdicts)}"
        if verdicts
        else "there is no domain where every method that adapts BatchNorm hurts"
    )
    answer = (
        f"the mean accuracy changes by {points(neo.gaps['neo'])} with NEO ({neo.extent('neo')}) and by "
        f"{points(neo_bn.gaps['neo-bn'])} with NEO-BN ({neo_bn.extent('neo-bn')}); {there}"
    )
    words: dict[str, Holds] = {"helps": "yes", "hurts": "no"}
    held = [words.get(said, "unclear") for said in verdicts.values()]
    return answer, together([gained(neo.gaps["neo"]), *held])


def _where_others_lose(results: Measured) -> dict[str, str]:
    """What NEO does in each domain in which all methods of others hurt."""
    found, others = dict[str, str](), set(results.methods) - {"none", "neo"}
    for domain in results.averaged:
        gaps = results.in_domain(domain)[1]
        if "neo" in gaps and others <= set(with_verdict(gaps, "hurts")):
            found[domain] = verdict(gaps["neo"])
    return found


# ---- stacks

STACKS = ("neo+lame", "neo+t3a")


def _stack_runs(setting: Setting) -> list[Plan]:
    stacks = [stack for stack in STACKS if setting.can(stack)]
    parts = [part for stack in stacks for part in stack.split("+")]
    return [setting.plan(*dict.fromkeys(["none", *parts, *stacks]), clean=True)] if stacks else []


@item(title="NEO in front of other methods", runs=_stack_runs)
def stacks(report: Report) -> None:
    """Does a method that reads embeddings gain when NEO re-centers them first?"""
    results, metric = report.results(), METRICS["top1"]
    means = results.means
    pairs = [(stack, part) for stack in STACKS for part in stack.split("+")]
    gaps = need({pair: gap for pair in pairs if (gap := report.against(pair[1]).get(pair[0])) is not None})
    report.ranking(
        "stacks",
        "gain over no adaptation, alone and stacked",
        results.gaps,
        "change of mean accuracy in points",
        "Points of accuracy over no adaptation on the same samples, mean over the domains, with its 95 % interval "
        "over images and seeds.",
        sign="+",
    )
    shown = {
        f"{called(stack)} against {called(part)}": [
            metric.text(means.get(stack, NOTHING)),
            metric.text(means.get(part, NOTHING)),
            f"{metric.text(gap, '+')} {verdict(gap)}",
        ]
        for (stack, part), gap in gaps.items()
    }
    report.table(
        "stacks against their methods alone",
        grid("pair", ("stack", "alone", "difference"), shown),
        [{"stack": stack, "part": part, **plain(gap), "verdict": verdict(gap)} for (stack, part), gap in gaps.items()],
        "Mean accuracy in % over the domains, and the difference on the same samples, with the verdict.",
    )
    report.comparison(results, gaps=False)
    against: dict[str, list[str]] = {}
    for (stack, part), gap in gaps.items():
        against.setdefault(stack, []).append(f"{points(gap)} against {called(part)} alone ({verdict(gap)})")
    said = []
    for stack, parts in against.items():
        level = f"{means[stack].mean:.1f} %, " if stack in means else ""
        said.append(f"{called(stack)} reaches {level}{listed(parts)}")
    report.say("; ".join(said))
