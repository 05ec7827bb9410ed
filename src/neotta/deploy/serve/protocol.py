"""The Open Inference Protocol v2: its tensors as JSON, or as bytes after the JSON.

Bytes (the binary tensor extension) are little-endian and row-major; each element of a BYTES tensor has its length
before it, in four bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from neotta.deploy.serve.settings import RequestError, stream_id
from neotta.neo.statefile import Array

HEADER = "Inference-Header-Content-Length"
DTYPES = {
    "BOOL": "|b1",
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
KINDS = "|".join([*DTYPES, "BYTES"])
ELEMENTS = 4096  # of a BYTES tensor: each is an image file
FITTING: dict[str, set[type]] = {"f": {float, int}, "i": {int}, "u": {int}, "b": {bool}}  # JSON values by kind of dtype
Size = Annotated[int, Field(ge=0, lt=2**31)]
Name = Annotated[str, Field(max_length=100)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class Parameters(_Part):
    stream: str | int | None = None  # of a request
    adapt: bool = True
    binary_data_output: bool = False
    binary_data_size: Size | None = None  # of an input
    binary_data: bool | None = None  # of an output


class Tensor(_Part):
    name: Name
    shape: Annotated[list[Size], Field(max_length=8, fail_fast=True)]
    datatype: Annotated[str, Field(pattern=f"^({KINDS})$")]
    parameters: Parameters | None = None
    data: Any = None


class Output(_Part):
    name: Name
    parameters: Parameters | None = None


class Head(_Part):
    id: str | None = None
    parameters: Parameters | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=16, fail_fast=True)]
    outputs: Annotated[list[Output], Field(max_length=100, fail_fast=True)] | None = None


class Message(NamedTuple):
    """What a request asks for of its images."""

    id: str | None  # chosen by the client; it comes back
    stream: str
    adapt: bool
    outputs: dict[str, bool]  # and whether each is to be sent as bytes


def parse(body: bytes | bytearray, head_length: int, known: Sequence[str], most: int = 10**6) -> tuple[Message, Array]:
    """Read a request and its images, given the length of its JSON, the names of outputs, and the most values in it."""
    objects = sum(body.count(each, 0, head_length) for each in (b"[", b"{", b":"))  # each costs as much as ten numbers
    if body.count(b",", 0, head_length) + 10 * objects > most:
        raise RequestError(413, f"the JSON has more than {most:,} values: send tensors as bytes")
    try:
        head = Head.model_validate_json(body[:head_length])
    except ValidationError as error:
        raise RequestError(400, _sentence(error)) from None
    rest = memoryview(body)[head_length:].toreadonly()
    names = [each.name for each in head.inputs]
    if names != ["images"]:
        raise RequestError(400, f"the model takes one input, 'images', not {', '.join(map(repr, names))[:200]}")
    images, used = _values(head.inputs[0], rest)
    if used < len(rest):
        raise RequestError(400, f"{len(rest) - used} bytes follow the tensor: does binary_data_size add up?")
    parameters = head.parameters or Parameters()
    every = parameters.binary_data_output
    chosen = {
        each.name: None if each.parameters is None else each.parameters.binary_data for each in head.outputs or ()
    }
    outputs = {name: every if own is None else own for name, own in (chosen or dict.fromkeys(known)).items()}
    if unknown := [name for name in outputs if name not in known]:
        raise RequestError(400, f"there is no output {unknown[0]!r}: this model has {', '.join(known)}")
    return Message(head.id, stream_id(parameters.stream), parameters.adapt, outputs), images


def head_length(header: str | None, body: int) -> int:
    """The length of the JSON of a request, given the header that says it, if there is one."""
    if header is None:
        return body
    if not header.isascii() or not header.isdigit() or len(header) > 12 or int(header) > body:
        raise RequestError(400, f"{HEADER} is {header[:40]!r}: expected the number of bytes of the JSON")
    return int(header)


def _sentence(error: ValidationError) -> str:
    """The first thing that is wrong with the JSON of a request."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))[:100]
    return f"the body is not the JSON of an inference request: {place and f'{place}: '}{first['msg'].lower()[:200]}"


def _values(tensor: Tensor, rest: memoryview) -> tuple[Array, int]:
    """The values of an input, and how many bytes it took."""
    size, count = (tensor.parameters or Parameters()).binary_data_size, math.prod(tensor.shape)
    if size is None and tensor.data is None:
        raise RequestError(400, "the input has neither data nor a binary_data_size")
    if size is not None and size > len(rest):
        raise RequestError(400, f"binary_data_size is {size}, more than the {len(rest)} bytes that were sent")
    flat = _from_json(tensor) if size is None else _from_bytes(tensor.datatype, rest[:size])
    if len(flat) != count:
        raise RequestError(400, f"the input has {len(flat)} values: {count} expected for its shape")
    return flat.reshape(tensor.shape), size or 0


def _from_json(tensor: Tensor) -> Array:
    flat = _flat(tensor.data, len(tensor.shape))
    if tensor.datatype == "BYTES":
        raise RequestError(400, "BYTES images must be image files, sent as binary data, with the shape [N]")
    dtype = np.dtype(DTYPES[tensor.datatype])
    wrong = RequestError(400, f"the data of the input is not a list of {tensor.datatype} values")
    if not set(map(type, flat)) <= FITTING[dtype.kind]:  # NumPy would read texts as numbers
        raise wrong
    try:
        return np.array(flat, dtype)
    except (ValueError, OverflowError):
        raise wrong from None


def _flat(data: Any, depth: int) -> list[Any]:
    """A list of lists, at most so deep, as one list."""
    if not isinstance(data, list):
        raise RequestError(400, "the data of the input is not a list")
    values: list[Any] = data
    for _ in range(depth):
        if not values or not isinstance(values[0], list):
            break
        if not all(isinstance(each, list) for each in values):
            raise RequestError(400, "the data of the input is nested unevenly")
        values = [value for each in values for value in each]
    return values


def _from_bytes(datatype: str, content: memoryview) -> Array:
    if datatype != "BYTES":
        dtype = np.dtype(DTYPES[datatype])
        if len(content) % dtype.itemsize:
            raise RequestError(
                400, f"the input has {len(content)} bytes: {dtype.itemsize} expected for each {datatype}"
            )
        return np.frombuffer(content, dtype)
    texts: list[bytes] = []
    place = 0
    while place < len(content):
        (length,) = struct.unpack_from("<I", content, place) if place + 4 <= len(content) else (2**32,)
        if place + 4 + length > len(content):
            raise RequestError(400, "the input is cut off: an element is longer than what was sent")
        if len(texts) >= ELEMENTS:
            raise RequestError(413, f"the input has more than {ELEMENTS:,} elements")
        texts.append(bytes(content[place + 4 : place + 4 + length]))
        place += 4 + length
    values = np.empty(len(texts), object)
    values[:] = texts
    return values


def encode(head: Mapping[str, Any], outputs: Mapping[str, Array], binary: Mapping[str, bool]) -> tuple[bytes, int]:
    """Write an answer.

    The head is its JSON without the outputs. These are float32, int64, or objects, which are texts.

    Returns:
        The body, and the length of its JSON if bytes follow it, else 0.
    """
    listed, parts = [], []
    for name, values in outputs.items():
        kind = {"f": "FP32", "i": "INT64", "O": "BYTES"}[values.dtype.kind]
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
    if values.dtype.kind == "O":
        texts = [str(each).encode() for each in values]
        return b"".join(struct.pack("<I", len(each)) + each for each in texts)
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
