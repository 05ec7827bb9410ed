"""`/metrics` for Prometheus: the server, all streams by health, and some streams by name."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from neotta.monitoring.prometheus import HEALTH, family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from neotta.deploy.serve.service import Service

OTHER = "other"
FIGURES = {
    **{name: (name, text) for name, text in HEALTH.items()},
    "value": ("accuracy", "Estimated accuracy."),
    "low": ("accuracy_low", "Lower end of its interval."),
    "high": ("accuracy_high", "Upper end of its interval."),
    "seen": ("seen_seconds", "Time of the last image."),
}
"""The metric of each figure in the summary of a stream."""
_gauge = partial(family, GaugeMetricFamily)
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
        if stream in self._service.streams and len(self._named) < self._service.settings.metric_streams:
            self._named.setdefault(stream)
        self._images.labels(stream if stream in self._named else OTHER).inc(images)

    def collect(self) -> Iterator[Metric]:
        service, batcher = self._service, self._service.batcher
        yield CounterMetricFamily("neotta_images", "Images answered.", batcher.rows)
        yield CounterMetricFamily("neotta_batches", "Batches run.", batcher.batches)
        yield GaugeMetricFamily("neotta_waiting_images", "Images that wait for the model.", batcher.queue.amount)
        pixels = service.images.readers.queue.amount
        yield GaugeMetricFamily("neotta_waiting_pixels", "Pixels and bytes, as pixels, that wait to be read.", pixels)
        summaries = service.board.summaries
        status = Tally(dict.fromkeys(STATUS, 0))
        status.update(about["status"] for about in summaries)
        signs = Tally(sign for about in summaries for sign in _signs(about))
        by_status, by_sign = ([([each], number) for each, number in tally.items()] for tally in (status, signs))
        yield _gauge("neotta_streams", "Streams by status.", ["status"], by_status)
        yield _gauge("neotta_streams_with_sign", "Streams by sign.", ["sign"], by_sign)
        yield from self._named_streams([about for about in summaries if about["id"] in self._named])

    def _named_streams(self, summaries: list[dict[str, Any]]) -> Iterator[Metric]:
        statuses = [([about["id"], about["status"]], 1) for about in summaries]
        yield _gauge("neotta_stream_status", "1 for its status.", ["stream", "status"], statuses)
        signs = [([about["id"], sign], 1) for about in summaries for sign in _signs(about)]
        yield _gauge("neotta_stream_sign", "1 for each sign of its health.", ["stream", "sign"], signs)
        values = {
            about["id"]: {**(about["health"] or {}), **(about["accuracy"] or {}), "seen": about["seen"]}
            for about in summaries
        }
        for name, (metric, text) in FIGURES.items():
            rows = [([stream], each.get(name)) for stream, each in values.items()]
            yield _gauge(f"neotta_stream_{metric}", text, ["stream"], rows)


def _signs(about: dict[str, Any]) -> tuple[str, ...]:
    return about["health"]["signs"] if about["health"] else ()
