"""What can be said of a running model: its health, its accuracy, sudden changes, and metrics of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.monitoring.accuracy import Estimate
    from neotta.monitoring.change import Alarm, ChangeDetector
    from neotta.monitoring.health import Health

__all__ = ["Alarm", "ChangeDetector", "Estimate", "Health"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "neotta.monitoring.accuracy": "Estimate",
        "neotta.monitoring.change": "Alarm ChangeDetector",
        "neotta.monitoring.health": "Health",
    },
)
