"""Prometheus metrics of monitors (the extra `prometheus`).

```python
from neotta.monitoring import prometheus

prometheus.export(monitor)
prometheus_client.start_http_server(9100, addr="127.0.0.1")  # "0.0.0.0" for all who reach this machine
```
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from neotta._extras import need
from neotta.errors import OptionError
from neotta.monitoring.library import Proximity
from neotta.monitoring.monitor import Monitor, Status

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

_exported: WeakKeyDictionary[CollectorRegistry, dict[str, Metrics]] = WeakKeyDictionary()
"""What is exported by registry and prefix: two collectors of the same names would give duplicate series."""

COUNTERS: dict[str, tuple[str, Callable[[Monitor], float]]] = {
    "samples": ("Samples seen.", lambda monitor: monitor.samples),
    "rejected": ("Samples excluded because of NaN, Inf or their size.", lambda monitor: monitor.rejected),
    "alarms": ("Changes detected.", lambda monitor: len(monitor.changes)),
}
GAUGES: dict[str, tuple[str, Callable[[Status], float | None]]] = {
    "current_samples": ("Samples since the last change.", lambda now: now.current),
    "evidence": ("How close the next alarm is, 0 to 1.", lambda now: now.evidence),
    "origin_distance": ("Distance from clean data.", lambda now: now.origin.distance),
    "origin_distance_ratio": ("The same in units of sampling noise.", lambda now: now.origin.ratio),
    "model_distance": (
        "Distance from what the model has learnt.",
        lambda now: None if now.model is None else now.model.distance,
    ),
    "speed": ("Distance that the mean of a short window moves in 100 samples.", lambda now: now.speed),
    "speed_noise": ("Speed expected from sampling noise alone.", lambda now: now.speed_noise),
    "nearest_cosine": ("Cosine with the nearest domain.", lambda now: now.domains[0].cosine if now.domains else None),
}
BY_DOMAIN: dict[str, tuple[str, Callable[[Proximity], float]]] = {
    "domain_distance": ("Distance from a known domain.", lambda near: near.distance),
    "domain_distance_ratio": ("The same in units of sampling noise.", lambda near: near.ratio),
    "domain_cosine": ("Cosine with a known domain.", lambda near: near.cosine),
}


class Metrics:
    """Collects the metrics of monitors, by label, when they are scraped; the label "" is omitted."""

    def __init__(self, monitors: Mapping[str, Monitor], prefix: str = "neotta") -> None:
        self._monitors, self._prefix = monitors, prefix

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["monitor"] if any(self._monitors) else []
        monitors = [([label] * len(labels), monitor) for label, monitor in self._monitors.items()]
        statuses = [(values, monitor.status()) for values, monitor in monitors if monitor.samples]
        for name, (text, total) in COUNTERS.items():
            totals = [(values, total(monitor)) for values, monitor in monitors]
            yield family(CounterMetricFamily, f"{self._prefix}_{name}", text, labels, totals)
        for name, (text, figure) in GAUGES.items():
            figures = [(values, figure(now)) for values, now in statuses]
            yield family(GaugeMetricFamily, f"{self._prefix}_{name}", text, labels, figures)
        for name, (text, measure) in BY_DOMAIN.items():
            by_domain = [([*values, near.domain], measure(near)) for values, now in statuses for near in now.domains]
            yield family(GaugeMetricFamily, f"{self._prefix}_{name}", text, [*labels, "domain"], by_domain)


def family(
    kind: Any, name: str, text: str, labels: list[str], rows: Iterable[tuple[list[str], float | None]]
) -> Metric:
    """A metric of Prometheus with a value for each combination of labels; those that are None are left out."""
    made: Metric = kind(name, text, labels=labels)
    for values, number in rows:
        if number is not None:
            made.add_metric(values, number)  # type: ignore[attr-defined]
    return made


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
