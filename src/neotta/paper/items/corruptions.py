"""Accuracy per corruption and method: the paper's main table."""

from __future__ import annotations

from collections.abc import Mapping

from neotta.evaluate.comparison import Block, Difference
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, published
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Table
from neotta.paper.study import Setting


class Corruptions(Item):
    """Table 2 and its versions for ViT-Small and ViT-Large in the appendix."""

    name = "table-corruptions"
    title = "Accuracy under every corruption, with every method"
    place = "Table 2; for ViT-Small and ViT-Large in the appendix"
    question = "Which method wins back most of the accuracy that a shift costs?"
    claim = "NEO has the highest mean accuracy over the 15 corruptions of ImageNet-C, and lowers it under none."

    def plans(self, setting: Setting) -> list[Plan]:
        """Every method on every domain, online."""
        return setting.online(clean=True)

    def find(self, evidence: Evidence) -> Finding:
        """Compare the methods on each subject."""
        finding = Finding()
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            comparison, others = comparing.compared(records), comparing.against(records, "neo")
            block = comparing.fullest(comparison)
            if comparison is None or block is None:
                continue
            finding.parts += comparing.tables(comparison, setting.title)
            finding.parts.append(_beside(setting, block))
            sure = comparing.surest(comparison, "neo") or block
            finding.say(_answer(setting, sure, block, others), _holds(sure, others))
            finding.notes += [f"{method} was left out: {reason}" for method, reason in setting.left_out.items()]
            finding.notes += comparison.notes()
        finding.notes = list(dict.fromkeys(finding.notes))
        return finding


def _beside(setting: Setting, block: Block) -> Table:
    """What each method gains over no adaptation, in the paper and here."""
    (model, data), same = published.reference(setting.subject.model, setting.subject.data)
    table = published.accuracies()[model, data]
    printed = table.get(published.AVERAGE) or table["all"]
    gains = {name: value.mean - printed["none"].mean for name, value in printed.items() if name != "none"}
    measured = {name: gap.interval for name, gap in comparing.mean_gaps(block).items()}
    what = "the same model and data" if same else f"{model} on {data}, as the paper has no other like this"
    return comparing.beside(
        f"{setting.title}: gain over no adaptation, published and measured",
        gains,
        measured,
        sign="+",
        caption=f"Points of accuracy, mean over the domains. Published: {what}.",
    )


def _answer(setting: Setting, sure: Block, block: Block, others: Mapping[str, Difference]) -> str:
    """One sentence on NEO.

    Args:
        setting: The subject.
        sure: Where NEO was compared with the unadapted model over the most seeds.
        block: Where all methods were compared.
        others: How all other methods differ from NEO there.
    """
    means, gaps = comparing.means(sure), comparing.mean_gaps(sure)
    ranked = sorted(means, key=lambda label: -means[label].mean)
    if not ranked:
        return f"On {setting.title}, no method has a result in every domain."
    if "neo" not in gaps:
        return f"On {setting.title}, {ranked[0]} is best with {means[ranked[0]].mean:.1f} %."
    gap = gaps["neo"].interval
    hurt = [domain for (domain, label), each in sure.differences.items() if label == "neo" and each.verdict == "hurts"]
    under = f"; it hurts under {comparing.listed(hurt)}" if hurt else ""
    where = comparing.extents(sure, block)
    return (
        f"On {setting.title}, NEO takes the mean accuracy from {means['none'].mean:.1f} to {means['neo'].mean:.1f} %, "
        f"by {comparing.gain_words(gap)}{comparing.doubt(gap)}{where[0]}, and is {comparing.rank(others)}{where[1]}"
        f"{under}."
    )


def _holds(sure: Block, others: Mapping[str, Difference]) -> Holds:
    gaps = comparing.mean_gaps(sure)
    if "neo" not in gaps:
        return "unclear"
    gained = comparing.claim_of_gain(gaps["neo"].interval)
    best = len(comparing.with_verdict(others, "hurts")) == len(others)
    hurts = any(label == "neo" and each.verdict == "hurts" for (_, label), each in sure.differences.items())
    return "partly" if gained == "yes" and (hurts or not best) else gained
