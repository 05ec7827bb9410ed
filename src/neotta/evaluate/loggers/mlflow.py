"""Records for MLflow: one run each, in the experiment `neotta`."""

from __future__ import annotations

from neotta._extras import need
from neotta.evaluate.loggers.entries import entries
from neotta.evaluate.records import Record

EXPERIMENT = "neotta"
LONGEST = 500
"""Number of characters of a parameter that every store of MLflow takes."""


class MLflowLogger:
    """Writes runs with parameters, metrics and the whole record as an artifact.

    Args:
        uri: Of the tracking server or store: `http://...`, `sqlite:///mlflow.db`, a folder.
    """

    def __init__(self, uri: str) -> None:
        self._client = need("mlflow", "logging to MLflow").MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(EXPERIMENT)
        self._experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)

    def log(self, record: Record) -> None:
        """Write a run; one that failed is marked so."""
        found = entries(record)
        run = self._client.create_run(self._experiment, run_name=found.name, tags={"neotta.key": record["key"]})
        name = run.info.run_id
        for path, text in found.settings.items():
            self._client.log_param(name, path, text[:LONGEST])
        for path, value in found.numbers.items():
            self._client.log_metric(name, _allowed(path), value)
        for batch, accuracy in enumerate(found.curve, start=1):
            self._client.log_metric(name, "accuracy_by_batch", accuracy, step=batch)
        self._client.log_text(name, found.whole, "record.json")
        self._client.set_terminated(name, "FAILED" if record.get("status") == "failed" else "FINISHED")

    def close(self) -> None:
        """Nothing is waiting: every run is written when it is logged."""


def _allowed(path: str) -> str:
    """A name that MLflow takes: letters, digits, and some signs."""
    return "".join(character if character.isalnum() or character in "_-./ " else "_" for character in path)
