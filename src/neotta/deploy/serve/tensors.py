"""Tensors of the Open Inference Protocol v2: as JSON, and as bytes after the JSON (the binary tensor extension).

Bytes are little-endian and row-major; each element of a BYTES tensor has its length before it, in four bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from neotta.deploy.serve.refusal import Refusal
from neotta.neo.statefile import Array

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
        body: Its body.
        header_length: The header `Inference-Header-Content-Length`, if there is one: where the JSON ends.

    Raises:
        Refusal: It is not a request of the protocol.
    """
    end = len(body)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise Refusal(400, f"{HEADER} is {header_length[:40]!r}: expected the number of bytes of the JSON")
        end = int(header_length)
    head = _json(body[:end])
    listed = head.get("inputs")
    if not isinstance(listed, list) or not listed:
        raise Refusal(400, "the request has no inputs: expected a list of tensors")
    inputs: dict[str, Array] = {}
    rest = memoryview(body)[end:]
    for entry in listed:
        name, values, used = _tensor(entry, rest)
        if name in inputs:
            raise Refusal(400, f"the input {name!r} occurs twice")
        inputs[name], rest = values, rest[used:]
    if len(rest):
        raise Refusal(400, f"{len(rest)} bytes follow the last tensor: do the values of binary_data_size add up?")
    return Message(head, inputs)


def _json(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not the JSON of an inference request") from None
    if not isinstance(head, dict):
        raise Refusal(400, "the body is not the JSON of an inference request: expected an object")
    return head


def _tensor(entry: Any, rest: memoryview) -> tuple[str, Array, int]:
    """The name and the values of one input, and how many bytes it took."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str) or len(name) > 100:
        raise Refusal(400, "an input has no name")
    shape, kind = entry.get("shape"), entry.get("datatype")
    whole = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**31 for size in shape)
    if not whole or len(shape) > 8:
        raise Refusal(400, f"the shape of input {name!r} is not a list of sizes")
    if not isinstance(kind, str) or kind not in (*DTYPES, "BYTES"):
        raise Refusal(400, f"the datatype of input {name!r} is unknown: expected one of {', '.join(DTYPES)}, BYTES")
    parameters = _parameters(entry)
    if "shared_memory_region" in parameters:
        raise Refusal(400, f"input {name!r} is in shared memory, which this server does not support")
    size = parameters.get("binary_data_size")
    if size is None:
        return name, _from_json(name, entry.get("data"), kind, shape), 0
    if type(size) is not int or not 0 <= size <= len(rest):
        raise Refusal(400, f"the binary_data_size of input {name!r} is more than what was sent")
    return name, _from_bytes(name, rest[:size], kind, shape), size


def _from_json(name: str, data: Any, kind: str, shape: list[int]) -> Array:
    if data is None:
        raise Refusal(400, f"input {name!r} has neither data nor a binary_data_size")
    wrong = Refusal(400, f"the data of input {name!r} is not a list of {kind} values")
    try:
        if kind == "BYTES":
            return _shaped(name, np.array(data, object).reshape(-1), shape)
        found = np.array(data)
        if found.size and found.dtype.kind not in _JSON[np.dtype(DTYPES[kind]).kind]:
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
        raise Refusal(
            400, f"input {name!r} has {len(content)} bytes: {math.prod(shape) * dtype.itemsize} expected for its shape"
        )
    return np.frombuffer(content, dtype).reshape(shape)


def _strings(name: str, content: memoryview) -> Array:
    found: list[bytes] = []
    place = 0
    while place < len(content):
        (length,) = struct.unpack_from("<I", content, place) if place + 4 <= len(content) else (2**32,)
        if place + 4 + length > len(content):
            raise Refusal(400, f"input {name!r} is cut off: an element is longer than what was sent")
        found.append(bytes(content[place + 4 : place + 4 + length]))
        place += 4 + length
    values = np.empty(len(found), object)
    values[:] = found
    return values


def _shaped(name: str, values: Array, shape: list[int]) -> Array:
    if values.size != math.prod(shape):
        raise Refusal(400, f"input {name!r} has {values.size} values: {math.prod(shape)} expected for its shape")
    return values.reshape(shape)


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    found = entry.get("parameters") or {}
    if not isinstance(found, dict):
        raise Refusal(400, "parameters must be an object")
    return found


def parameters_of(head: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a request or of one of its outputs."""
    return _parameters(head)


def wanted(head: Mapping[str, Any], known: Sequence[str]) -> dict[str, bool]:
    """The outputs that a request asks for, and whether each is to be sent as bytes; all if it names none.

    Raises:
        Refusal: One does not exist.
    """
    every = bool(_parameters(head).get("binary_data_output", False))
    listed = head.get("outputs")
    if not listed:
        return dict.fromkeys(known, every)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Refusal(400, "outputs must be a list of objects with names")
    found: dict[str, bool] = {}
    for each in listed:
        name = each.get("name")
        if not isinstance(name, str) or name not in known:
            raise Refusal(400, f"there is no output {str(name)[:100]!r}: this model has {', '.join(known)}")
        found[name] = bool(_parameters(each).get("binary_data", every))
    return found


def encode(head: Mapping[str, Any], outputs: Mapping[str, Array], binary: Mapping[str, bool]) -> tuple[bytes, int]:
    """Write an answer.

    Args:
        head: Its JSON without the outputs.
        outputs: Arrays by name; an array of objects holds texts.
        binary: Whether each is sent as bytes.

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
