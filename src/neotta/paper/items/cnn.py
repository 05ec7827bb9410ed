"""Models with BatchNorm: NEO beside methods that use the statistics of the batch."""

from __future__ import annotations

from neotta.evaluate.plan import Plan
from neotta.paper.finding import Holds, gained, together
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
    case.published_values(PUBLISHED, found, "ResNet-50 on ImageNet-C, the paper's only CNN")
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
    verdicts = _where_others_lose(found)
    kept = [domain for domain, said in verdicts.items() if said == "helps"]
    there = (
        f"where every method that adapts BatchNorm hurts ({listed(list(verdicts))}), NEO helps in {len(kept)} of "
        f"{len(verdicts)}"
        if verdicts
        else "there is no domain where every method that adapts BatchNorm hurts"
    )
    answer = (
        f"the mean accuracy changes by {points(neo.gains['neo'])} with NEO ({neo.extent}) and by "
        f"{points(neo_bn.gains['neo-bn'])} with NEO-BN ({neo_bn.extent}); {there}"
    )
    words: dict[str, Holds] = {"helps": "yes", "hurts": "no"}
    held = [words.get(said, "unclear") for said in verdicts.values()]
    return answer, together([gained(neo.gains["neo"]), *held])


def _where_others_lose(found: Results) -> dict[str, str]:
    """The verdict on NEO in the domains where that on all others, which adapt BatchNorm, is that they hurt."""
    said = {place: gap.verdict for place, gap in found.block.differences.items()}
    others = [label for label in found.block.methods if label not in ("none", "neo")]
    return {
        domain: said[domain, "neo"]
        for domain in found.block.averaged
        if (domain, "neo") in said and all(said.get((domain, label)) == "hurts" for label in others)
    }
