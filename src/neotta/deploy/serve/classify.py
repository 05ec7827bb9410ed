"""`POST /classify?stream=gate`: image files in, labels with probabilities out."""

from __future__ import annotations

import asyncio
from typing import Any

from python_multipart.exceptions import MultipartParseError
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neotta.deploy.serve.classifier import Answer
from neotta.deploy.serve.engine import softmax
from neotta.deploy.serve.guard import RequestError, read_body
from neotta.deploy.serve.inputs import check_rows, from_files
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import camera_name
from neotta.neo.statefile import Array


def routes(service: Service) -> list[Route]:
    """The route of a service."""

    async def classify(request: Request) -> Response:
        query = request.query_params
        try:
            camera = camera_name(query.get("stream"))
        except ValueError as error:
            raise RequestError(400, str(error)) from None
        adapt = _truth("adapt", query.get("adapt", "true"))
        top = _top(query.get("top", "3"), service.engine.classes)
        files = await _files(request, service)
        engine, limits = service.engine, service.settings.limits
        loop = asyncio.get_running_loop()  # decoding takes milliseconds: not in the event loop
        job = await loop.run_in_executor(None, from_files, files, engine.preprocess, limits, camera, adapt)
        answer = await service.answer(job)
        return JSONResponse(_described(answer, camera, top, service))

    return [Route("/classify", classify, methods=["POST"])]


async def _files(request: Request, service: Service) -> list[bytes]:
    """The files of a request: the parts of a form, or the body itself."""
    limits = service.settings.limits
    body = await read_body(request, limits)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        if not body:
            raise RequestError(400, "the request holds no image: send a file, as curl --data-binary @image.jpg does")
        return [body]
    try:
        form = await _replayed(request, body).form(max_files=limits.rows, max_fields=16)
    except (MultiPartException, MultipartParseError) as error:
        raise RequestError(400, f"the form cannot be read: {str(error).rstrip('.')[:200]}") from None
    except Exception as error:  # Starlette turns its own errors into those of HTTP
        raise RequestError(400, f"the form cannot be read: {str(getattr(error, 'detail', 'damaged'))[:200]}") from None
    try:
        texts = [name for name, part in form.multi_items() if isinstance(part, str)]
        if texts:
            raise RequestError(
                400, f"the form has a text {texts[0][:50]!r}: stream, adapt and top belong into the address, files here"
            )
        files = [await part.read() for _, part in form.multi_items() if not isinstance(part, str)]
    finally:
        await form.close()  # its files may lie on disk
    check_rows(len(files), limits)
    return files


def _replayed(request: Request, body: bytes) -> Request:
    """A request whose body, read already, is read again."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)


def _described(answer: Answer, camera: str, top: int, service: Service) -> dict[str, Any]:
    shown, other = (answer.plain, answer.adapted) if service.settings.shadow else (answer.adapted, answer.plain)
    results = [
        {**_best(row, top, service.engine.labels), ("adapted" if service.settings.shadow else "plain"): beside}
        for row, beside in zip(
            softmax(shown),
            [_best(row, 1, service.engine.labels)["predictions"][0] for row in softmax(other)],
            strict=True,
        )
    ]
    return {"model": service.settings.name, "stream": camera, "adapted": answer.learnt, "results": results}


def _best(probabilities: Array, top: int, labels: tuple[str, ...]) -> dict[str, Any]:
    """The most probable labels of an image."""
    order = (-probabilities).argsort(kind="stable")[:top]
    classes = [{"label": labels[index], "probability": round(float(probabilities[index]), 6)} for index in order]
    return {"label": classes[0]["label"], "predictions": classes}


def _truth(name: str, text: str) -> bool:
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise RequestError(400, f"{name} must be true or false")
    return known[text.lower()]


def _top(text: str, classes: int) -> int:
    if not text.isascii() or not text.isdigit() or not int(text[:9]) >= 1:
        raise RequestError(400, "top must be a whole number, at least 1")
    return min(int(text[:9]), classes)
