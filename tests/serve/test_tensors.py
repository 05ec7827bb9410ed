"""Whatever bytes arrive: an answer, or an error of one sentence."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neotta.deploy.serve.guard import RequestError
from neotta.deploy.serve.infer import DTYPES, encode, parse, wanted
from neotta.deploy.serve.inputs import from_tensor
from neotta.deploy.serve.settings import Limits
from neotta.errors import DataError
from neotta.models.preprocess import Preprocess

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
requests = st.fixed_dictionaries({}, optional={"inputs": st.lists(entries, max_size=3) | plain, "outputs": plain})


@given(requests, st.binary(max_size=60), st.none() | st.text(max_size=4), st.booleans())
def test_garbage_is_refused_and_nothing_else_is_raised(head, rest, length, right):
    text = json.dumps(head).encode()
    with contextlib.suppress(RequestError, DataError):
        message = parse(text + rest, str(len(text)) if right else length)
        wanted(message.head, ["logits"])
        for values in message.inputs.values():
            from_tensor(values, Preprocess((2, 2)), Limits(rows=4), "a", True)


@given(st.binary(max_size=200))
def test_any_bytes(body):
    with pytest.raises(RequestError):
        parse(body, None)


@pytest.mark.parametrize("kind", [*DTYPES, "BYTES"])
@pytest.mark.parametrize("binary", [False, True])
def test_tensors_come_back_as_they_were(kind, binary):
    values = np.arange(6).reshape(2, 3) % 2
    values = values.astype(DTYPES[kind]) if kind in DTYPES else np.array([["a", "ü", ""], ["b", "c\0", "d"]], object)
    body, length = encode({"inputs": []}, {"x": values}, {"x": binary})
    text = json.loads(body[: length or None])
    text["inputs"] = text.pop("outputs")
    again = json.dumps(text).encode()
    message = parse(again + (body[length:] if length else b""), str(len(again)) if length else None)
    found = message.inputs["x"]
    if kind == "BYTES" and binary:
        found = np.vectorize(bytes.decode, otypes=[object])(found)
    assert found.shape == (2, 3)
    assert (found == values).all()


@pytest.mark.parametrize(
    ("kind", "data"),
    [("UINT8", [1.5]), ("UINT8", [300]), ("UINT8", ["1"]), ("FP32", ["1"]), ("BOOL", [2]), ("INT64", [10**30])],
)
def test_values_of_another_kind_are_not_converted(kind, data):
    entry = {"name": "images", "shape": [1], "datatype": kind, "data": data}
    with pytest.raises(RequestError, match=f"not a list of {kind} values"):
        parse(json.dumps({"inputs": [entry]}).encode(), None)


def test_whole_numbers_are_floats():
    entry = {"name": "images", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]}
    assert parse(json.dumps({"inputs": [entry]}).encode(), None).inputs["images"].tolist() == [[1.0, 2.0]]
