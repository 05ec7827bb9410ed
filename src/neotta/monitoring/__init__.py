"""Detection of domain changes: a monitor of embeddings, a library of domains, Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neotta._extras import lazy

if TYPE_CHECKING:
    from neotta.monitoring.change import ChangeDetector
    from neotta.monitoring.library import Domain, DomainLibrary, Proximity
    from neotta.monitoring.monitor import Change, Monitor, Status

__all__ = ["Change", "ChangeDetector", "Domain", "DomainLibrary", "Monitor", "Proximity", "Status"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "neotta.monitoring.change": "ChangeDetector",
        "neotta.monitoring.library": "Domain DomainLibrary Proximity",
        "neotta.monitoring.monitor": "Change Monitor Status",
    },
)
