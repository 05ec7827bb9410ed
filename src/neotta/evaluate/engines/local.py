"""One run after the other, in this process."""

from __future__ import annotations

from collections.abc import Generator

from neotta.evaluate.engines import Job
from neotta.evaluate.records import Record


def execute(job: Job) -> Generator[Record, None, None]:
    """Carry runs out and yield their records."""
    for run in job.runs:
        yield job.bench.execute(run, job.progress)
