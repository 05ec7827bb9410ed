"""Records for Weights & Biases: one run each, in a project."""

from __future__ import annotations

from neotta._extras import need
from neotta.evaluate.loggers.entries import entries
from neotta.evaluate.records import Record


class WandbLogger:
    """Writes runs with settings, numbers and the whole record. `WANDB_MODE=offline` keeps them on this machine.

    Args:
        project: `PROJECT`, or `ENTITY/PROJECT`.
    """

    def __init__(self, project: str) -> None:
        self._package = need("wandb", "logging to Weights & Biases")
        self._entity, _, self._project = project.rpartition("/")

    def log(self, record: Record) -> None:
        """Write a run; one that failed is marked so."""
        found = entries(record)
        where = {"project": self._project, "entity": self._entity or None, "group": str(record.get("model", ""))}
        run = self._package.init(**where, name=found.name, config=found.settings, reinit="create_new")
        for batch, accuracy in enumerate(found.curve, start=1):
            run.log({"accuracy_by_batch": accuracy}, step=batch)
        run.summary.update({**found.numbers, "record": found.whole})
        run.finish(exit_code=int(record.get("status") == "failed"))

    def close(self) -> None:
        """Nothing is waiting: every run is finished when it is logged."""
