"""Records for TensorBoard: one folder of events for each run."""

from __future__ import annotations

from pathlib import Path

from neotta._extras import need
from neotta.evaluate.loggers.entries import entries
from neotta.evaluate.records import Record


class TensorBoardLogger:
    """Writes event files that `tensorboard --logdir FOLDER` shows.

    Args:
        folder: Where they go; each record gets a folder of its own in it, named by its key.
    """

    def __init__(self, folder: str) -> None:
        self._package = need("tensorboardX", "logging to TensorBoard")
        self._folder = Path(folder)

    def log(self, record: Record) -> None:
        """Write numbers as scalars, accuracy by batch as a line, settings as hyperparameters, and all as text."""
        found = entries(record)
        name = f"{found.name} {record['key'][:8]}".replace("/", "-").replace(" ", "_").replace(":", "-")
        with self._package.SummaryWriter(str(self._folder / name)) as writer:
            for path, value in found.numbers.items():
                writer.add_scalar(path.replace(".", "/"), value, 0)
            for batch, accuracy in enumerate(found.curve, start=1):
                writer.add_scalar("accuracy_by_batch", accuracy, batch)
            for path, text in found.settings.items():
                writer.add_text(f"settings/{path}", text)
            writer.add_text("record", f"```json\n{found.whole}\n```")

    def close(self) -> None:
        """Nothing is waiting: every run is written when it is logged."""
