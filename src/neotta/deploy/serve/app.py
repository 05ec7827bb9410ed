"""The application: its routes, what they read and answer; and running it with uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any, Literal, TypeVar

import numpy as np
import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from neotta._version import __version__
from neotta.deploy.serve import dashboard
from neotta.deploy.serve.auth import Guard, check_exposure, is_loopback
from neotta.deploy.serve.batcher import Answer, Job
from neotta.deploy.serve.protocol import HEADER, encode, head_length, parse
from neotta.deploy.serve.requests import SMALL, Measured, Requests, on_error
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import RequestError, stream_id
from neotta.errors import NeottaError, OptionError
from neotta.neo.statefile import Array

Result = TypeVar("Result")


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
            Middleware(Guard, key=service.settings.key, loopback=loopback),
        ],
        exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, NeottaError, Exception), on_error),
    )
    requests = Requests(service)
    add_inference(app, service, requests)
    add_streams(app, service, requests)
    dashboard.add(app, service)
    return app


# ---- classifying


def add_inference(app: FastAPI, service: Service, requests: Requests) -> None:
    settings, engine, limits = service.settings, service.engine, service.settings.limits
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
    ) -> JSONResponse:
        """Classify an image file, or several in a form."""
        owner = _client(request), stream_id(stream)

        async def work(body: bytes) -> Answer:
            kind = request.headers.get("content-type", "")
            files = await asyncio.to_thread(_files, body, kind, limits.rows)  # a hostile form takes seconds to parse
            ready = await service.images.from_files(files, owner)
            return await service.answer(Job(ready.images, owner[1], adapt, ready.picture), owner[0])

        answer = await requests.answered(request, limits.body, work)
        shown, beside = (answer.plain, answer.adapted) if settings.shadow else (answer.adapted, answer.plain)
        results = [
            {
                "label": best[0]["label"],
                "predictions": best,
                "adapted" if settings.shadow else "plain": _best(other, 1, engine.labels)[0],
            }
            for best, other in zip([_best(row, top, engine.labels) for row in shown], beside, strict=True)
        ]
        about = {"model": settings.name, "stream": owner[1], "adapted": answer.learnt, "results": results}
        return JSONResponse(about)

    @app.get("/v2")
    async def server() -> dict[str, Any]:
        """The server's name, version and extensions."""
        return {"name": "neotta", "version": __version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Whether the server runs."""
        return {"live": True}

    @app.get("/v2/health/ready")
    async def ready() -> JSONResponse:
        """Whether requests are answered."""
        return JSONResponse({"ready": service.ready}, 200 if service.ready else 503)

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
    async def model_ready(model: str, version: str = "1") -> JSONResponse:
        """Whether requests to the model are answered."""
        check(model, version)
        return JSONResponse({"name": model, "ready": service.ready}, 200 if service.ready else 503)

    @app.post("/v2/models/{model}/versions/{version}/infer", openapi_extra=_body({"application/json": "json"}))
    @app.post("/v2/models/{model}/infer", openapi_extra=_body({"application/json": "json"}))
    async def infer(request: Request, model: str, version: str = "1") -> Response:
        """Classify tensors: preprocessed images, pixels or image files."""
        check(model, version)
        header = request.headers.get(HEADER)
        most = limits.json_bytes if header is None else limits.body

        async def work(body: bytes) -> Response:
            length = head_length(header, len(body))
            if length > limits.json_bytes:
                raise RequestError(413, f"the JSON is larger than {limits.json_bytes:,} bytes: send tensors as bytes")
            message = await requests.parsed(len(body), parse, body, length, [*outputs])
            owner = _client(request), message.stream
            ready = await service.images.from_tensor(message.images, owner)
            answer = await service.answer(Job(ready.images, message.stream, message.adapt, ready.picture), owner[0])
            head: dict[str, Any] = {"model_name": settings.name, "model_version": "1"}
            head |= {"id": message.id} if message.id else {}
            head["parameters"] = {"stream": message.stream, "adapted": answer.learnt}
            head["parameters"] |= {"shadow": True} if settings.shadow else {}
            content, length = encode(head, _outputs(answer, message.outputs, service), message.outputs)
            if not length:
                return Response(content, media_type="application/json")
            return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})

        return await requests.answered(request, most, work)


def _body(kinds: dict[str, str]) -> dict[str, Any]:
    """The body of a request in the OpenAPI page; the route reads it itself."""
    types = {"binary": {"type": "string", "format": "binary"}, "json": {"type": "object"}}
    return {"requestBody": {"required": True, "content": {kind: {"schema": types[how]} for kind, how in kinds.items()}}}


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


def _files(body: bytes, kind: str, most: int) -> list[bytes]:
    """The files of a request: the parts of a form, or the body itself."""
    name, options = parse_options_header(kind)
    if name != b"multipart/form-data":
        if not body:
            raise RequestError(400, "the request holds no image: send a file, as curl --data-binary @image.jpg does")
        return [body]
    parts: list[bytearray] = []
    heads: list[bytearray] = []

    def begin() -> None:
        if len(parts) >= most:
            raise RequestError(413, f"the form holds more than {most} files")
        parts.append(bytearray())
        heads.append(bytearray())

    def end() -> None:
        if b"filename" not in heads[-1]:
            raise RequestError(400, "the form has a text: stream, adapt and top belong into the address, files here")

    callbacks: Any = {
        "on_part_begin": begin,
        "on_header_value": lambda data, start, stop: heads[-1].extend(data[start:stop]),
        "on_headers_finished": end,
        "on_part_data": lambda data, start, stop: parts[-1].extend(data[start:stop]),
    }
    try:
        parser = MultipartParser(options.get(b"boundary", b""), callbacks)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RequestError(400, f"the form cannot be read: {str(error).rstrip('.')[:200]}") from None
    return [bytes(part) for part in parts]


def _best(logits: Array, top: int, labels: tuple[str, ...]) -> list[dict[str, Any]]:
    probabilities = _softmax(logits)
    order = (-probabilities).argsort(kind="stable")[:top]
    return [{"label": labels[index], "probability": round(float(probabilities[index]), 6)} for index in order]


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


def _outputs(answer: Answer, names: dict[str, bool], service: Service) -> dict[str, Array]:
    shown = answer.plain if service.settings.shadow else answer.adapted
    best = shown.argmax(1)
    every: dict[str, Callable[[], Array]] = {
        "logits": lambda: np.asarray(shown, np.float32),
        "probabilities": lambda: _softmax(shown),
        "label": lambda: np.array([service.engine.labels[index] for index in best], object),
        "class": lambda: best.astype(np.int64),
        "plain_class": lambda: answer.plain.argmax(1).astype(np.int64),
        "adapted_class": lambda: answer.adapted.argmax(1).astype(np.int64),
    }
    return {name: every[name]() for name in names}


# ---- streams


def add_streams(app: FastAPI, service: Service, requests: Requests) -> None:
    def known(stream: str) -> str:
        if stream not in service.streams:
            raise RequestError(404, f"there is no stream {stream[:100]!r}")
        return stream

    @app.get("/streams")
    async def streams() -> dict[str, Any]:
        """All streams with their health, those in trouble first."""
        return await asyncio.to_thread(dashboard.everything, service)

    @app.get("/streams/{stream:path}")
    async def one(stream: str) -> dict[str, Any]:
        """A stream with what is subtracted, its history and its snapshots."""
        return await service.call(service.detail, known(stream))

    @app.post("/streams/{stream:path}", openapi_extra=_body({"application/json": "json"}))
    async def act(request: Request, stream: str) -> dict[str, Any]:
        """Freeze, unfreeze, reset or roll back a stream."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError(415, "actions are sent as application/json")  # which no form of another site can

        async def work(body: bytes) -> dict[str, Any]:
            try:
                action = Action.model_validate_json(body)
            except ValidationError:
                raise RequestError(
                    400, 'expected {"action": "freeze", "unfreeze", "reset" or "rollback"}, and a time "to" go back to'
                ) from None
            return await service.call(service.act, known(stream), action.action, action.to)

        return await requests.answered(request, SMALL, work)

    @app.delete("/streams/{stream:path}")
    async def forget(stream: str) -> dict[str, Any]:
        """Delete everything about a stream."""
        await service.call(service.forget, known(stream))
        return {"id": stream, "forgotten": True}

    @app.get("/states/{stream:path}")
    async def state(stream: str) -> Response:
        """The state of a stream as a safetensors file, which `neotta.load` takes."""
        content = await service.call(service.exported, known(stream))
        headers = {"Content-Disposition": 'attachment; filename="stream.safetensors"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    @app.get("/pictures/{stream:path}")
    async def picture(stream: str) -> Response:
        """The last picture of a stream, if pictures are kept."""
        content = service.streams[known(stream)].picture
        if content is None:
            raise RequestError(404, "there is no picture of this stream")
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        content = await asyncio.to_thread(generate_latest, service.metrics.registry)
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})


# ---- running


class Server(uvicorn.Server):
    """A uvicorn server that tells its service when it has to end, so that endless answers end too."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.ending = True
        super().handle_exit(sig, frame)


def make_server(service: Service, host: str = "127.0.0.1", port: int = 8000) -> Server:
    """A server that is ready to run; other machines reach it only with a key."""
    check_exposure(host, service.settings.key)
    limits = service.settings.limits
    config = uvicorn.Config(
        application(service, loopback=is_loopback(host)),
        host=host,
        port=port,
        http="h11",
        ws="none",
        h11_max_incomplete_event_size=64 * 1024,  # of heads, and of trailers after a chunked body
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(limits.timeout)),
        backlog=1024,
        lifespan="on",
    )
    return Server(config, service)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a clear reason why not."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise OptionError(
            f"cannot listen on {host}:{port}: {error.strerror or error} (choose another --port)"
        ) from None
    bound.listen(1024)
    return bound
