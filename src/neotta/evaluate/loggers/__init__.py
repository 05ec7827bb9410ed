"""Copies of records for MLflow, Weights & Biases and TensorBoard. Nothing is logged unless it is asked for.

The file of records stays the source of truth: a logger receives each record after it was written there, and one that
fails is left alone with a warning while the runs go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from neotta._warning import warn
from neotta.errors import OptionError, suggestion
from neotta.evaluate.loggers import mlflow, tensorboard, wandb
from neotta.evaluate.records import Record


class Logger(Protocol):
    """Writes records somewhere else."""

    def log(self, record: Record) -> None:
        """Write one record: a run of its own."""

    def close(self) -> None:
        """Write what is waiting, and end."""


KINDS: dict[str, Callable[[str], Logger]] = {
    "mlflow": mlflow.MLflowLogger,
    "wandb": wandb.WandbLogger,
    "tensorboard": tensorboard.TensorBoardLogger,
}
"""By name: makes a logger from where to log to."""


def open_logger(spec: str) -> Logger:
    """Make a logger from `mlflow:URI`, `wandb:PROJECT` or `tensorboard:FOLDER`.

    Raises:
        OptionError: There is no such logger, or it is not said where to log to.
        MissingExtraError: Its package is not installed.
    """
    kind, _, where = spec.partition(":")
    if kind not in KINDS:
        raise OptionError(f"there is no logger {kind!r}: {suggestion(kind, KINDS)}")
    if not where:
        places = {"mlflow": "URI", "wandb": "PROJECT", "tensorboard": "FOLDER"}
        raise OptionError(f"--log {kind} has to say where to log to: {kind}:{places[kind]}")
    return KINDS[kind](where)


@contextlib.contextmanager
def logging_to(specs: Sequence[str]) -> Iterator[Callable[[Record], None]]:
    """A callback that hands each record to all these loggers, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        found: dict[str, Logger] = {}
        for spec in dict.fromkeys(specs):
            found[spec] = open_logger(spec)
            stack.callback(_close, found, spec)

        def log(record: Record) -> None:
            for spec in list(found):
                try:
                    found[spec].log(record)
                except Exception as error:  # of a package or a server that is not ours
                    _give_up(found, spec, error)

        yield log


def _close(found: dict[str, Logger], spec: str) -> None:
    if spec in found:
        try:
            found[spec].close()
        except Exception as error:
            _give_up(found, spec, error)


def _give_up(found: dict[str, Logger], spec: str, error: Exception) -> None:
    del found[spec]
    first = (str(error).splitlines() or [""])[0]
    warn(f"{spec} gets no more records ({type(error).__name__}: {first}); the file of results is complete")
