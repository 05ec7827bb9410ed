"""The application: its routes, what they read and answer; and running it with uvicorn."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import FrameType
from typing import Any, Literal

import h11
import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from neotta._version import __version__
from neotta.deploy.serve import dashboard
from neotta.deploy.serve.auth import Guard, check_exposure, is_loopback
from neotta.deploy.serve.fair import SMALL, Answer, Job, Owner
from neotta.deploy.serve.images import Step
from neotta.deploy.serve.protocol import HEADER, Message, encode, head_length, parse
from neotta.deploy.serve.requests import Body, Measured, Requests, on_error
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import RequestError, stream_id
from neotta.errors import NeottaError
from neotta.neo.statefile import Array


class Action(BaseModel):
    """What to do with a stream: `to` is a time for `rollback`, in seconds since 1970, by default now."""

    action: Literal["freeze", "unfreeze", "reset", "rollback"]
    to: float | None = None


def application(service: Service, *, loopback: bool = True) -> FastAPI:
    """The ASGI application of a service; with `loopback`, only this machine reaches it."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="neotta serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=[
            Middleware(Measured, service=service),
            Middleware(Guard, keys=service.keys, loopback=loopback),
        ],
        exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, NeottaError, Exception), on_error),
    )
    app.state.requests = requests = Requests(service)
    add_inference(app, service, requests)
    add_streams(app, service, requests)
    dashboard.add(app, service)
    return app


# ---- classifying


def add_inference(app: FastAPI, service: Service, requests: Requests) -> None:
    settings, engine, limits = service.settings, service.engine, service.settings.limits
    images, readers = service.images, service.images.readers
    height, width = engine.preprocess.size
    outputs = {"logits": ("FP32", [-1, engine.classes]), "probabilities": ("FP32", [-1, engine.classes])}
    outputs |= {"label": ("BYTES", [-1])} | {
        name: ("INT64", [-1]) for name in ("class", "plain_class", "adapted_class")
    }
    about = {
        "name": settings.name,
        "versions": ["1"],
        "platform": "neotta",
        "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 3, height, width]}],
        "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in outputs.items()],
        "parameters": {"rule": engine.rule, "shadow": settings.shadow},
    }

    @app.post("/classify", openapi_extra=_body({"image/*": "binary", "multipart/form-data": "binary"}))
    async def classify(
        request: Request, stream: str | None = None, adapt: bool = True, top: int = Query(3, ge=1)
    ) -> Response:
        """Classify an image file, or several in a form."""
        name, kind = stream_id(stream), request.headers.get("content-type", "")

        async def work(body: Body, owner: Owner) -> Response:
            def read() -> Array | list[Step]:
                return images.opened(_files(body.take(), kind, limits.rows))

            opened = await readers.read(read, owner, body.length)
            answer = await service.answer(Job(await images.ready(opened, owner), name, adapt), owner[0])
            size = 64 * len(answer.plain) * min(top, engine.classes)
            return await readers.read(partial(_classified, answer, name, top, service), owner, size)

        return await requests.answered(request, name, limits.body, work)

    @app.get("/v2")
    async def server() -> dict[str, Any]:
        """The server's name, version and extensions."""
        return {"name": "neotta", "version": __version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Whether the server runs."""
        return {"live": True}

    def check(model: str, version: str) -> None:
        if model != settings.name:
            raise RequestError(404, f"there is no model {model[:100]!r}: this server has {settings.name!r}")
        if version != "1":
            raise RequestError(404, f"the model {model!r} has no version {version[:20]!r}: it has '1'")

    @app.get("/v2/models/{model}/versions/{version}")
    @app.get("/v2/models/{model}")
    async def metadata(model: str, version: str = "1") -> dict[str, Any]:
        """The model's inputs and outputs."""
        check(model, version)
        return about

    @app.get("/v2/models/{model}/versions/{version}/ready")
    @app.get("/v2/models/{model}/ready")
    @app.get("/v2/health/ready")
    async def ready(model: str = settings.name, version: str = "1") -> JSONResponse:
        """Whether requests are answered."""
        check(model, version)
        return JSONResponse({"name": model, "ready": service.ready}, 200 if service.ready else 503)

    @app.post("/v2/models/{model}/versions/{version}/infer", openapi_extra=_body({"application/json": "json"}))
    @app.post("/v2/models/{model}/infer", openapi_extra=_body({"application/json": "json"}))
    async def infer(request: Request, model: str, version: str = "1") -> Response:
        """Classify tensors: preprocessed images, pixels or image files."""
        check(model, version)
        header = request.headers.get(HEADER)
        most = limits.json_bytes if header is None else limits.body

        async def work(body: Body, owner: Owner) -> Response:
            length = head_length(header, body.length)
            if length > limits.json_bytes:
                raise RequestError(413, f"the JSON is larger than {limits.json_bytes:,} bytes: send tensors as bytes")

            def read() -> tuple[Message, Array | list[Step]]:
                message, values = parse(body.take(), length, [*outputs], limits.values)
                return message, images.opened(values)

            message, opened = await readers.read(read, owner, body.length)
            owner = owner[0], message.stream
            job = Job(await images.ready(opened, owner), message.stream, message.adapt)
            answer = await service.answer(job, owner[0])
            size = 4 * len(message.outputs) * answer.plain.size
            return await readers.read(partial(_inferred, answer, message, service), owner, size)

        return await requests.answered(request, "", most, work)


def _body(kinds: dict[str, str]) -> dict[str, Any]:
    """The body of a request in the OpenAPI page; the route reads it itself."""
    types = {"binary": {"type": "string", "format": "binary"}, "json": {"type": "object"}}
    return {"requestBody": {"required": True, "content": {kind: {"schema": types[how]} for kind, how in kinds.items()}}}


def _files(body: bytearray, kind: str, most: int) -> list[bytes]:
    """The files of a request: the parts of a form, or the body itself."""
    if not kind.lower().startswith("multipart/form-data"):
        if not body:
            raise RequestError(400, "the request holds no image: send a file, as curl --data-binary @image.jpg does")
        return [bytes(body)]
    named = re.match(r'[^;]*;.*?boundary="?([^";,]{1,70})', kind, re.IGNORECASE)
    edge = b"\r\n--" + (named[1].encode("latin-1") if named else b"")
    if not named or not body.startswith(edge[2:]):
        raise RequestError(400, "the form cannot be read: its parts must begin with its boundary, and end with it")
    files, place = list[bytes](), len(edge) - 2
    while (end := body.find(edge, place)) >= 0:
        if len(files) == most:
            raise RequestError(413, f"the form holds more than {most} files")
        gap = body.find(b"\r\n\r\n", place, end)
        if body.find(b"filename", place, max(gap, place)) < 0:
            raise RequestError(400, "the form has a text: stream, adapt and top belong into the address, files here")
        files.append(bytes(memoryview(body)[gap + 4 : end]))
        place = end + len(edge)
    if not files or not body.startswith(b"--", place):
        raise RequestError(400, "the form cannot be read: it is cut off")
    return files


def _classified(answer: Answer, stream: str, top: int, service: Service) -> Response:
    labels, shadow = service.engine.labels, service.settings.shadow
    shown, beside = (answer.plain, answer.adapted) if shadow else (answer.adapted, answer.plain)
    results = [
        {"label": best[0]["label"], "predictions": best, "adapted" if shadow else "plain": _best(other, 1, labels)[0]}
        for best, other in zip([_best(row, top, labels) for row in shown], beside, strict=True)
    ]
    about = {"model": service.settings.name, "stream": stream, "adapted": bool(answer.learnt.any()), "results": results}
    return JSONResponse(about)


def _inferred(answer: Answer, message: Message, service: Service) -> Response:
    head: dict[str, Any] = {"model_name": service.settings.name, "model_version": "1"}
    head |= {"id": message.id} if message.id else {}
    head["parameters"] = {"stream": message.stream, "adapted": bool(answer.learnt.any())}
    head["parameters"] |= {"shadow": True} if service.settings.shadow else {}
    shown = answer.plain if service.settings.shadow else answer.adapted
    best = shown.argmax(1)
    every = {
        "logits": shown,
        "probabilities": _softmax(shown),
        "label": np.array([service.engine.labels[index] for index in best], object),
        "class": best,
        "plain_class": answer.plain.argmax(1),
        "adapted_class": answer.adapted.argmax(1),
    }
    content, length = encode(head, {name: every[name] for name in message.outputs}, message.outputs)
    if not length:
        return Response(content, media_type="application/json")
    return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})


def _best(logits: Array, top: int, labels: tuple[str, ...]) -> list[dict[str, Any]]:
    probabilities = _softmax(logits)
    order = (-probabilities).argsort(kind="stable")[:top]
    return [{"label": labels[index], "probability": round(float(probabilities[index]), 6)} for index in order]


def _softmax(logits: Array) -> Array:
    return torch.from_numpy(logits).softmax(-1).numpy()


# ---- streams


def add_streams(app: FastAPI, service: Service, requests: Requests) -> None:
    async def told(request: Request, work: Callable[[bytearray], Response]) -> Response:
        """What the thread that owns the model answers about a stream, in its turn."""

        async def ask(body: Body, owner: Owner) -> Response:
            return await service.call(work, body.take(), owner=owner)

        return await requests.answered(request, request.path_params["stream"], SMALL, ask)

    @app.get("/streams/{stream:path}")
    async def one(request: Request, stream: str) -> Response:
        """A stream with what is subtracted, its history and its snapshots."""
        return await told(request, lambda _: JSONResponse(service.detail(stream)))

    @app.post("/streams/{stream:path}", openapi_extra=_body({"application/json": "json"}))
    async def act(request: Request, stream: str) -> Response:
        """Freeze, unfreeze, reset or roll back a stream."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "actions are sent as application/json")  # which no form of another site can

        def work(body: bytearray) -> Response:
            try:
                action = Action.model_validate_json(body)
            except ValidationError:
                raise RequestError(
                    400, 'expected {"action": "freeze", "unfreeze", "reset" or "rollback"}, and a time "to" go back to'
                ) from None
            return JSONResponse(service.act(stream, action.action, action.to))

        return await told(request, work)

    @app.delete("/streams/{stream:path}")
    async def forget(request: Request, stream: str) -> Response:
        """Delete everything about a stream."""
        return await told(request, lambda _: JSONResponse(service.forget(stream)))

    @app.get("/states/{stream:path}")
    async def state(request: Request, stream: str) -> Response:
        """The state of a stream as a safetensors file, which `neotta.load` takes."""
        headers = {"Content-Disposition": 'attachment; filename="stream.safetensors"'}
        kind = "application/octet-stream"
        return await told(request, lambda _: Response(service.exported(stream), media_type=kind, headers=headers))

    @app.get("/judgements/{stream:path}")
    @app.post("/judgements/{stream:path}")
    async def judgement(request: Request, stream: str, part: str = "state") -> Response:
        """What the page shows on which answers of a stream are judged, and what is said on it."""

        def work(body: bytearray) -> Response:
            reply = service.judge(stream, request.method, part, bytes(body))
            return Response(reply.body, reply.status, reply.headers, reply.kind)

        return await told(request, work)

    @app.get("/pictures/{stream:path}")
    async def picture(stream: str) -> Response:
        """The last picture of a stream, if pictures are kept."""
        content = service.known(stream).picture
        if content is None:
            raise RequestError(404, "there is no picture of this stream")
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "no-store"})


# ---- running


class Measurable(h11.Connection):
    """Takes bodies with their length alone: chunks would be read one by one in the event loop, before any queue."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body in chunks")
        return event


class Protocol(H11Protocol):
    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:
        super().__init__(config, *arguments, **more)
        self.conn = Measurable(h11.SERVER, 64 * 1024)  # bytes of a head

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(f"{msg} A body needs its length: Content-Length.")


class Server(uvicorn.Server):
    """A uvicorn server that tells its service when it has to end, and that ends in time, whatever hangs."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._overdue = threading.Timer(service.settings.grace, os._exit, (1,))
        self._overdue.daemon = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._service.ending:
            self._service.ending = True
            self._overdue.start()
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._overdue.cancel()


def make_server(service: Service, host: str = "127.0.0.1", port: int = 8000) -> Server:
    """A server that is ready to run; other machines reach it only with a key."""
    check_exposure(host, service.keys)
    settings = service.settings
    config = uvicorn.Config(
        application(service, loopback=is_loopback(host)),
        host=host,
        port=port,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=settings.proxies,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, int(0.7 * settings.grace)),  # the rest is for writing
        backlog=1024,
        lifespan="on",
    )
    return Server(config, service)
