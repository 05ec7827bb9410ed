"""NEO in front of other methods: does the pair do better than each alone?"""

from __future__ import annotations

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.plan import Plan
from neotta.paper.item import Case, Skip, item
from neotta.paper.study import Setting
from neotta.paper.tables import NOTHING, plain
from neotta.paper.words import listed, points
from neotta.report.grids import grid, number

STACKS = ("neo+lame", "neo+t3a")


def _runs(setting: Setting) -> list[Plan]:
    stacks = [stack for stack in STACKS if setting.can(stack)]
    parts = [part for stack in stacks for part in stack.split("+")]
    return [setting.plan(*dict.fromkeys(["none", *parts, *stacks]), clean=True)] if stacks else []


@item(
    order=20,
    name="stacks",
    title="NEO in front of other methods",
    question="Does a method that reads embeddings gain when NEO re-centers them first?",
    runs=_runs,
)
def show(case: Case) -> None:
    """Take the differences between each stack and its methods on the same samples."""
    found, metric = case.results(), METRICS["top1"]
    means = found.means
    pairs = [(stack, part) for stack in STACKS for part in stack.split("+")]
    gaps = {pair: gap for pair in pairs if (gap := case.against(pair[1]).get(pair[0])) is not None}
    if not gaps:
        raise Skip
    case.ranking(
        "stacks",
        "gain over no adaptation, alone and stacked",
        found.gains,
        "change of mean accuracy in points",
        "Points of accuracy over no adaptation on the same samples, mean over the domains, with its 95 % interval "
        "over images and seeds.",
        sign="+",
    )
    shown = {
        f"{stack} against {part}": [
            number(means.get(stack, NOTHING), metric),
            number(means.get(part, NOTHING), metric),
            f"{number(gap.interval, metric, '+')} {gap.verdict}",
        ]
        for (stack, part), gap in gaps.items()
    }
    case.table(
        "stacks against their methods alone",
        grid("pair", ("stack", "alone", "difference"), shown),
        [
            {"stack": stack, "part": part, **plain(gap.interval), "verdict": gap.verdict}
            for (stack, part), gap in gaps.items()
        ],
        "Mean accuracy in % over the domains, and the difference on the same samples, with the verdict.",
    )
    case.comparison(found, gaps=False)
    said = []
    for stack in dict.fromkeys(stack for stack, _ in gaps):
        against = [
            f"{points(gap.interval)} against {part} alone ({gap.verdict})"
            for (name, part), gap in gaps.items()
            if name == stack
        ]
        level = f"{means[stack].mean:.1f} %, " if stack in means else ""
        said.append(f"{stack} reaches {level}{listed(against)}")
    case.say("; ".join(said))
