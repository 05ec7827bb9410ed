"""The Open Inference Protocol v2: its routes, and its tensors as JSON or as bytes after the JSON.

Bytes (the binary tensor extension) are little-endian and row-major; each element of a BYTES tensor has its length
before it, in four bytes.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neotta._version import __version__
from neotta.deploy.serve.classifier import Answer, Job
from neotta.deploy.serve.engine import softmax
from neotta.deploy.serve.guard import RequestError, read_body
from neotta.deploy.serve.inputs import from_tensor
from neotta.deploy.serve.service import Service
from neotta.deploy.serve.settings import camera_name
from neotta.neo.statefile import Array

INPUT = "images"


class Infer:
    """Answers the requests of the protocol."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        """The addresses of the protocol."""
        addresses = [
            Route("/v2", self.server),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            addresses += [
                Route(base, self.metadata),
                Route(f"{base}/ready", self.model_ready),
                Route(f"{base}/infer", self.infer, methods=["POST"]),
            ]
        return addresses

    async def server(self, request: Request) -> Response:
        """The server's name, version and extensions."""
        return JSONResponse({"name": "neotta", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def live(self, request: Request) -> Response:
        """Whether the server runs."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Whether requests are answered."""
        ready = self.service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def metadata(self, request: Request) -> Response:
        """The model's inputs and outputs."""
        self._check(request)
        return JSONResponse(self.service.metadata())

    async def model_ready(self, request: Request) -> Response:
        """Whether requests to the model are answered."""
        self._check(request)
        ready = self.service.ready
        return JSONResponse({"name": self.service.settings.name, "ready": ready}, 200 if ready else 503)

    async def infer(self, request: Request) -> Response:
        """Answer images."""
        self._check(request)
        body = await read_body(request, self.service.settings.limits)
        message = parse(body, request.headers.get(HEADER))
        binary = wanted(message.head, [output["name"] for output in self.service.metadata()["outputs"]])
        job = await self._made_ready(message)
        answer = await self.service.answer(job)
        outputs = answered(answer, binary, self.service)
        content, length = encode(self._head(message, job, answer), outputs, binary)
        if not length:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={HEADER: str(length)})

    def _check(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", "1")
        mine = self.service.settings.name
        if name != mine:
            raise RequestError(404, f"there is no model {name[:100]!r}: this server has {mine!r}")
        if version != "1":
            raise RequestError(404, f"the model {mine!r} has no version {version[:20]!r}: it has '1'")

    async def _made_ready(self, message: Message) -> Job:
        """The images of a request; those that have to be decoded or resized not in the event loop."""
        if all(values.dtype.kind == "f" for values in message.inputs.values()):
            return self._job(message)
        return await asyncio.get_running_loop().run_in_executor(None, self._job, message)

    def _job(self, message: Message) -> Job:
        """The images of a request."""
        if set(message.inputs) != {INPUT}:
            raise RequestError(400, f"the model takes one input, {INPUT!r}, not {', '.join(message.inputs)[:200]}")
        parameters = parameters_of(message.head)
        try:
            camera = camera_name(parameters.get("stream"))
        except ValueError as error:
            raise RequestError(400, str(error)) from None
        adapt = parameters.get("adapt", True)
        if not isinstance(adapt, bool):
            raise RequestError(400, "the parameter adapt must be true or false")
        engine, limits = self.service.engine, self.service.settings.limits
        return from_tensor(message.inputs[INPUT], engine.preprocess, limits, camera, adapt)

    def _head(self, message: Message, job: Job, answer: Answer) -> dict[str, Any]:
        head: dict[str, Any] = {"model_name": self.service.settings.name, "model_version": "1"}
        request_id = message.head.get("id")
        if isinstance(request_id, str) and request_id:
            head["id"] = request_id
        head["parameters"] = {"stream": job.camera, "adapted": answer.learnt}
        if self.service.settings.shadow:
            head["parameters"]["shadow"] = True
        return head


def answered(answer: Answer, names: dict[str, bool], service: Service) -> dict[str, Array]:
    """The outputs that are asked for."""
    shown = answer.plain if service.settings.shadow else answer.adapted
    best = shown.argmax(1)
    outputs: dict[str, Array] = {}
    for name in names:
        if name == "logits":
            outputs[name] = np.asarray(shown, np.float32)
        elif name == "probabilities":
            outputs[name] = np.asarray(softmax(shown), np.float32)
        elif name == "label":
            outputs[name] = np.array([service.engine.labels[index] for index in best], object)
        else:
            chosen = {"class": best, "plain_class": answer.plain.argmax(1), "adapted_class": answer.adapted.argmax(1)}
            outputs[name] = chosen[name].astype(np.int64)
    return outputs


DTYPES = {
    "BOOL": "|b1",
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
HEADER = "Inference-Header-Content-Length"

_JSON = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}
"""The kinds of JSON values that become a kind of numbers."""


class Message(NamedTuple):
    """A request: its JSON, and the tensors by name."""

    head: dict[str, Any]
    inputs: dict[str, Array]


def parse(body: bytes, header_length: str | None) -> Message:
    """Read a request.

    Args:
        body: Body of the request.
        header_length: The header `Inference-Header-Content-Length`, if there is one: where the JSON ends.
    """
    end = len(body)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise RequestError(400, f"{HEADER} is {header_length[:40]!r}: expected the number of bytes of the JSON")
        end = int(header_length)
    head = _json(body[:end])
    listed = head.get("inputs")
    if not isinstance(listed, list) or not listed:
        raise RequestError(400, "the request has no inputs: expected a list of tensors")
    inputs: dict[str, Array] = {}
    rest = memoryview(body)[end:]
    for entry in listed:
        name, values, used = _tensor(entry, rest)
        if name in inputs:
            raise RequestError(400, f"the input {name!r} occurs twice")
        inputs[name], rest = values, rest[used:]
    if len(rest):
        raise RequestError(400, f"{len(rest)} bytes follow the last tensor: do the values of binary_data_size add up?")
    return Message(head, inputs)


def _json(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is not the JSON of an inference request") from None
    if not isinstance(head, dict):
        raise RequestError(400, "the body is not the JSON of an inference request: expected an object")
    return head


def _tensor(entry: Any, rest: memoryview) -> tuple[str, Array, int]:
    """The name and the values of one input, and how many bytes it took."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or len(name) > 100:
        raise RequestError(400, "an input has no name")
    shape, kind = entry.get("shape"), entry.get("datatype")
    whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not whole or len(shape) > 8:
        raise RequestError(400, f"the shape of input {name!r} is not a list of sizes")
    if not isinstance(kind, str) or kind not in (*DTYPES, "BYTES"):
        kinds = ", ".join(DTYPES)
        raise RequestError(400, f"the datatype of input {name!r} is unknown: expected one of {kinds}, BYTES")
    parameters = _parameters(entry)
    if "shared_memory_region" in parameters:
        raise RequestError(400, f"input {name!r} is in shared memory, which this server does not support")
    size = parameters.get("binary_data_size")
    if size is None:
        return name, _from_json(name, entry.get("data"), kind, shape), 0
    if type(size) is not int or not 0 <= size <= len(rest):
        raise RequestError(400, f"the binary_data_size of input {name!r} is more than what was sent")
    return name, _from_bytes(name, rest[:size], kind, shape), size


def _from_json(name: str, data: Any, kind: str, shape: list[int]) -> Array:
    if data is None:
        raise RequestError(400, f"input {name!r} has neither data nor a binary_data_size")
    wrong = RequestError(400, f"the data of input {name!r} is not a list of {kind} values")
    try:
        if kind == "BYTES":
            return _shaped(name, np.array(data, object).reshape(-1), shape)
        array = np.array(data)
        if array.size and array.dtype.kind not in _JSON[np.dtype(DTYPES[kind]).kind]:
            raise wrong  # NumPy would read texts as numbers, and cut off what follows the point
        values = np.array(data, DTYPES[kind]).reshape(-1)  # from the list again: numbers out of range are an error
    except (ValueError, TypeError, OverflowError):
        raise wrong from None
    return _shaped(name, values, shape)


def _from_bytes(name: str, content: memoryview, kind: str, shape: list[int]) -> Array:
    if kind == "BYTES":
        return _shaped(name, _strings(name, content), shape)
    dtype = np.dtype(DTYPES[kind])
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise RequestError(
            400, f"input {name!r} has {len(content)} bytes: {math.prod(shape) * dtype.itemsize} expected for its shape"
        )
    return np.frombuffer(content, dtype).reshape(shape)


def _strings(name: str, content: memoryview) -> Array:
    texts: list[bytes] = []
    place = 0
    while place < len(content):
        (length,) = struct.unpack_from("<I", content, place) if place + 4 <= len(content) else (2**32,)
        if place + 4 + length > len(content):
            raise RequestError(400, f"input {name!r} is cut off: an element is longer than what was sent")
        texts.append(bytes(content[place + 4 : place + 4 + length]))
        place += 4 + length
    values = np.empty(len(texts), object)
    values[:] = texts
    return values


def _shaped(name: str, values: Array, shape: list[int]) -> Array:
    if values.size != math.prod(shape):
        raise RequestError(400, f"input {name!r} has {values.size} values: {math.prod(shape)} expected for its shape")
    return values.reshape(shape)


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    parameters = entry.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(400, "parameters must be an object")
    return parameters


def parameters_of(head: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request or of one of its outputs."""
    return _parameters(head)


def wanted(head: Mapping[str, Any], known: Sequence[str]) -> dict[str, bool]:
    """The outputs that a request asks for, and whether each is to be sent as bytes; all if it names none."""
    every = bool(_parameters(head).get("binary_data_output", False))
    listed = head.get("outputs")
    if not listed:
        return dict.fromkeys(known, every)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise RequestError(400, "outputs must be a list of objects with names")
    outputs: dict[str, bool] = {}
    for each in listed:
        name = each.get("name")
        if not isinstance(name, str) or name not in known:
            raise RequestError(400, f"there is no output {str(name)[:100]!r}: this model has {', '.join(known)}")
        outputs[name] = bool(_parameters(each).get("binary_data", every))
    return outputs


def encode(head: Mapping[str, Any], outputs: Mapping[str, Array], binary: Mapping[str, bool]) -> tuple[bytes, int]:
    """Write an answer.

    Args:
        head: The JSON of the answer without the outputs.
        outputs: Arrays by name; an array of objects holds texts.
        binary: Whether an output is sent as bytes, by name.

    Returns:
        The body, and the length of its JSON if bytes follow it, else 0.
    """
    listed, parts = [], []
    for name, values in outputs.items():
        kind = "BYTES" if values.dtype == object else _kind(values.dtype)
        entry: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(values.shape)}
        if binary[name]:
            content = _packed(values)
            entry["parameters"] = {"binary_data_size": len(content)}
            parts.append(content)
        else:
            entry["data"] = values.reshape(-1).tolist()
        listed.append(entry)
    text = json.dumps({**head, "outputs": listed}, allow_nan=False).encode()
    return b"".join([text, *parts]), len(text) if parts else 0


def _packed(values: Array) -> bytes:
    if values.dtype == object:
        texts = [str(each).encode() for each in values.reshape(-1)]
        return b"".join(struct.pack("<I", len(each)) + each for each in texts)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _kind(dtype: np.dtype[Any]) -> str:
    return next(name for name, code in DTYPES.items() if np.dtype(code) == dtype.newbyteorder("<"))
