"""The cameras over HTTP: at a glance, one in detail, and what can be done with them."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neotta._version import __version__
from neotta.deploy.serve.guard import RequestError, read_body
from neotta.deploy.serve.service import Service
from neotta.neo.statefile import write_state

Handler = Callable[[Request], Awaitable[Response]]
SHOWN = 1000
"""Most cameras in one list."""


def routes(service: Service) -> list[Route]:
    """The routes of the dashboard and of scripts."""
    cameras = Cameras(service)
    acts: dict[str, Handler] = {
        "freeze": cameras.freeze,
        "unfreeze": cameras.unfreeze,
        "reset": cameras.reset,
        "rollback": cameras.rollback,
        "rename": cameras.rename,
        "forget": cameras.forget,
    }
    return [
        Route("/api/server", cameras.server),
        Route("/api/cameras", cameras.everyone),
        Route("/api/camera", cameras.one),
        Route("/api/camera/state", cameras.state),
        Route("/api/camera/image", cameras.image),
        *(Route(f"/api/camera/{name}", act, methods=["POST"]) for name, act in acts.items()),
    ]


class Cameras:
    """Answers requests about cameras; what changes a state runs in the thread that owns the model."""

    def __init__(self, service: Service) -> None:
        self.service = service

    # ---- looking

    async def server(self, request: Request) -> Response:
        """The server itself."""
        return JSONResponse(about(self.service))

    async def everyone(self, request: Request) -> Response:
        """All cameras at a glance, in the order of their ids."""
        known = sorted(self.service.known)
        listed = [self.service.watch.summary(camera) for camera in known[:SHOWN]]
        return JSONResponse({"server": about(self.service), "cameras": listed, "more": max(0, len(known) - SHOWN)})

    async def one(self, request: Request) -> Response:
        """One camera with its history, alarms and snapshots."""
        camera = self._known(request.query_params.get("id"))
        records, watch = self.service.records, self.service.watch
        health = await self.service.call(self.service.engine.health, camera)
        return JSONResponse(
            {
                **watch.summary(camera),
                "samples": 0 if health is None else health.samples,
                "health": None if health is None else {"verdict": health.verdict, "remarks": health.remarks},
                "history": records.history(camera),
                "alarm_list": records.alarms(camera),
                "snapshots": records.snapshots(camera),
                "images": len(watch.images(camera)),
            }
        )

    async def state(self, request: Request) -> Response:
        """A camera's state as a safetensors file, which `neotta.load` takes."""
        camera = self._known(request.query_params.get("id"))
        snapshot = await self.service.call(self.service.engine.snapshot, camera)
        if snapshot is None:
            raise RequestError(404, "nothing was learnt of this camera yet")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.safetensors"
            write_state(path, snapshot, self.service.engine.about())
            content = path.read_bytes()
        headers = {"Content-Disposition": 'attachment; filename="camera.safetensors"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def image(self, request: Request) -> Response:
        """One of the last images, if they are kept: 0 is the newest."""
        camera, number = self._known(request.query_params.get("id")), request.query_params.get("number", "0")
        images = self.service.watch.images(camera)[::-1]
        if not number.isdigit() or int(number) >= len(images):
            raise RequestError(404, "there is no such image")
        return Response(images[int(number)], media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    # ---- acting

    async def freeze(self, request: Request) -> Response:
        """Stop adapting; the state stays."""
        return await self._describe(request, frozen=True)

    async def unfreeze(self, request: Request) -> Response:
        """Adapt again."""
        return await self._describe(request, frozen=False)

    async def rename(self, request: Request) -> Response:
        """Show a camera under another name; its id stays."""
        camera, entries = await self._camera_and_entries(request)
        name = entries.get("name")
        if not isinstance(name, str) or not 1 <= len(name.strip()) <= 100 or not name.isprintable():
            raise RequestError(400, "the name must be a text of 1 to 100 printable characters")
        return await self._done(camera, lambda: self.service.records.describe(camera, name=name.strip()), "renamed")

    async def _describe(self, request: Request, frozen: bool) -> Response:
        camera, _ = await self._camera_and_entries(request)
        act = lambda: self.service.records.describe(camera, frozen=frozen)  # noqa: E731
        return await self._done(camera, act, "frozen" if frozen else "unfrozen")

    async def reset(self, request: Request) -> Response:
        """Forget what was learnt; a snapshot is kept, so that it can be undone."""
        camera, _ = await self._camera_and_entries(request)
        return await self._done(camera, lambda: self.service.reset(camera), "reset")

    async def rollback(self, request: Request) -> Response:
        """Go back to the last snapshot up to a time, in seconds since 1970."""
        camera, entries = await self._camera_and_entries(request)
        to = entries.get("to")
        if isinstance(to, bool) or not isinstance(to, int | float) or not 0 <= to < 1e11:
            raise RequestError(400, "to must be a time in seconds since 1970")
        snapshot = await self.service.call(self.service.roll_back, camera, float(to))
        if snapshot is None:
            raise RequestError(404, "there is no snapshot of this camera from before that time")
        log_action(self.service, camera, "rolled back")
        return JSONResponse({**self.service.watch.summary(camera), "restored": snapshot})

    async def forget(self, request: Request) -> Response:
        """Delete everything about a camera."""
        camera, _ = await self._camera_and_entries(request)
        await self.service.call(self.service.forget, camera)
        log_action(self.service, camera, "forgotten")
        return JSONResponse({"id": camera, "forgotten": True})

    # ---- helpers

    async def _done(self, camera: str, act: Callable[[], Any], what: str) -> Response:
        await self.service.call(act)
        self.service.watch.touch(camera)
        log_action(self.service, camera, what)
        return JSONResponse(self.service.watch.summary(camera))

    async def _camera_and_entries(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The camera and the rest of a request; only JSON, which no page of another site can send unasked."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RequestError(415, "actions are sent as application/json")
        try:
            entries = json.loads(await read_body(request, self.service.settings.limits))
        except (ValueError, RecursionError):
            raise RequestError(400, "the body is not JSON") from None
        if not isinstance(entries, dict):
            raise RequestError(400, 'expected an object such as {"id": "gate"}')
        return self._known(entries.get("id")), entries

    def _known(self, camera: Any) -> str:
        if not isinstance(camera, str) or camera not in self.service.known:
            raise RequestError(404, "there is no camera of this id")
        return camera


def about(service: Service) -> dict[str, Any]:
    """The server at a glance."""
    batcher = service.batcher
    return {
        "model": service.settings.name,
        "version": __version__,
        "rule": service.engine.rule,
        "shadow": service.settings.shadow,
        "classes": service.engine.classes,
        "cameras": len(service.known),
        "rows": 0 if batcher is None else batcher.rows,
        "waiting": 0 if batcher is None else batcher.waiting,
        "uptime": time.monotonic() - service.started,
        "images": service.settings.images,
    }


def log_action(service: Service, camera: str, what: str) -> None:
    """Note in the log what was done by hand."""
    from neotta.deploy.serve.logs import log

    log("action", camera=camera, action=what)
