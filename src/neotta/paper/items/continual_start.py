"""The zero start of NEO-Continual's moving average, and what it costs."""

from __future__ import annotations

from neotta.evaluate.metrics import Interval
from neotta.evaluate.plan import Plan
from neotta.paper.curves import Curves, curve_rows, gain_lines, gains_along
from neotta.paper.item import Case, Skip, item
from neotta.paper.results import Results
from neotta.paper.study import Setting
from neotta.paper.words import doubted, some
from neotta.report.charts import Panel, line_chart

METHODS = ("none", "neo", "neo-continual:debias=false|true")
PLAIN, DEBIASED = "neo-continual", "neo-continual, debiased"
NAMES = {"neo-continual debias=False": PLAIN, "neo-continual debias=True": DEBIASED}


def _runs(setting: Setting) -> list[Plan]:
    numbers = [setting.study.batch_size * 2**power for power in range(10)]
    numbers = [*(number for number in numbers if number < setting.samples), setting.samples]
    plans = [setting.plan(*METHODS, samples=numbers)]
    return [*plans, setting.plan(*METHODS, protocol="continual")] if len(setting.domains) > 1 else plans


@item(
    order=19,
    name="continual-start",
    title="The start of NEO-Continual",
    question="What does it cost that the moving average starts at zero, and does debias make up for it?",
    runs=_runs,
)
def show(case: Case) -> None:
    """Compare both averages, and NEO, on the same samples."""
    first, *rest = (Results.of(case.evidence.records(plan)) for plan in case.plans)
    start, domains = _curves(first), len(case.setting.domains)
    if first is None or not start:
        raise Skip
    batches = f"samples of the domain so far (batches of {case.setting.study.batch_size})"
    ticks = [point.x for point in start[PLAIN]]
    case.figure(
        "continual start",
        "gain over the first samples of a domain, with and without debias",
        line_chart(Panel(gain_lines(start), batches, "gain over none (points)", ticks=ticks, zero=True)),
        curve_rows("samples", start),
        "Accuracy on the samples themselves while adapting, mean over the domains. Band: 95 % interval over images "
        "and seeds.",
    )
    caption = f"Accuracy in % while adapting, mean over {domains} domains.{first.seeds}"
    case.curve("accuracy over the first samples of a domain", "samples", start, caption)
    plain, debiased = (gains_along(start[name]) for name in (PLAIN, DEBIASED))
    said = [
        f"{_pair(plain[number], debiased[number])} over the first {some(number, 'sample')}"
        for number in dict.fromkeys([min(plain), max(plain)])
        if number in debiased
    ]
    case.note(*first.failures)
    for found in rest:
        row = _curves(found)
        if found is not None and row:
            caption = f"Accuracy in % while adapting without a reset.{found.seeds}"
            case.curve(f"accuracy over {domains} domains in a row", "samples per domain", row, caption)
            said.append(f"{_pair(row[PLAIN][0].gain, row[DEBIASED][0].gain)} over {domains} domains in a row")
        case.note(*(found.failures if found else ()))
    case.say(f"NEO-Continual gains {'; '.join(said)}")


def _curves(found: Results | None) -> Curves:
    """Curves over the number of samples, if both averages have one."""
    curves = found.curves(lambda run: run.samples, names=NAMES) if found else {}
    return curves if all(gains_along(curves.get(name, [])) for name in NAMES.values()) else {}


def _pair(plain: Interval, debiased: Interval) -> str:
    return f"{doubted(plain)} without and {doubted(debiased)} with debias"
