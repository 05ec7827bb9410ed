"""`/metrics` for Prometheus: the server, and each camera up to a number of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from neotta.deploy.serve.figures import NAMES
from neotta.deploy.serve.service import Service

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

OTHER = "other"
"""The label of cameras beyond the number."""

GAUGES = {
    **NAMES,
    "accuracy": "Estimated accuracy of adapted answers.",
    "evidence": "How close the next alarm is, 0 to 1.",
    "frozen": "1 if the camera does not adapt.",
}
COUNTERS = {"seen": "Samples seen.", "learnt": "Samples learnt from.", "alarms": "Alarms raised."}


class Metrics:
    """The metrics of a service.

    Cameras get labels of their own in the order in which they appear, up to `metric_cameras`; the counters of all
    others are summed up under "other", so that the number of series is bounded.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._labelled: dict[str, None] = {}
        self.registry = CollectorRegistry()
        self.requests = Counter("neotta_requests", "Requests by status.", ["status"], registry=self.registry)
        self.seconds = Histogram("neotta_request_seconds", "Time to answer.", registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The figures of the moment."""
        service = self._service
        batcher = service.batcher
        plain = {
            "cameras": (len(service.known), "Cameras that are known."),
            "queue": (0 if batcher is None else batcher.waiting, "Images that wait."),
        }
        for name, (value, text) in plain.items():
            yield GaugeMetricFamily(f"neotta_{name}", text, value)
        yield CounterMetricFamily("neotta_batches", "Batches run.", 0 if batcher is None else batcher.batches)
        yield CounterMetricFamily("neotta_rows", "Images answered.", 0 if batcher is None else batcher.rows)
        yield from self._cameras()

    def _cameras(self) -> Iterator[Metric]:
        shown, rest = self._chosen()
        for name, text in COUNTERS.items():
            family: Any = CounterMetricFamily(f"neotta_camera_{name}", text, labels=["camera"])
            for summary in shown:
                family.add_metric([summary["id"]], summary[name])
            if rest:
                family.add_metric([OTHER], sum(summary[name] for summary in rest))
            yield family
        for name, text in GAUGES.items():
            family = GaugeMetricFamily(f"neotta_camera_{name}", text, labels=["camera"])
            for summary in shown:
                value = _number(summary[name])
                if value is not None:
                    family.add_metric([summary["id"]], value)
            yield family

    def _chosen(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        watch, most = self._service.watch, self._service.settings.metric_cameras
        cameras = watch.changed(0)
        for camera in cameras:
            if len(self._labelled) < most:
                self._labelled.setdefault(camera)
        mine = [watch.summary(camera) for camera in cameras if camera in self._labelled]
        others = [watch.totals(camera) for camera in cameras if camera not in self._labelled]
        return mine, others


def _number(value: Any) -> float | None:
    if isinstance(value, dict):
        value = value["accuracy"]
    return float(bool(value)) if isinstance(value, str | bool) else value


def routes(metrics: Metrics) -> list[Route]:
    """The route that Prometheus asks."""

    async def show(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", show)]
