"""Models with BatchNorm: NEO beside methods that use the statistics of the batch."""

from __future__ import annotations

from neotta.evaluate.comparison import Block, Comparison
from neotta.evaluate.plan import Plan
from neotta.paper import comparing, published
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Holds, Item, Table
from neotta.paper.study import Setting

OTHERS = ("sar", "tent", "cotta")
"""What the paper compares NEO and NEO-BN with on CNNs; those of them that the study has are run."""
PUBLISHED = ("resnet-50", "imagenet-c")
NOTHING = "No model here could be compared: this needs one with BatchNorm layers, such as timm:resnet50."


class CNN(Item):
    """The table for ResNet-50 in the appendix."""

    name = "table-cnn"
    title = "Models with BatchNorm"
    place = "Table 3"
    question = "Does re-centering help a CNN, and does it help besides adapting BatchNorm?"
    claim = (
        "On ResNet-50 NEO gains accuracy, also under the corruptions where every method that adapts BatchNorm loses."
    )

    def plans(self, setting: Setting) -> list[Plan]:
        """The methods for CNNs; nothing on a model without BatchNorm."""
        if not setting.can("neo-bn"):
            return []
        others = [method for method in OTHERS if method in setting.methods]
        return setting.online("none", *others, "neo", "neo-bn", clean=True)

    def find(self, evidence: Evidence) -> Finding:
        """Compare the methods on each CNN."""
        finding = Finding(nothing=NOTHING)
        for setting in evidence.settings:
            if not setting.can("neo-bn"):
                finding.notes.append(f"{setting.title} is left out: {setting.why_not('neo-bn')}.")
                continue
            comparison = comparing.compared(evidence.records(*self.plans(setting)))
            block = comparing.fullest(comparison)
            if comparison is None or block is None:
                continue
            finding.parts += [*comparing.tables(comparison, setting.title), _beside(setting, block)]
            finding.say(*_judge(setting, comparison, block))
            finding.notes += comparison.notes()
        finding.notes = list(dict.fromkeys(finding.notes))
        return finding


def _beside(setting: Setting, block: Block) -> Table:
    """What each method gains over no adaptation, in the paper and here."""
    printed = published.accuracies()[PUBLISHED][published.AVERAGE]
    gains = {name: value.mean - printed["none"].mean for name, value in printed.items() if name != "none"}
    same = published.match(setting.subject.model, setting.subject.data) == PUBLISHED
    return comparing.beside(
        f"{setting.title}: gain over no adaptation, published and measured",
        gains,
        {name: gap.interval for name, gap in comparing.mean_gaps(block).items()},
        sign="+",
        caption="Points of accuracy, mean over the domains. Published: "
        + ("the same model and data." if same else "ResNet-50 on ImageNet-C, the paper's only CNN."),
    )


def _judge(setting: Setting, comparison: Comparison, block: Block) -> tuple[str, Holds]:
    """One sentence on NEO and NEO-BN, and whether NEO gains where the others lose.

    Args:
        setting: The subject.
        comparison: All that was measured.
        block: Where all methods were compared.
    """
    neo, neo_bn = (comparing.surest(comparison, name) for name in ("neo", "neo-bn"))
    if neo is None or neo_bn is None:
        return f"On {setting.title}, NEO, NEO-BN or the unadapted model could not be measured.", "unclear"
    lost, kept = _lost_and_kept(block)
    there = (
        f"where the mean of every other method is below that of the unadapted model ({comparing.listed(lost)}), "
        f"that of NEO is above it in {len(kept)} of {len(lost)}"
        if lost
        else "there is no domain where the mean of every other method is below that of the unadapted model"
    )
    gain, gain_bn = comparing.mean_gaps(neo)["neo"].interval, comparing.mean_gaps(neo_bn)["neo-bn"].interval
    answer = (
        f"On {setting.title}, the mean accuracy changes by {comparing.gain_words(gain)} with NEO "
        f"({comparing.extent(neo)}) and by {comparing.gain_words(gain_bn)} with NEO-BN ({comparing.extent(neo_bn)}); "
        f"{there}."
    )
    gained = comparing.claim_of_gain(gain)
    return answer, "partly" if gained == "yes" and kept != lost else gained


def _lost_and_kept(block: Block) -> tuple[list[str], list[str]]:
    """The domains in which all methods but NEO lose accuracy, and those of them in which NEO gains."""
    changes = {place: gap.interval.mean for place, gap in block.differences.items()}
    others = [label for label in block.methods if label not in ("none", "neo")]
    lost = [
        domain
        for domain in block.averaged
        if all(changes.get((domain, label), 0.0) < 0 for label in others) and (domain, "neo") in changes
    ]
    return lost, [domain for domain in lost if changes[domain, "neo"] > 0]
