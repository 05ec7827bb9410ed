"""Accuracy per corruption and method: the paper's main table."""

from __future__ import annotations

from neotta.paper import published
from neotta.paper.finding import Holds, gained, together
from neotta.paper.item import Case, item
from neotta.paper.results import Gaps, Results, ahead, rank
from neotta.paper.words import doubted, listed


@item(
    order=5,
    name="corruptions",
    title="Accuracy under every corruption, with every method",
    place="Table 2; for ViT-Small and ViT-Large in the appendix",
    question="Which method wins back most of the accuracy that a shift costs?",
    claim="NEO has the highest mean accuracy over the 15 corruptions of ImageNet-C, and lowers it under none.",
    runs=lambda setting: setting.online(clean=True),
)
def show(case: Case) -> None:
    """Compare the methods, and their gains with the published ones."""
    found, others = case.results(), case.against("neo")
    case.comparison(found)
    subject = case.setting.subject
    model, data = published.reference(subject.model, subject.data, subject.model_options, subject.severity)
    case.published_values((model, data), found, f"{model} on {data}, as the paper has no other like this")
    case.say(*_judge(found, others))


def _judge(found: Results, others: Gaps) -> tuple[str, Holds]:
    """One sentence on NEO, and whether it is best and hurts nowhere, from how all others differ from it."""
    sure = found.surest("neo")
    means, gains = sure.means, sure.gains
    if "neo" not in gains:
        best = max(means, key=lambda label: means[label].mean, default=None)
        text = f"{best} is best with {means[best].mean:.1f} %" if best else "no method has a result in every domain"
        return text, "unclear"
    where = sure.extents(found)
    differences = sure.block.differences
    hurt = [domain for (domain, label), gap in differences.items() if label == "neo" and gap.verdict == "hurts"]
    answer = (
        f"NEO changes the mean accuracy from {means['none'].mean:.1f} to {means['neo'].mean:.1f} %, by "
        f"{doubted(gains['neo'])}{where[0]}, and is {rank(others)}{where[1]}"
    ) + (f"; it hurts under {listed(hurt)}" if hurt else "")
    harmless: Holds = "no" if hurt else gained(gains["neo"])
    return answer, together([ahead(others), harmless])
