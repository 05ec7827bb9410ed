"""Which severity a model is measured at: the highest at which it still works on all corruptions.

    neotta run --model MODEL --data DATA --methods none --corruptions clean,all --severities 1,2,3,4,5 --samples 256
    python docs/results/severity.py results.jsonl 200  # the number of classes

It works where accuracy without adaptation is below that on clean images, and above chance by more than chance:
the lower end of its 95 % interval (Wilson) is above 1 / number of classes. Nothing but `none` is looked at.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict

from neotta.evaluate.records import Record, Records


def lower_end(right: float, count: int, z: float = 1.96) -> float:
    """The lower end of Wilson's interval for a share `right` of `count`."""
    spread = z * math.sqrt(right * (1 - right) / count + z**2 / (4 * count**2))
    return (right + z**2 / (2 * count) - spread) / (1 + z**2 / count)


def works(record: Record, clean: float, classes: int) -> bool:
    """Whether a domain is harder than clean images, and its accuracy no chance."""
    right = record["metrics"]["top1"] / 100
    return right < clean and lower_end(right, record["count"]) > 1 / classes


def main(path: str, classes: int) -> None:
    """Print for each severity the range of accuracies and where the model does not work."""
    by_severity: dict[str, list[Record]] = defaultdict(list)
    for record in Records(path).read():
        by_severity[record["domain"].partition("/")[2]].append(record)
    clean = by_severity.pop("")[0]["metrics"]["top1"] / 100
    print(f"clean {clean:.1%}, chance {1 / classes:.1%}")
    for severity, records in sorted(by_severity.items()):
        found = [record["metrics"]["top1"] for record in records]
        wrong = [record["domain"] for record in records if not works(record, clean, classes)]
        verdict = f"does not work on {', '.join(wrong)}" if wrong else "works"
        print(f"severity {severity}: {min(found):.1f} to {max(found):.1f} % in {len(records)} domains: {verdict}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
