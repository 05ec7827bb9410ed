"""Models with BatchNorm: NEO beside methods that use the statistics of the batch."""

from __future__ import annotations

from neotta.evaluate.plan import Plan
from neotta.paper import published
from neotta.paper.finding import Holds, gained
from neotta.paper.item import Case, item
from neotta.paper.results import Results
from neotta.paper.study import Setting
from neotta.paper.words import listed, points

OTHERS = ("sar", "tent", "cotta")
"""What the paper compares NEO and NEO-BN with on CNNs; those of them that the study has are run."""
PUBLISHED = ("resnet-50", "imagenet-c")


def _runs(setting: Setting) -> list[Plan]:
    if not setting.can("neo-bn"):
        return []
    others = [method for method in OTHERS if method in setting.methods]
    return setting.online("none", *others, "bn", "neo", "neo-bn", clean=True)


@item(
    order=14,
    name="cnn",
    title="Models with BatchNorm",
    place="Table 3",
    question="Does re-centering help a CNN, and does it add to adapting BatchNorm?",
    claim=(
        "On ResNet-50 NEO gains accuracy, also under the corruptions where every method that adapts BatchNorm loses."
    ),
    nothing="No model here could be compared: this needs one with BatchNorm layers, such as timm:resnet50.",
    runs=_runs,
)
def show(case: Case) -> None:
    """Compare the methods on each CNN."""
    if not case.setting.can("neo-bn"):
        case.note(f"{case.title} is left out: {case.setting.why_not('neo-bn')}.")
    found = case.results()
    case.comparison(found)
    same = published.match(case.setting.subject.model, case.setting.subject.data) == PUBLISHED
    case.published_gains(
        PUBLISHED, found, "the same model and data" if same else "ResNet-50 on ImageNet-C, the paper's only CNN"
    )
    words, holds = _judge(found)
    control = case.against("bn").get("neo-bn")
    if control is not None:
        words += f"; against the statistics of the batch alone (bn), NEO-BN changes it by {points(control.interval)}"
    case.say(words, holds)


def _judge(found: Results) -> tuple[str, Holds]:
    """One sentence on NEO and NEO-BN, and whether NEO gains where the others lose."""
    neo, neo_bn = found.surest("neo"), found.surest("neo-bn")
    if "neo" not in neo.gains or "neo-bn" not in neo_bn.gains:
        return "NEO, NEO-BN or the unadapted model could not be measured", "unclear"
    lost, kept = _lost_and_kept(found)
    there = (
        f"where the mean of every other method is below that of the unadapted model ({listed(lost)}), that of NEO is "
        f"above it in {len(kept)} of {len(lost)}"
        if lost
        else "there is no domain where the mean of every other method is below that of the unadapted model"
    )
    answer = (
        f"the mean accuracy changes by {points(neo.gains['neo'])} with NEO ({neo.extent}) and by "
        f"{points(neo_bn.gains['neo-bn'])} with NEO-BN ({neo_bn.extent}); {there}"
    )
    holds = gained(neo.gains["neo"])
    return answer, "partly" if holds == "yes" and kept != lost else holds


def _lost_and_kept(found: Results) -> tuple[list[str], list[str]]:
    """The domains in which all methods but NEO lose accuracy, and those of them in which NEO gains."""
    changes = {place: gap.interval.mean for place, gap in found.block.differences.items()}
    others = [label for label in found.block.methods if label not in ("none", "neo")]
    lost = [
        domain
        for domain in found.block.averaged
        if all(changes.get((domain, label), 0.0) < 0 for label in others) and (domain, "neo") in changes
    ]
    return lost, [domain for domain in lost if changes[domain, "neo"] > 0]
