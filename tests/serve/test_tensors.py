"""Whatever bytes arrive: an answer, or an error of one sentence."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.deploy.serve.protocol import DTYPES, encode, head_length, parse
from neotta.deploy.serve.settings import RequestError

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["images", "x"]) | plain,
        "shape": st.lists(st.integers(-2, 40), max_size=5) | plain,
        "datatype": st.sampled_from([*DTYPES, "BYTES"]) | plain,
        "data": plain,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 99) | plain}) | plain,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "id": plain,
        "inputs": st.lists(entries, max_size=3) | plain,
        "outputs": plain | st.lists(st.fixed_dictionaries({"name": st.just("logits"), "parameters": plain})),
        "parameters": plain | st.fixed_dictionaries({}, optional={"stream": plain, "adapt": plain}),
    },
)


@given(requests, st.binary(max_size=60), st.none() | st.text(max_size=4), st.booleans())
def test_garbage_is_rejected_and_nothing_else_is_raised(head, rest, length, right):
    body = json.dumps(head).encode()
    with contextlib.suppress(RequestError):
        parse(body + rest, head_length(str(len(body)) if right else length, len(body + rest)), ["logits"])


@given(st.binary(max_size=200))
def test_any_bytes(body):
    with pytest.raises(RequestError):
        parse(body, len(body), [])


def request(kind, shape, **more):
    return {"inputs": [{"name": "images", "datatype": kind, "shape": shape, **more}]}


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("nested", [False, True])
def test_numbers_come_as_they_were_sent(kind, nested):
    values = (np.arange(6).reshape(2, 3) % 2).astype(DTYPES[kind])
    head = json.dumps(request(kind, [2, 3], data=(values if nested else values.reshape(-1)).tolist())).encode()
    assert (parse(head, len(head), [])[1] == values).all()
    head = json.dumps(request(kind, [2, 3], parameters={"binary_data_size": values.nbytes})).encode()
    found = parse(head + values.tobytes(), len(head), [])[1]
    assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())


def test_answers_as_json_and_as_bytes():
    outputs = {"logits": np.float32([[1.5, -2]]), "class": np.int64([7]), "label": np.array(["ü"], object)}
    body, length = encode({"id": "a"}, outputs, dict.fromkeys(outputs, False))
    assert length == 0
    assert [each["data"] for each in json.loads(body)["outputs"]] == [[1.5, -2.0], [7], ["ü"]]
    body, length = encode({"id": "a"}, outputs, dict.fromkeys(outputs, True))
    head = json.loads(body[:length])
    assert [each["parameters"]["binary_data_size"] for each in head["outputs"]] == [8, 8, 6]
    rest = body[length:]
    assert np.frombuffer(rest[:8], "<f4").tolist() == [1.5, -2.0]
    assert np.frombuffer(rest[8:16], "<i8").tolist() == [7]
    assert rest[16:] == b"\x02\0\0\0" + "ü".encode()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("UINT8", [1.5]),
        ("UINT8", [300]),
        ("UINT8", ["1"]),
        ("UINT8", [True]),
        ("FP32", ["1"]),
        ("FP32", [[[1]]]),
        ("FP32", [10**400]),
        ("BOOL", [2]),
        ("INT64", [10**30]),
    ],
)
def test_values_of_another_kind_are_not_converted(kind, data):
    head = json.dumps(request(kind, [1], data=data)).encode()
    with pytest.raises(RequestError, match=f"not a list of {kind} values|not the JSON"):
        parse(head, len(head), [])


def test_whole_numbers_are_floats():
    head = json.dumps(request("FP32", [1, 2], data=[[1, 2]])).encode()
    assert parse(head, len(head), [])[1].tolist() == [[1.0, 2.0]]


def test_many_empty_elements_are_not_read():
    head = json.dumps(request("BYTES", [10**6], parameters={"binary_data_size": 4 * 10**6})).encode()
    with pytest.raises(RequestError, match="more than 4,096 elements"):
        parse(head + bytes(4 * 10**6), len(head), [])
