"""Where a method does harm: gains over the plain model by kind of stream and domain, from records."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from neotta.errors import DataError, OptionError
from neotta.evaluate.frame import frame, natural
from neotta.evaluate.records import Record

if TYPE_CHECKING:
    import pandas

HURT = 1.0
"""Points of accuracy that count as harm."""
PLAIN = "none"
STREAM = "{kind} on {domain}, seed {seed}"


def gains(records: Iterable[Record]) -> pandas.DataFrame:
    """Gains over the plain model on the same stream, in points: a row for each stream and method.

    Its columns are `model`, `data`, `method`, `kind`, `domain`, `seed`, `top1`, that of the plain model as `plain`, and
    `gain`.
    """
    runs = frame((record for record in records if not record.failed), answers=False)
    runs = runs[runs["top1"].notna()].rename(columns={"order_text": "kind"})
    runs["method"] = runs["method"].cat.rename_categories(lambda label: label.removesuffix(" shrinkage=None"))
    stream = ["model", "data", "kind", "domain", "seed"]
    runs = runs.drop_duplicates([*stream, "method"], keep="last")
    plain = runs[runs["method"] == PLAIN][[*stream, "top1"]].rename(columns={"top1": "plain"})
    both = runs[runs["method"] != PLAIN][[*stream, "method", "top1"]].merge(plain, on=stream)
    both["method"] = both["method"].cat.remove_unused_categories()
    return both.assign(gain=both["top1"] - both["plain"])


def harm_of(records: Iterable[Record], method: str, kinds: Collection[str] = ()) -> pandas.DataFrame:
    """The gains of a method, with the `subject` of each stream: model, data, and severity or clean images."""
    every = gains(records)
    if not len(every):
        raise DataError("no record is of a run that was scored")
    _check("kind of stream", kinds, set(every["kind"]))
    _check("method", [method], set(every["method"]))
    models = every["model"] + ", " + every["data"]
    severities = every["domain"].str.replace(r".*/(\d+)$", r"severity \1", regex=True)
    chosen = (every["method"] == method) & (every["kind"].isin(kinds) if kinds else True)
    places = {model: place for place, model in enumerate(models.drop_duplicates())}
    order = [(places[model], natural(severity)) for model, severity in zip(models, severities, strict=True)]
    mine = every.assign(subject=models + ", " + severities)
    return mine.iloc[[row for row in sorted(range(len(every)), key=order.__getitem__) if chosen.iloc[row]]]


def summed(gains: pandas.Series[float]) -> dict[str, float]:
    """Over several streams: the mean gain, the 5th percentile, the worst, and the share that loses over a point."""
    return {
        "mean": float(gains.mean()),
        "low": float(gains.quantile(0.05)),
        "worst": float(gains.min()),
        "hurt": 100 * float((gains < -HURT).mean()),
        "streams": len(gains),
    }


def _check(what: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(f"the records have no {what} {name!r}, only {', '.join(sorted(known))}")
