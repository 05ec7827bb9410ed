"""Measuring two or more ways side by side in one process, so that a noisy machine disturbs them alike.

Each round runs every way once, in random order: what ran before leaves the caches in its own state, and no way should
always have the same one before it. What is reported is the median over the rounds of the ratio to the first way, with
the quartiles.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from neotta._files import atomic


@dataclass
class Row:
    """One way, compared with the first of its group."""

    group: str
    way: str
    milliseconds: float
    ratio: float
    low: float
    high: float
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "within" if self.ratio <= self.limit else "ABOVE"


def compare(
    group: str,
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 31,
    warmup: int = 3,
    limits: Mapping[str, float] | None = None,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Row]:
    """Time each way `rounds` times, interleaved; the first way is the one the others are compared with."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names, order = list(ways), random.Random(0)
    for turn in range(-warmup, rounds):
        for name in order.sample(names, len(names)):
            way = ways[name]
            start = clock()
            for _ in range(repeat):
                way()
            if turn >= 0:
                times[name].append((clock() - start) / repeat)
    rows = []
    for name in names:
        ratios = [mine / base for mine, base in zip(times[name], times[names[0]], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(Row(group, name, statistics.median(times[name]) * 1e3, middle, low, high, (limits or {}).get(name)))
    return rows


def show(title: str, rows: list[Row], json_path: str | None = None, about: Mapping[str, object] | None = None) -> None:
    """Print the rows as a table, and save them as JSON if asked to."""
    table = Table(
        "", "way", "median ms", "ratio", "quartiles", "limit", "", title=title, title_justify="left", box=None
    )
    last = None
    for row in rows:
        table.add_row(
            row.group if row.group != last else "",
            row.way,
            f"{row.milliseconds:.3f}",
            f"{row.ratio:.3f}",
            f"{row.low:.3f} – {row.high:.3f}",
            "" if row.limit is None else f"{row.limit:.2f}",
            f"{row.verdict} {row.note}".strip(),
        )
        last = row.group
    Console(width=110).print(table)
    if json_path:
        content = {"title": title, **machine(), **(about or {}), "rows": [asdict(row) for row in rows]}
        with atomic(json_path) as file:
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
    }


def parser(about: str) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--rounds", type=int, default=31, help="how often each way is timed")
    options.add_argument("--threads", type=int, default=None, help="threads of torch (default: all cores)")
    options.add_argument("--json", help="save the figures in this file")
    return options
