"""A monitor's figures as Prometheus metrics (the extra `prometheus`).

```python
from neotta.monitoring import prometheus

prometheus.export(monitor)
prometheus_client.start_http_server(9100)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from neotta.errors import MissingExtraError
from neotta.monitoring.monitor import Monitor
from neotta.monitoring.status import Status

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


class Metrics:
    """Makes metrics of a monitor's status when it is asked for them, and costs nothing between.

    Args:
        monitor: The monitor.
        prefix: Of the metrics' names.
    """

    def __init__(self, monitor: Monitor, prefix: str = "neotta") -> None:
        self._monitor, self._prefix = monitor, prefix

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now."""
        monitor = self._monitor
        yield self._counter("samples", "Samples seen.", monitor.samples)
        yield self._counter("rejected", "Samples with NaN or Inf, which did not count.", monitor.rejected)
        yield self._counter("alarms", "Sudden changes.", len(monitor.changes))
        if monitor.samples:
            yield from self._gauges(monitor.status())

    def _gauges(self, status: Status) -> Iterator[Metric]:
        gauges = {
            "current_samples": ("Samples since the last change.", status.current),
            "evidence": ("How near the next alarm is, 0 to 1.", status.evidence),
            "origin_distance": ("Distance of the centroid from zero.", status.origin.distance),
            "origin_distance_ratio": ("The same in units of sampling noise.", status.origin.ratio),
            "speed": ("How far the short-window centroid moves in 100 samples.", status.speed),
            "speed_noise": ("What the speed would be if nothing moved.", status.speed_noise),
        }
        if status.model is not None:
            what = "Distance of the current centroid from the one that the model subtracts."
            gauges["model_distance"] = (what, status.model.distance)
        if status.domains:
            near = status.domains[0]
            gauges["nearest_cosine"] = ("Cosine of the centroid with that of the nearest domain.", near.cosine)
        for name, (what, value) in gauges.items():
            yield self._gauge(name, what, {None: value})
        domains = status.domains
        yield self._gauge(
            "domain_distance", "Distance from a known domain.", {near.domain: near.distance for near in domains}
        )
        yield self._gauge(
            "domain_distance_ratio",
            "The same in units of sampling noise.",
            {near.domain: near.ratio for near in domains},
        )
        yield self._gauge(
            "domain_cosine", "Cosine with a known domain's centroid.", {near.domain: near.cosine for near in domains}
        )

    def _counter(self, name: str, what: str, value: int) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        return CounterMetricFamily(f"{self._prefix}_{name}", what, value=value)

    def _gauge(self, name: str, what: str, values: dict[Any, float]) -> Metric:
        """One gauge: a single value under None, or one value for each domain."""
        from prometheus_client.core import GaugeMetricFamily

        if None in values:
            return GaugeMetricFamily(f"{self._prefix}_{name}", what, value=values[None])
        family = GaugeMetricFamily(f"{self._prefix}_{name}", what, labels=["domain"])
        for domain, value in values.items():
            family.add_metric([domain], value)
        return family


def export(monitor: Monitor, registry: CollectorRegistry | None = None, *, prefix: str = "neotta") -> Metrics:
    """Show a monitor's figures in a Prometheus registry.

    Args:
        monitor: The monitor.
        registry: None for the default one. `registry.unregister` what comes back to end it.
        prefix: Of the metrics' names; a registry that shows several monitors needs one for each.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise MissingExtraError("prometheus_client", "prometheus", "exporting metrics") from error
    metrics = Metrics(monitor, prefix)
    (REGISTRY if registry is None else registry).register(metrics)
    return metrics
