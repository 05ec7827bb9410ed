"""Every field of every route with whatever a client can send: never 500, never a stopped loop."""

from __future__ import annotations

import http.client
import io
import json
import time
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.serving import pictures, serving, tensor

from neotta.deploy.serve.protocol import DTYPES
from neotta.deploy.serve.settings import Limits

INFER = "/v2/models/small/infer"
MANY = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def client():
    with serving(limits=Limits(rows=4, pixels=10_000, body=2**20, json_bytes=2**18, timeout=10.0)) as client:
        client.infer(pictures(1), stream="known")
        yield client


@pytest.fixture(scope="module")
def send(client):
    """Send a request; what comes back is checked: an answer, or one sentence with a status of the client's."""
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=20)

    def ask(method, path, body=b"", **headers):
        started = time.monotonic()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (http.client.HTTPException, OSError):
            connection.close()
            raise
        assert answer.status < 500, content
        if answer.status >= 400:
            said = json.loads(content)
            assert list(said) == ["error"]
            assert 0 < len(said["error"]) < 600
            assert "\n" not in said["error"]
        assert time.monotonic() - started < 10
        return answer.status

    yield ask
    connection.close()


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, -(2**70), 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\0", "a" * 200, "known", "NaN"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = {
    (): ("id", "inputs", "outputs", "parameters"),
    ("parameters",): ("stream", "adapt", "binary_data_output", "x"),
    ("inputs", 0): ("name", "shape", "datatype", "data", "parameters"),
    ("inputs", 0, "parameters"): ("binary_data_size", "shared_memory_region", "x"),
    ("outputs", 0): ("name", "parameters"),
    ("outputs", 0, "parameters"): ("binary_data", "classification"),
}
PLACES = [(place, name) for place, names in FIELDS.items() for name in names]


def good():
    return {
        "id": "a",
        "inputs": [{**tensor(pictures(1)), "parameters": {}}],
        "outputs": [{"name": "logits", "parameters": {"binary_data": False}}],
        "parameters": {"stream": "fuzz", "adapt": True},
    }


@pytest.mark.parametrize(("place", "name"), PLACES, ids=lambda each: "-".join(map(str, each)) or "head")
def test_every_field_of_the_protocol(send, place, name):
    @settings(MANY, max_examples=25)
    @given(junk)
    def fuzz(value):
        head = good()
        part = head
        for step in place:
            part = part[step]
        part[name] = value
        send("POST", INFER, json.dumps(head).encode())
        part.pop(name)
        send("POST", INFER, json.dumps(head).encode())

    fuzz()


@MANY
@given(
    st.sampled_from([*DTYPES, "BYTES"]),
    st.lists(st.integers(0, 40), max_size=5),
    st.binary(max_size=200),
    st.none() | st.integers(-1, 300),
    st.none() | st.text("0123456789-+. ²", max_size=6),
)
def test_binary_tensors(send, kind, shape, content, size, length):
    size = len(content) if size is None else size
    entry = {"name": "images", "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry]}).encode()
    header = str(len(text)) if length is None else length.strip().encode().decode("latin-1")
    send("POST", INFER, text + content, **{"Inference-Header-Content-Length": header})


@MANY
@given(st.text(max_size=20), st.text(max_size=8), st.text(max_size=8), st.binary(max_size=50))
def test_classify(send, stream, adapt, top, body):
    query = "&".join(
        f"{name}={quote(value.encode('utf-8', 'surrogatepass'))}"
        for name, value in (("stream", stream), ("adapt", adapt), ("top", top))
    )
    send("POST", f"/classify?{query}", body)


def picture(kind):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"])
def test_damaged_images(send, kind):
    content = picture(kind)

    @settings(MANY, max_examples=60)
    @given(
        st.integers(0, len(content) - 1), st.binary(min_size=1, max_size=4), st.none() | st.integers(0, len(content))
    )
    def fuzz(place, new, end):
        send("POST", "/classify", (content[:place] + new + content[place + len(new) :])[:end])

    fuzz()


@MANY
@given(
    st.binary(max_size=120),
    st.sampled_from(["edge", "", "e" * 300, '"edge"', "\xff", "edge; boundary=x"]),
    st.sampled_from([b"", b'--edge\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n']),
)
def test_forms(send, body, boundary, start):
    kind = f"multipart/form-data; boundary={boundary}"
    send("POST", "/classify", start + body + b"\r\n--edge--\r\n", **{"Content-Type": kind})


@MANY
@given(
    st.sampled_from(["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"]),
    st.sampled_from(
        ["streams", "states", "pictures", "camera", "static", "v2", "v2/models", "v2/models/small/versions"]
    ),
    st.text(max_size=12),
    st.binary(max_size=40) | junk.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["application/json", "text/plain", ""]),
)
def test_every_route(send, method, route, rest, body, kind):
    path = f"/{route}/{quote(rest.encode('utf-8', 'surrogatepass'), safe='/')}"
    if method == "HEAD":
        return
    send(method, path, body, **{"Content-Type": kind})


@MANY
@given(
    st.fixed_dictionaries({"action": st.sampled_from(["rollback", "reset", "freeze"]) | junk}, optional={"to": junk})
)
def test_actions(send, body):
    send("POST", "/streams/known", json.dumps(body).encode(), **{"Content-Type": "application/json"})


def test_it_still_answers(client):
    client.post("/streams/known", {"action": "unfreeze"})
    assert client.infer(pictures(1), stream="known")["class"].shape == (1,)
