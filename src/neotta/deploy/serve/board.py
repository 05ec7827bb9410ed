"""What is shown of all streams, to the dashboard and to Prometheus: made once a second, for all who ask together."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter as Tally
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from neotta._version import __version__
from neotta.monitoring.prometheus import HEALTH, family

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from neotta.deploy.serve.service import Service, Stream

SHOWN = 1000  # most streams in one list
EVERY = 1.0  # seconds


class Shown(NamedTuple):
    """The server and its streams as JSON."""

    number: int  # grows by one
    everything: str  # those in trouble first
    changes: str  # those that changed since the last number


class Board:
    """The summaries of all streams. Only those of streams that changed are made again."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._kept: dict[str, tuple[tuple[Stream, float, int], dict[str, Any], str]] = {}
        self._lock = asyncio.Lock()
        self._shown, self._made = Shown(0, "", ""), -math.inf

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [summary for _, summary, _ in self._kept.values()]

    async def latest(self) -> Shown:
        async with self._lock:
            if time.monotonic() - self._made >= EVERY:
                await self._service.images.readers.run(self._make, ("", "board"), 1)
            return self._shown

    def _make(self) -> None:
        before, after, changed = self._kept, dict[str, Any](), []
        for name, stream in [*self._service.streams.items()]:
            mark, kept = (stream, stream.changed, stream.images), before.get(name)
            if kept is None or kept[0] != mark:
                summary = self._service.summary(name, stream)
                kept = mark, summary, json.dumps(summary)
                changed.append(kept[2])
            after[name] = kept
        self._kept = after
        first = sorted(after.values(), key=lambda each: (-each[1]["trouble"], each[1]["id"]))[:SHOWN]
        server, more = json.dumps(about(self._service)), max(0, len(after) - SHOWN)
        everything, changes = (
            f'{{"server": {server}, "streams": [{", ".join(texts)}], "more": {more}}}'
            for texts in ([text for _, _, text in first], changed[:SHOWN])
        )
        self._shown = Shown(self._shown.number + 1, everything, changes)  # also if who asked has gone
        self._made = time.monotonic()


def about(service: Service) -> dict[str, Any]:
    return {
        "model": service.settings.name,
        "version": __version__,
        "rule": service.engine.rule,
        "shadow": service.settings.shadow,
        "streams": len(service.streams),
        "images": service.batcher.rows,
        "waiting": service.batcher.queue.amount,
        "pictures": service.settings.pictures,
    }


# ---- Prometheus

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
    """The metrics of a service; the first `metric_streams` streams have metrics of their own."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.registry = CollectorRegistry()
        self.requests = Counter("neotta_requests", "Requests by status.", ["status"], registry=self.registry)
        self.seconds = Histogram("neotta_request_seconds", "Time to answer.", registry=self.registry)
        self.registry.register(self)

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
        yield from self._named_streams(summaries[: service.settings.metric_streams])

    def _named_streams(self, summaries: list[dict[str, Any]]) -> Iterator[Metric]:
        images = [([about["id"]], about["images"]) for about in summaries]
        yield family(CounterMetricFamily, "neotta_stream_images", "Images answered.", ["stream"], images)
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
