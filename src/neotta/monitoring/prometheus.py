"""The health of a model as Prometheus metrics (the extra `prometheus`).

```python
from neotta.monitoring import prometheus

prometheus.export(model)
prometheus_client.start_http_server(9100, addr="127.0.0.1")  # "0.0.0.0" for all who reach this machine
```
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from neotta._extras import need
from neotta.adapters.base import Adapter
from neotta.monitoring.health import health

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

HEALTH = {
    "samples": "Samples learnt from.",
    "rejected": "Samples not learnt from because of NaN, Inf or their size.",
    "changed": "Share of the answers that differ from those of the plain model.",
    "draws": "Label draws that the samples count as.",
    "shift": "Length of what is subtracted, relative to the spread of the logits.",
    "top_share": "Expected share of the most frequent class.",
}
"""The figures of a `Health` that are exported, here and by the server."""


class Metrics:
    """Reads the health of a model when it is scraped."""

    def __init__(self, model: nn.Module | Adapter[Any], prefix: str) -> None:
        self._model, self._prefix = model, prefix

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client.core import GaugeMetricFamily

        found = health(self._model)
        named = isinstance(found, dict)
        labels = ["stream"] if named else []
        every = {(str(item),): each for item, each in found.items()} if isinstance(found, dict) else {(): found}
        for name, text in HEALTH.items():
            figures = [(item, getattr(each, name)) for item, each in every.items()]
            yield family(GaugeMetricFamily, f"{self._prefix}_{name}", text, labels, figures)
        verdicts = [((*item, each.verdict), 1) for item, each in every.items()]
        yield family(GaugeMetricFamily, f"{self._prefix}_verdict", "1 for its verdict.", [*labels, "verdict"], verdicts)
        signs = [((*item, sign), 1) for item, each in every.items() for sign in each.signs]
        yield family(GaugeMetricFamily, f"{self._prefix}_sign", "1 for each sign.", [*labels, "sign"], signs)


def family(
    kind: Any, name: str, text: str, labels: list[str], rows: Iterable[tuple[Iterable[str], float | None]]
) -> Metric:
    """A metric of Prometheus with a value for each combination of labels; those that are not known are left out."""
    made: Metric = kind(name, text, labels=labels)
    for values, number in rows:
        if number is not None and not math.isnan(number):
            made.add_metric(list(values), number)  # type: ignore[attr-defined]
    return made


def export(
    model: nn.Module | Adapter[Any], registry: CollectorRegistry | None = None, *, prefix: str = "neotta"
) -> Metrics:
    """Add what `neotta.health` says of a model, with a label for each of its streams, to a Prometheus registry.

    Args:
        model: An adapted model, or an adapter of the NEO family.
        registry: None for the default one. To stop, pass the returned object to `registry.unregister`.
        prefix: Prefix of the metrics' names.

    Raises:
        MissingExtraError: prometheus_client is not installed.
    """
    default = need("prometheus_client", "exporting metrics").REGISTRY
    health(model)  # it must have a state
    metrics = Metrics(model, prefix)
    (default if registry is None else registry).register(metrics)
    return metrics
