"""Structured logs: one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_LOGGER = logging.getLogger("neotta.serve")


def log(event: str, **values: Any) -> None:
    """Log an event with its values; "error" and "warning" have their level, requests are for debugging."""
    level = {"error": logging.ERROR, "warning": logging.WARNING, "request": logging.DEBUG}.get(event, logging.INFO)
    _LOGGER.log(level, event, extra={"values": values})


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level, event and values; uvicorn's messages too."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        line = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "values", {}))
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str = "info") -> None:
    """Write the logs of the server and of uvicorn to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("neotta.serve", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = ([] if name == "uvicorn.error" else [handler]), name == "uvicorn.error"
        logger.setLevel(level.upper())
