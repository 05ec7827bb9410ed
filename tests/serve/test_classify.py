"""Image files, as curl sends them."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image
from support.serving import serving

from neotta.deploy.serve.engine import TorchEngine
from neotta.deploy.serve.settings import Limits
from neotta.models.load import load_model


def file(seed=0, kind="JPEG", size=(48, 40)):
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def form(*files, boundary="edge"):
    head = 'Content-Disposition: form-data; name="file"; filename="../../etc/passwd.jpg"'
    parts = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for content in files]
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@pytest.fixture(scope="module")
def client():
    engine = TorchEngine(load_model("digits"))
    with serving(engine, name="digits", limits=Limits(rows=4, pixels=10_000, body=2**20)) as client:
        yield client


def test_one_file_in_the_body(client):
    for kind in ("JPEG", "PNG"):
        status, answer = client.post("/classify?stream=gate", file(kind=kind), **{"Content-Type": "image/x"})
        assert status == 200, answer
        assert (answer["model"], answer["stream"], answer["adapted"]) == ("digits", "gate", True)
        (result,) = answer["results"]
        chances = [each["probability"] for each in result["predictions"]]
        assert result["label"] == result["predictions"][0]["label"] in client.service.engine.labels
        assert len(chances) == 3
        assert chances == sorted(chances, reverse=True)
        assert result["plain"]["label"] in client.service.engine.labels
    assert client.service.engine.counts()["gate"] == 2


def test_several_files_of_a_form_and_fewer_labels(client):
    body, kind = form(file(1), file(2, "PNG"), file(3))
    status, answer = client.post("/classify?stream=yard&adapt=false&top=1", body, **{"Content-Type": kind})
    assert (status, answer["adapted"], len(answer["results"])) == (200, False, 3)
    assert all(len(result["predictions"]) == 1 for result in answer["results"])
    assert "yard" not in client.service.engine.counts()


def bomb():
    """A PNG of 40,000 x 40,000 pixels in a few kilobytes."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = (40_000).to_bytes(4, "big")
    packed = zlib.compress(bytes(10**6), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size + size + b"\x08\x02\0\0\0")
        + chunk(b"IDAT", packed)
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("query", "body", "status", "reason"),
    [
        ("", b"", 400, "no image"),
        ("", b"GIF89a nonsense", 400, "image"),
        ("", file()[:200], 400, "image"),
        ("", bomb(), 400, "pixels"),
        ("", file(size=(101, 100)), 400, "more than the limit"),
        ("?stream=" + "x" * 101, file(), 400, "1 to 100 printable"),
        ("?adapt=maybe", file(), 400, "adapt: "),
        ("?top=0", file(), 400, "top: "),
        ("", b"x" * (2**20 + 1), 413, "larger than"),
    ],
)
def test_bad_files_are_refused(client, query, body, status, reason):
    found, answer = client.post(f"/classify{query}", body)
    assert (found, list(answer), reason in answer["error"]) == (status, ["error"], True), answer


def test_bad_forms_are_refused(client):
    for body, kind in (
        (b"--edge nonsense", "multipart/form-data; boundary=edge"),
        (b"x", "multipart/form-data"),
        form(),
        form(*[file()] * 5),
    ):
        status, answer = client.post("/classify", body, **{"Content-Type": kind})
        assert (status in (400, 413), list(answer)) == (True, ["error"]), answer


def test_texts_in_a_form_are_not_ignored(client):
    body = b'--edge\r\nContent-Disposition: form-data; name="stream"\r\n\r\ngate\r\n--edge--\r\n'
    status, answer = client.post("/classify", body, **{"Content-Type": "multipart/form-data; boundary=edge"})
    assert (status, "belong into the address" in answer["error"]) == (400, True)
