"""Accuracy and calibration on whole datasets."""

from __future__ import annotations

from neotta.evaluate.comparison import METRICS
from neotta.evaluate.plan import Plan
from neotta.paper import comparing
from neotta.paper.evidence import Evidence
from neotta.paper.item import Finding, Item
from neotta.paper.study import Setting
from neotta.report.grids import number


class Full(Item):
    """The figures of accuracy and ECE on full datasets in the appendix."""

    name = "table-full"
    title = "Accuracy and calibration error on all images"
    place = "Appendix, results on full datasets"
    question = "What is left of the gain when a method sees all images of a domain?"
    claim = "NEO raises the accuracy on the whole of every dataset."

    def plans(self, setting: Setting) -> list[Plan]:
        """All methods that the study gives all it has."""
        return [setting.full()]

    def find(self, evidence: Evidence) -> Finding:
        """Compare accuracies, then calibration errors."""
        finding = Finding()
        for setting in evidence.settings:
            records = evidence.records(*self.plans(setting))
            changes, held = [], None
            for metric, words in (("top1", "accuracy"), ("ece", "calibration error")):
                comparison = comparing.compared(records, metric)
                block = comparing.fullest(comparison)
                if comparison is None or block is None:
                    continue
                finding.parts += comparing.tables(comparison, f"{setting.title}: {words}", gaps=False)
                finding.notes += comparing.plain_notes(comparison)
                gap = comparing.mean_gaps(block).get("neo")
                if gap is not None:
                    unit = " points" if metric == "top1" else ""
                    changes.append(f"{words} by {number(gap.interval, METRICS[metric], '+')}{unit}")
                    held = comparing.claim_of_gain(gap.interval) if metric == "top1" else held
            if changes:
                finding.say(f"On all images of {setting.title}, NEO changes {comparing.listed(changes)}.", held)
            finding.notes += _about(setting)
        finding.notes = list(dict.fromkeys(finding.notes))
        return finding


def _about(setting: Setting) -> list[str]:
    """What is left out, and what the intervals say."""
    notes = [
        "All images are seen with every seed, in another order: the intervals are about the order, not about other "
        "images."
    ]
    if setting.reduced and setting.slow:
        slow = [method for method in setting.methods if method in setting.slow]
        notes.append(
            f"{setting.title}: left out, because the study gives slow methods only {setting.slow_samples} samples of "
            f"each domain and {len(setting.slow_seeds)} of {len(setting.study.seeds)} seeds: {comparing.listed(slow)}."
        )
    return notes
