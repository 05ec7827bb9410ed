"""Prometheus metrics of monitors (the extra `prometheus`).

```python
from neotta.monitoring import prometheus

prometheus.export(monitor)
prometheus_client.start_http_server(9100, addr="127.0.0.1")  # "0.0.0.0" for all who reach this machine
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from neotta._extras import need
from neotta.errors import OptionError
from neotta.monitoring.monitor import Monitor

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_exported: WeakKeyDictionary[CollectorRegistry, dict[str, Metrics]] = WeakKeyDictionary()
"""What is exported by registry and prefix: two collectors of the same names would give duplicate series."""

COUNTERS = {
    "samples": "Samples seen.",
    "rejected": "Samples excluded because of NaN, Inf or their size.",
    "alarms": "Changes detected.",
}
GAUGES = {
    "current_samples": "Samples since the last change.",
    "evidence": "How close the next alarm is, 0 to 1.",
    "origin_distance": "Distance from clean data.",
    "origin_distance_ratio": "The same in units of sampling noise.",
    "model_distance": "Distance from what the model has learnt.",
    "speed": "Distance that the mean of a short window moves in 100 samples.",
    "speed_noise": "Speed expected from sampling noise alone.",
    "nearest_cosine": "Cosine with the nearest domain.",
}
BY_DOMAIN = {
    "domain_distance": "Distance from a known domain.",
    "domain_distance_ratio": "The same in units of sampling noise.",
    "domain_cosine": "Cosine with a known domain.",
}


class Metrics:
    """Collects the metrics of monitors when they are scraped.

    Args:
        monitors: The monitors by label; the label "" is omitted.
        prefix: Prefix of the metrics' names.
    """

    def __init__(self, monitors: Mapping[str, Monitor], prefix: str = "neotta") -> None:
        self._monitors, self._prefix = monitors, prefix

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["monitor"] if any(self._monitors) else []
        families: dict[str, Metric] = {}
        for name, what in COUNTERS.items():
            families[name] = CounterMetricFamily(f"{self._prefix}_{name}", what, labels=labels)
        for name, what in {**GAUGES, **BY_DOMAIN}.items():
            more = ["domain"] if name in BY_DOMAIN else []
            families[name] = GaugeMetricFamily(f"{self._prefix}_{name}", what, labels=[*labels, *more])
        for label, monitor in self._monitors.items():
            for name, domain, value in _figures(monitor):
                values = [label] * bool(labels) + [domain] * (name in BY_DOMAIN)
                families[name].add_metric(values, value)  # type: ignore[attr-defined]
        yield from families.values()


def _figures(monitor: Monitor) -> Iterator[tuple[str, str, float]]:
    """Yield the name, domain (or "") and value of each metric of a monitor."""
    yield "samples", "", monitor.samples
    yield "rejected", "", monitor.rejected
    yield "alarms", "", len(monitor.changes)
    if not monitor.samples:
        return
    status = monitor.status()
    yield "current_samples", "", status.current
    yield "evidence", "", status.evidence
    yield "origin_distance", "", status.origin.distance
    yield "origin_distance_ratio", "", status.origin.ratio
    yield "speed", "", status.speed
    yield "speed_noise", "", status.speed_noise
    if status.model is not None:
        yield "model_distance", "", status.model.distance
    if status.domains:
        yield "nearest_cosine", "", status.domains[0].cosine
    for near in status.domains:
        yield "domain_distance", near.domain, near.distance
        yield "domain_distance_ratio", near.domain, near.ratio
        yield "domain_cosine", near.domain, near.cosine


def export(
    monitor: Monitor | Mapping[str, Monitor], registry: CollectorRegistry | None = None, *, prefix: str = "neotta"
) -> Metrics:
    """Add the metrics of one or several monitors to a Prometheus registry.

    Args:
        monitor: A monitor, or a dictionary of several by name, which adds a label `monitor` to every metric. The
            dictionary may be extended later.
        registry: None for the default one. What an earlier call added under the same prefix is replaced. To stop,
            pass the returned object to `registry.unregister`.
        prefix: Prefix of the metrics' names.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    default = need("prometheus_client", "exporting metrics").REGISTRY
    monitors = monitor if isinstance(monitor, Mapping) else {"": monitor}
    for name, each in monitors.items():
        if not isinstance(each, Monitor) or not isinstance(name, str):
            raise OptionError(f"expected a monitor, or a dictionary of monitors by name, got {monitor!r}")
    metrics = Metrics(monitors, prefix)
    chosen = default if registry is None else registry
    before = _exported.setdefault(chosen, {}).get(prefix)
    if before is not None:
        with contextlib.suppress(KeyError):  # the caller has unregistered it
            chosen.unregister(before)
    chosen.register(metrics)
    _exported[chosen][prefix] = metrics
    return metrics
