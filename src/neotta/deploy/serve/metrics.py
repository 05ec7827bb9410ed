"""`/metrics` for Prometheus: the server, all streams by health, and some streams by name."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from neotta.deploy.serve.service import Service

OTHER = "other"
HEALTH = {
    "samples": "Samples learnt from.",
    "rejected": "Samples not learnt from because of NaN, Inf or their size.",
    "changed": "Share of the answers that differ from those of the plain model.",
    "draws": "Label draws that the samples count as.",
    "shift": "Length of what is subtracted, relative to the spread of the logits.",
    "top_share": "Expected share of the most frequent class.",
}
ACCURACY = {
    "value": ("accuracy", "Estimated accuracy."),
    "low": ("accuracy_low", "Lower end of its interval."),
    "high": ("accuracy_high", "Upper end of its interval."),
}
STATUS = ("quarantined", "frozen", "starting", "idle", "adapting")


class Metrics:
    """The metrics of a service.

    The first `metric_streams` streams that learn have metrics of their own, for good; all others are counted as
    "other", so that the number of series is bounded and no counter goes down.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._named: dict[str, None] = {}
        self.registry = CollectorRegistry()
        self.requests = Counter("neotta_requests", "Requests by status.", ["status"], registry=self.registry)
        self.seconds = Histogram("neotta_request_seconds", "Time to answer.", registry=self.registry)
        self._images = Counter("neotta_stream_images", "Images answered.", ["stream"], registry=self.registry)
        self.registry.register(self)

    def count(self, stream: str, images: int) -> None:
        """Count images that were answered."""
        if stream in self._service.streams and len(self._named) < self._service.settings.metric_streams:
            self._named.setdefault(stream)
        self._images.labels(stream if stream in self._named else OTHER).inc(images)

    def collect(self) -> Iterator[Metric]:
        """The figures of the moment."""
        service, batcher = self._service, self._service.batcher
        yield CounterMetricFamily("neotta_images", "Images answered.", batcher.rows)
        yield CounterMetricFamily("neotta_batches", "Batches run.", batcher.batches)
        yield GaugeMetricFamily("neotta_waiting_images", "Images that wait for the model.", batcher.queue.amount)
        pixels = service.images.decoder.queue.amount
        yield GaugeMetricFamily("neotta_waiting_pixels", "Pixels that wait to be decoded.", pixels)
        summaries = [service.summary(stream) for stream in [*service.streams]]
        yield from self._all(summaries)
        yield from self._some([about for about in summaries if about["id"] in self._named])

    def _all(self, summaries: list[dict[str, Any]]) -> Iterator[Metric]:
        status = Tally(dict.fromkeys(STATUS, 0))
        status.update(about["status"] for about in summaries)
        signs = Tally(sign for about in summaries for sign in (about["health"] or {"signs": ()})["signs"])
        for name, text, label, tally in (
            ("streams", "Streams by status.", "status", status),
            ("streams_with_sign", "Streams by sign.", "sign", signs),
        ):
            family = GaugeMetricFamily(f"neotta_{name}", text, labels=[label])
            for value, number in tally.items():
                family.add_metric([value], number)
            yield family

    def _some(self, summaries: list[dict[str, Any]]) -> Iterator[Metric]:
        statuses = GaugeMetricFamily("neotta_stream_status", "1 for its status.", labels=["stream", "status"])
        signs = GaugeMetricFamily("neotta_stream_sign", "1 for each sign of its health.", labels=["stream", "sign"])
        figures = {name: (name, text) for name, text in HEALTH.items()} | ACCURACY
        families: dict[str, Any] = {
            name: GaugeMetricFamily(f"neotta_stream_{metric}", text, labels=["stream"])
            for name, (metric, text) in {**figures, "seen": ("seen_seconds", "Time of the last image.")}.items()
        }
        for about in summaries:
            statuses.add_metric([about["id"], about["status"]], 1)
            for sign in (about["health"] or {"signs": ()})["signs"]:
                signs.add_metric([about["id"], sign], 1)
            values = {**(about["health"] or {}), **(about["accuracy"] or {}), "seen": about["seen"]}
            for name, family in families.items():
                if values.get(name) is not None:
                    family.add_metric([about["id"]], values[name])
        yield from (statuses, signs, *families.values())
