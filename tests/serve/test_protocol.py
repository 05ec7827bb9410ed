"""The Open Inference Protocol, by JSON and by a client that others wrote."""

from __future__ import annotations

import io
import json
import struct
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from support.serving import pictures, serving, small_engine, tensor

import neotta
from neotta.deploy.serve.settings import Limits

with warnings.catch_warnings():  # of gevent, at import
    warnings.simplefilter("ignore")
    triton = pytest.importorskip("tritonclient.http")

INFER = "/v2/models/small/infer"


@pytest.fixture(scope="module")
def client():
    with serving(limits=Limits(rows=16, body=2**20, json_bytes=2**20 - 9)) as client:
        yield client


def alone(images, adapt=True, batches=1):
    """What one camera's own model answers."""
    from support.small_model import network

    model = neotta.adapt(network().model.eval(), "neo-stream")
    with torch.inference_mode():
        for part in np.array_split(images, batches):
            logits = model(torch.from_numpy(part))
    return logits.numpy()


def test_server_and_model_describe_themselves(client):
    assert client.get("/v2")[1]["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live") == (200, {"live": True})
    assert client.get("/v2/health/ready") == (200, {"name": "small", "ready": True})
    for base in ("/v2/models/small", "/v2/models/small/versions/1"):
        status, about = client.get(base)
        assert (status, about["name"], about["versions"]) == (200, "small", ["1"])
        assert about["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
        assert {"name": "logits", "datatype": "FP32", "shape": [-1, 10]} in about["outputs"]
        assert client.get(f"{base}/ready") == (200, {"name": "small", "ready": True})


def test_answers_are_those_of_a_model_that_saw_one_camera(client):
    images = pictures(8)
    found = client.infer(images, stream="json")
    np.testing.assert_allclose(found["logits"], alone(images), atol=1e-5)
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, atol=1e-5)
    assert found["class"].tolist() == found["logits"].argmax(1).tolist() == found["adapted_class"].tolist()
    assert found["label"].tolist() == [str(index) for index in found["class"]]


def test_id_stream_and_what_happened_come_back(client):
    body = {"id": "seven", "inputs": [tensor(pictures(1))], "parameters": {"stream": "ids", "adapt": False}}
    status, answer = client.post(INFER, body)
    assert (status, answer["id"], answer["model_name"], answer["model_version"]) == (200, "seven", "small", "1")
    assert answer["parameters"] == {"stream": "ids", "adapted": False}


def test_predicting_only_changes_nothing(client):
    first = client.infer(pictures(8, seed=1), stream="still", adapt=False)
    again = client.infer(pictures(8, seed=1), stream="still", adapt=False)
    assert (first["logits"] == again["logits"]).all()
    assert (first["class"] == first["plain_class"]).all()  # nothing was learnt yet
    assert "still" not in client.service.engine.counts()


def test_tritonclient_with_binary_tensors(client):
    images = pictures(6, seed=2)
    with triton.InferenceServerClient(client.url) as remote:
        assert remote.is_server_live()
        assert remote.is_server_ready()
        assert remote.is_model_ready("small")
        assert "binary_tensor_data" in remote.get_server_metadata()["extensions"]
        assert remote.get_model_metadata("small")["name"] == "small"
        given = triton.InferInput("images", list(images.shape), "FP32")
        given.set_data_from_numpy(images, binary_data=True)
        outputs = [
            triton.InferRequestedOutput("logits", binary_data=True),
            triton.InferRequestedOutput("label", binary_data=True),
            triton.InferRequestedOutput("class", binary_data=False),
        ]
        answer = remote.infer(
            "small", [given], outputs=outputs, request_id="a1", parameters={"stream": "triton", "adapt": True}
        )
        assert answer.get_response()["id"] == "a1"
        logits = answer.as_numpy("logits")
        np.testing.assert_allclose(logits, alone(images), atol=1e-5)
        assert answer.as_numpy("label").tolist() == [str(each).encode() for each in logits.argmax(1)]
        assert answer.as_numpy("class").tolist() == logits.argmax(1).tolist()
        everything = remote.infer("small", [given], parameters={"stream": "triton", "adapt": False})
        assert everything.as_numpy("probabilities").shape == (6, 10)
        with pytest.raises(triton.InferenceServerException, match="there is no model 'other'"):
            remote.infer("other", [given])


def test_tritonclient_with_image_files(client):
    files = []
    for seed in range(2):
        buffer = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        files.append(buffer.getvalue())
    with triton.InferenceServerClient(client.url) as remote:
        given = triton.InferInput("images", [2], "BYTES")
        given.set_data_from_numpy(np.array(files, object), binary_data=True)
        answer = remote.infer("small", [given], parameters={"stream": "files"})
        assert answer.as_numpy("logits").shape == (2, 10)
        pixels = triton.InferInput("images", [1, 40, 50, 3], "UINT8")
        pixels.set_data_from_numpy(np.asarray(Image.open(io.BytesIO(files[0])))[None], binary_data=True)
        same = remote.infer("small", [pixels], parameters={"stream": "pixels"})
    np.testing.assert_allclose(same.as_numpy("logits")[0], answer.as_numpy("logits")[0], atol=1e-4)


ONE = tensor(pictures(1))
WRONG = {
    "no JSON": (b"{", "not the JSON"),
    "a list": ([], "should be an object"),
    "nested": (b"[" * 100_000, "not the JSON"),
    "no inputs": ({}, "inputs: field required"),
    "another input": ({"inputs": [{**ONE, "name": "x"}]}, "one input"),
    "twice": ({"inputs": [ONE, ONE]}, "one input"),
    "no shape": ({"inputs": [{**ONE, "shape": None}]}, "inputs.0.shape: input should be a valid array"),
    "a wrong shape": ({"inputs": [tensor(pictures(1)[:, :, :16])]}, "FP32 of the shape"),
    "a wrong number": ({"inputs": [{**ONE, "shape": [2, 3, 32, 32]}]}, "values: 6144 expected"),
    "a wrong datatype": ({"inputs": [{**ONE, "datatype": "FP33"}]}, "datatype"),
    "words": ({"inputs": [{**ONE, "data": ["a"] * 3072}]}, "list of FP32 values"),
    "no data": ({"inputs": [{**ONE, "data": None}]}, "neither data"),
    "no number": (json.dumps({"inputs": [{**ONE, "data": [float("nan")] * 3072}]}).encode(), "NaN"),
    "nothing": ({"inputs": [{**ONE, "shape": [0, 3, 32, 32], "data": []}]}, "no image"),
    "a strange output": ({"inputs": [ONE], "outputs": [{"name": "x"}]}, "no output 'x'"),
    "a strange stream": ({"inputs": [ONE], "parameters": {"stream": "a\nb"}}, "printable"),
    "a strange adapt": ({"inputs": [ONE], "parameters": {"adapt": "no"}}, "parameters.adapt: "),
    "strange parameters": ({"inputs": [ONE], "parameters": [1]}, "parameters: input should be an object"),
    "missing bytes": ({"inputs": [{**ONE, "parameters": {"binary_data_size": 12288}}]}, "more than the 0 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_requests_are_refused_with_one_sentence(client, name):
    body, reason = WRONG[name]
    status, answer = client.post(INFER, body)
    assert status == 400
    assert list(answer) == ["error"]
    assert reason in answer["error"]
    assert "\n" not in answer["error"]


@pytest.mark.parametrize(
    ("length", "extra", "reason"),
    [("999999", b"", "number of bytes"), ("-1", b"", "number of bytes"), (None, b"xyz", "follow the tensor")],
)
def test_bad_binary_requests(client, length, extra, reason):
    content = struct.pack("<I", 3) + b"abc"
    head = {"inputs": [{"name": "images", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 7}}]}
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(text))}
    status, answer = client.post(INFER, text + content + extra, **headers)
    assert (status, reason in answer["error"]) == (400, True)
    status, answer = client.post(INFER, text + content, **{"Inference-Header-Content-Length": str(len(text))})
    assert (status, "not an image" in answer["error"]) == (400, True)


def test_limits_and_addresses(client):
    for path, status in (
        ("/v2/models/other", 404),
        ("/v2/models/small/versions/2", 404),
        ("/nothing", 404),
        ("/v2/models/small/infer", 405),
    ):
        found, answer = client.get(path)
        assert (found, list(answer)) == (status, ["error"])
    pixels = {"name": "images", "shape": [17, 1, 1, 3], "datatype": "UINT8", "data": [0] * 51}
    status, answer = client.post(INFER, {"inputs": [pixels]})
    assert (status, "17 images" in answer["error"]) == (413, True)
    assert client.post(INFER, b"x" * 2**20)[0] == 413
    assert client.post(INFER, b"x" * (2**20 + 1), **{"Inference-Header-Content-Length": "1"})[0] == 413
    assert client.post(INFER, b"x" * 2**20, **{"Inference-Header-Content-Length": str(2**20)})[0] == 413
    assert client.post(INFER, b"x", **{"Content-Encoding": "gzip"})[0] == 415


def test_bad_requests_leave_what_was_learnt(client):
    client.infer(pictures(8), stream="kept")
    before = client.service.engine.counts()["kept"]
    client.post(INFER, {"inputs": [{**ONE, "shape": [2]}], "parameters": {"stream": "kept"}})
    assert client.service.engine.counts()["kept"] == before == 8


def test_a_poisoned_camera_changes_no_other(client):
    images = pictures(8, seed=3)
    client.infer(images, stream="good")
    before = client.infer(images, stream="good", adapt=False)["logits"]
    client.infer(np.float32(1e3) * pictures(8, seed=4), stream="bad")
    body = {"inputs": [tensor(np.float32(1e30) * pictures(8, seed=4))], "parameters": {"stream": "bad"}}
    status, answer = client.post(INFER, body)
    assert (status, "no finite answer" in answer["error"]) == (422, True)
    after = client.infer(images, stream="good", adapt=False)["logits"]
    assert (before == after).all()


def test_shadow_answers_plainly_and_reports(client):
    images = pictures(16, seed=5, shift=1.0)
    with serving(small_engine(), shadow=True) as shadowed:
        plain = small_engine("none").predict(images, ["a"] * 16).plain
        found = shadowed.infer(images)
        np.testing.assert_allclose(found["logits"], plain, atol=1e-5)
        assert found["plain_class"].tolist() == found["class"].tolist() == plain.argmax(1).tolist()
        assert found["adapted_class"].tolist() == alone(images).argmax(1).tolist()
        assert shadowed.service.engine.counts() == {"default": 16}
