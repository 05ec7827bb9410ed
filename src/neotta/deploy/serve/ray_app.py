"""A Ray Serve application: cameras routed to replicas by their id.

```python
from ray import serve
from neotta.deploy import serve_app

serve.run(serve_app("timm:vit_tiny_patch16_224", store="redis://redis:6379/0", replicas=4))
```

One replica owns a camera, so its window and its label prior see every frame in order; what it learnt over all time is
in Redis. A replica that dies is started again by Ray and takes up its cameras from there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from neotta._extras import need
from neotta.deploy.serve.opening import open_service
from neotta.deploy.serve.settings import DEFAULT_CAMERA, Settings, model_name
from neotta.errors import OptionError

HEADER = "inference-header-content-length"
Reply = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers and body of an answer."""


def owner(camera: str, replicas: int) -> int:
    """The replica of a camera: the one whose hash with it is largest, so that few move when their number changes."""
    scores = [hashlib.sha256(f"{index} {camera}".encode()).digest() for index in range(replicas)]
    return max(range(replicas), key=scores.__getitem__)


def camera_of(query: str, headers: Mapping[str, str], body: bytes) -> str:
    """The camera that a request is about: in its query, or in the parameters of its JSON."""
    asked = parse_qs(query)
    for name in ("stream", "id"):
        if name in asked:
            return asked[name][0]
    end = headers.get(HEADER, "")
    try:
        head = json.loads(body[: int(end)] if end.isdigit() else body)
        found = (head.get("parameters") or {}).get("stream", head.get("id") if "inputs" not in head else None)
    except (ValueError, AttributeError, RecursionError):
        return DEFAULT_CAMERA  # the replica will say what is wrong with it
    return DEFAULT_CAMERA if found is None else str(found)


class Replica:
    """One model with the cameras it owns, in a process of Ray's.

    Args:
        model: As `neotta serve` takes it.
        settings: How it is served.
        store: An address of Redis, or None to keep states in memory.
        **options: See `open_service`.
    """

    def __init__(self, model: str, settings: Settings, store: str | None, options: dict[str, Any]) -> None:
        from neotta.deploy.serve.application import application

        self._service = open_service(model, settings, store=store, **options)
        self._app = application(self._service, loopback=False)
        self._started = False
        self._starting = asyncio.Lock()

    async def answer(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer a request."""
        async with self._starting:
            if not self._started:
                await self._service.start()
                self._started = True
        return await called(self._app, method, path, query, headers, body)

    async def __ray_shutdown__(self) -> None:
        """Answer what was accepted, and deliver what was learnt."""
        if self._started:
            await self._service.close()


async def called(app: Any, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """Call an ASGI application with a request that is known already."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "scheme": "http",
        "server": ("replica", 80),
        "client": ("router", 0),
        "root_path": "",
    }
    parts: list[bytes] = []
    start: dict[str, Any] = {}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
    return start["status"], named, b"".join(parts)


class Router:
    """Passes each request to the replica that owns its camera.

    Args:
        replicas: Handles of the replicas.
        settings: How the model is served; replicas check keys and limits.
    """

    def __init__(self, settings: Settings, *replicas: Any) -> None:
        self._replicas, self._settings = replicas, settings

    async def __call__(self, request: Any) -> Any:
        """Answer a request."""
        from starlette.responses import Response

        from neotta.deploy.serve.guard import read_body
        from neotta.deploy.serve.refusal import Refusal, refused

        path = request.url.path
        if path in ("/api/events", "/", "/docs") or path.startswith("/static/"):
            return refused(Refusal(404, "the dashboard belongs to one server: under Ray Serve use /metrics and /api"))
        try:
            body = await read_body(request, self._settings.limits)
        except Refusal as error:
            return refused(error)
        given = (request.method, path, request.url.query, dict(request.headers), body)
        if path == "/api/cameras":
            return _joined(await asyncio.gather(*(replica.answer.remote(*given) for replica in self._replicas)))
        index = owner(camera_of(request.url.query, dict(request.headers), body), len(self._replicas))
        status, headers, content = await self._replicas[index].answer.remote(*given)
        return Response(content, status, dict(headers))


def _joined(replies: Sequence[Reply]) -> Any:
    """The cameras of all replicas in one list, each as its owner shows it."""
    from starlette.responses import JSONResponse, Response

    wrong = next((reply for reply in replies if reply[0] != 200), None)
    if wrong is not None:
        return Response(wrong[2], wrong[0], dict(wrong[1]))
    found = [json.loads(content) for _, _, content in replies]
    cameras = [
        camera
        for index, each in enumerate(found)
        for camera in each["cameras"]
        if owner(camera["id"], len(replies)) == index
    ]
    server = {**found[0]["server"], "cameras": len(cameras), "rows": sum(each["server"]["rows"] for each in found)}
    return JSONResponse({"server": server, "cameras": sorted(cameras, key=lambda camera: str(camera["id"])), "more": 0})


def serve_app(
    model: str,
    *,
    store: str | None = None,
    replicas: int = 2,
    settings: Settings | None = None,
    actor_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for `ray.serve.run`.

    Args:
        model: As `neotta serve` takes it; every node must be able to open it.
        store: An address of Redis, where what cameras teach outlives a replica; None keeps it in the replicas.
        replicas: Number of models; each owns its share of the cameras.
        settings: How they are served; `Settings(name=...)` by default.
        actor_options: Resources of a replica, for example `{"num_gpus": 1}`.
        **options: As of `neotta.deploy.serve.opening.open_service`: `rule`, `options`, `labels`, ...

    Raises:
        OptionError: The number of replicas is not positive, or the store is a folder.
        MissingExtraError: Ray Serve is not installed.
    """
    serve = need("ray.serve", "serving with Ray")
    if not isinstance(replicas, int) or replicas < 1:
        raise OptionError(f"replicas is {replicas!r}: expected a whole number, at least 1")
    if store is not None and not store.startswith(("redis://", "rediss://", "unix://")):
        raise OptionError(f"store is {store!r}: replicas on several machines share Redis, redis://HOST:PORT/DB")
    chosen = settings or Settings(name=model_name(model))
    resources = dict(actor_options or {"num_cpus": 1})
    made = serve.deployment(
        Replica, num_replicas=1, ray_actor_options=resources, max_ongoing_requests=chosen.limits.queue
    )
    handles = [
        made.options(name=f"replica-{index}").bind(model, chosen, store, dict(options)) for index in range(replicas)
    ]
    router = serve.deployment(Router, max_ongoing_requests=chosen.limits.queue * replicas)
    return router.bind(chosen, *handles)
