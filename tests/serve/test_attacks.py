"""Clients that stall, grow, pile up or leave: they are rejected, and others go on."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import socket
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.serving import Client, GatedEngine, in_background, pictures, serving, tensor, wait_until
from support.small_model import network

from neotta.deploy.serve.engine import TorchEngine
from neotta.deploy.serve.settings import Limits

POST = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"
INFER = "/v2/models/small/infer"
KEY = "a key of sixteen characters"


def png(width, height):
    """A black PNG in a few kilobytes."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    packed = zlib.compress(bytes(height * (1 + 3 * width)), 9)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + b"\x08\x02\0\0\0")
    return start + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def form(*files):
    head = b'--edge\r\nContent-Disposition: form-data; name="file"; filename="x.png"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--edge--\r\n"


def send(port, content, timeout=30.0):
    connection = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    connection.sendall(content)
    return connection


def status_of(connection):
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return int(answer.split(b" ")[1]) if answer else None


@contextlib.contextmanager
def watched(client, path="/v2/health/live", longest=1.5):
    """Health is asked all the time, and answers at once; in seconds of this process, as the machine may be busy."""
    stop, slowest = threading.Event(), [0.0]

    def ask():
        while not stop.is_set():
            started = time.process_time()
            assert Client(client.port).get(path)[0] == 200
            slowest[0] = max(slowest[0], time.process_time() - started)
            time.sleep(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert slowest[0] < longest, f"health took {slowest[0]:.1f} s"


def memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# ---- what is sent


@pytest.fixture(scope="module")
def client():
    with serving(limits=Limits(timeout=1.0, body=2**20)) as client:
        yield client


CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (POST + b"Content-Length: 1000\r\n\r\nabc", 408),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 64 * 1024, 400),
        (b"\x00\xff garbage\r\n\r\n", 400),
        (CHUNKED + b"ZZ\r\n", 400),
        (POST + b"Content-Length: -5\r\n\r\n", 400),
        (POST + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    ],
    ids=["half a body", "a huge head", "garbage", "a damaged chunk", "a negative length", "a huge length"],
)
def test_a_bad_request_is_rejected_and_its_connection_closed(client, content, status):
    with send(client.port, content) as stranger:
        assert status_of(stranger) == status
    assert client.ask("GET", "/v2")[0] == 200


def test_a_body_in_chunks_is_rejected_before_they_are_read(client):
    """Each chunk would be read in the event loop, before any turn."""
    tiny = b"1\r\nx\r\n" * 40_000
    started = time.process_time()
    with send(client.port, CHUNKED + tiny + b"0\r\n\r\n") as stranger:
        assert status_of(stranger) == 400
    assert time.process_time() - started < 0.2
    assert client.ask("GET", "/v2")[0] == 200


def test_a_body_without_its_length_is_rejected_behind_any_server(client):
    messages = [{"type": "http.request", "body": b"x" * 10, "more_body": True}]
    sent = []

    async def run():
        async def receive():
            return messages[0]

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/classify", "query_string": b"", "headers": []}
        scope |= {"client": ("127.0.0.1", 1), "scheme": "http", "server": ("localhost", 80)}
        await client.server.config.app({**scope, "headers": [(b"host", b"localhost")]}, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 411


HOSTILE = {
    "inputs": b'{"inputs": [' + b"[]," * 2_700_000 + b"[]]}",
    "data": b'{"inputs": [{"name": "images", "shape": [1], "datatype": "FP32", "data": ['
    + b"[]," * 2_700_000
    + b"[]]}]}",
    "outputs": b'{"outputs": [' + b'{"name": "a"},' * 500_000 + b'{"name": "a"}], "inputs": []}',
    "deep": b'{"inputs": ' + b"[" * 8_000_000,
    "numbers": b'{"inputs": [{"name": "images", "shape": [3], "datatype": "FP32", "data": ['
    + b"1," * 4_000_000
    + b"1]}]}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_json_of_the_largest_size_does_not_stop_the_loop(name):
    with serving() as client, watched(client):
        before = memory()
        for status, answer in in_background(3, lambda _: client.post(INFER, HOSTILE[name]))():
            assert (status, list(answer)) == (413, ["error"])
            assert len(answer["error"]) < 500
        assert memory() - before < 300
        assert client.post(INFER, b" " * (8 * 2**20 + 1))[0] == 413


def test_a_hostile_form_does_not_stop_the_loop():
    head = b"Content-Type: multipart/form-data; boundary=edge\r\n"
    body = b'--edge\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + b"\r\n--edg" * 2_000_000
    with serving() as client, watched(client):
        content = POST + head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with send(client.port, content) as stranger:
            assert status_of(stranger) == 400


# ---- images


def test_decoding_for_clients_that_left_starves_nobody():
    large = form(*[png(5000, 5000)] * 64)
    head = POST + b"Content-Type: multipart/form-data; boundary=edge\r\n"
    with serving() as client, watched(client):
        before = memory()
        gone = [send(client.port, head + b"Content-Length: %d\r\n\r\n" % len(large) + large) for _ in range(6)]
        wait_until(lambda: client.service.images.readers.queue.amount)
        started = time.monotonic()
        status, answer = client.post("/classify?stream=honest", png(8, 8))
        assert (status, time.monotonic() - started < 20) == (200, True), answer
        for each in gone:
            each.close()
        wait_until(lambda: client.service.images.readers.queue.amount == 0)
        started = time.monotonic()
        assert client.post("/classify?stream=honest", png(8, 8))[0] == 200
        assert time.monotonic() - started < 8
        assert memory() - before < 600
        assert client.service.engine.counts() == {"honest": 2}


def test_images_are_rejected_by_their_pixels_before_they_are_decoded(client):
    for size in ((40_000, 40_000), (8_000_000, 1)):  # the second becomes 32 x 256,000,000 when its side is resized
        header = png(1, 1).replace((1).to_bytes(4, "big") * 2, b"".join(n.to_bytes(4, "big") for n in size), 1)
        crc = header.index(b"IHDR")
        header = header[: crc + 17] + zlib.crc32(header[crc : crc + 17]).to_bytes(4, "big") + header[crc + 21 :]
        started = time.monotonic()
        status, answer = client.post("/classify", header)
        assert (status in (400, 413), "pixels" in answer["error"]) == (True, True)
        assert time.monotonic() - started < 2


def test_each_scan_of_a_jpeg_costs_its_pixels():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(buffer, "JPEG", progressive=True)
    with serving(limits=Limits(pixels=64 * 64)) as client:
        assert client.post("/classify", buffer.getvalue())[0] == 200
        status, answer = client.post("/classify", buffer.getvalue() + b"\xff\xda" * 16)
        assert (status, "scans" in answer["error"]) == (413, True)


def test_pixels_of_a_tensor_are_limited_too(client):
    values = {"name": "images", "shape": [1, 300_000, 1, 3], "datatype": "UINT8"}
    text = json.dumps({"inputs": [{**values, "parameters": {"binary_data_size": 900_000}}]}).encode()
    status, answer = client.post(INFER, text + bytes(900_000), **{"Inference-Header-Content-Length": str(len(text))})
    assert (status, "pixels" in answer["error"]) == (413, True)


# ---- clients that leave, and batches that fail


def request_of(stream, count=1):
    body = json.dumps({"inputs": [tensor(pictures(count))], "parameters": {"stream": stream}}).encode()
    return f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_nothing_is_learnt_from_a_client_that_left_while_it_waited():
    engine = GatedEngine()
    with serving(engine) as client:
        engine.gate.clear()
        first = in_background(1, lambda _: client.infer(pictures(1), stream="first"))
        assert engine.entered.wait(10)
        leaving = send(client.port, request_of("gone"))
        wait_until(lambda: client.service.batcher.queue.amount == 1)
        leaving.close()
        wait_until(lambda: client.service.batcher.queue.amount == 0)
        engine.gate.set()
        assert all(first())
        client.infer(pictures(1), stream="next")
        assert client.service.engine.counts() == {"first": 1, "next": 1}
        assert b'neotta_requests_total{status="5' not in client.get("/metrics")[1]  # it is no fault of the server


class Picky(TorchEngine):
    """Fails on bright images, as a model may; waits until a batch is complete."""

    def _forward(self, images):
        if images.mean() > 50 or (images.mean((1, 2, 3)) > 50).any():
            raise RuntimeError("too bright")
        return super()._forward(images)


def test_a_request_on_which_the_model_fails_fails_alone_and_nothing_counts_twice():
    with serving(Picky(network()), limits=Limits(wait=0.5, rows=9)) as client:
        bright = pictures(1, shift=100.0)

        def ask(index):
            images = bright if index == 4 else pictures(1, seed=index)
            return client.post(INFER, {"inputs": [tensor(images)], "parameters": {"stream": f"camera {index}"}})[0]

        assert in_background(9, ask)() == [200, 200, 200, 200, 500, 200, 200, 200, 200]
        assert client.service.batcher.batches < 9
        assert client.service.engine.counts() == {f"camera {index}": 1 for index in range(9) if index != 4}


@pytest.mark.parametrize("adapt", [True, False])
def test_a_damaged_state_fails_only_its_own_request_of_a_batch(tmp_path, adapt):
    from test_served_streams import damage

    with serving(folder=tmp_path) as client:
        for index in range(6):
            client.infer(pictures(2), stream=f"camera {index}")
    damage(tmp_path, "camera 3")
    with serving(folder=tmp_path, limits=Limits(wait=0.5, rows=6)) as client:

        def ask(index):
            parameters = {"stream": f"camera {index}", "adapt": adapt or index != 3}
            return client.post(INFER, {"inputs": [tensor(pictures(1))], "parameters": parameters})

        answers = in_background(6, ask)()
        assert [status for status, _ in answers] == [200, 200, 200, 409, 200, 200]
        assert "quarantined" in answers[3][1]["error"]
        assert ask(3)[0] == 409
        assert client.post("/streams/camera%203", {"action": "reset"})[0] == 200
        assert ask(3)[0] == 200
        rest = {"camera 3": 1} if adapt else {}
        others = {f"camera {index}": 3 for index in (0, 1, 2, 4, 5)}
        assert client.service.engine.counts() == {**others, **rest}


# ---- floods


def test_an_honest_camera_is_answered_while_others_flood():
    class Slow(TorchEngine):
        def _forward(self, images):
            time.sleep(0.02)
            return super()._forward(images)

    with serving(Slow(network()), limits=Limits(rows=4, queue=8, wait=0.0)) as client:
        stop = threading.Event()

        def flood(_):
            body = json.dumps({"inputs": [tensor(pictures(4))], "parameters": {"stream": "flood"}})
            while not stop.is_set():
                client.post(INFER, body)

        end = in_background(8, flood)
        try:
            wait_until(lambda: client.service.batcher.queue.amount >= 8)
            found = [
                client.post(INFER, {"inputs": [tensor(pictures(1))], "parameters": {"stream": "honest"}})[0]
                for _ in range(30)
            ]
        finally:
            stop.set()
            end()
        assert found == [200] * 30


def test_idle_connections_lock_nobody_out():
    with serving(key=KEY, limits=Limits(requests=20)) as client:
        idle = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(70)]
        half = [send(client.port, b"GET /v2 HTTP/1.1\r\nHost: ") for _ in range(70)]
        keyless = [send(client.port, POST + b"Content-Length: 1000\r\n\r\nabc") for _ in range(70)]
        for _ in range(5):
            assert client.get("/streams")[0] == 200
            assert client.infer(pictures(1))
        for each in (*idle, *half, *keyless):
            each.close()


def test_more_requests_than_fit_are_told_to_come_back_and_other_clients_are_not():
    engine = GatedEngine()
    with serving(engine, limits=Limits(requests=3)) as client:
        engine.gate.clear()
        found = []

        def ask(index):
            found.append(client.post(f"/classify?stream=camera{index}", png(8, 8))[0])

        end = in_background(3, ask)
        wait_until(lambda: client.server.config.app.state.requests.open.amount == 3)
        assert client.post("/classify?stream=camera9", png(8, 8))[0] == 429
        other = in_background(1, lambda _: from_elsewhere(client.port, png(8, 8)))
        wait_until(lambda: found == [429])  # the last one gave way
        engine.gate.set()
        end()
        assert (other(), found) == ([200], [429, 200, 200])


def from_elsewhere(port, body):
    """The status that a client with another address gets for an image."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=("127.0.0.2", 0))
    with contextlib.closing(connection):
        connection.request("POST", "/classify?stream=honest", body)
        return connection.getresponse().status


def test_a_client_with_a_thousand_halves_of_bodies_keeps_nobody_out():
    with serving(limits=Limits(requests=30)) as client:
        halves = [send(client.port, POST + b"Content-Length: 1000\r\n\r\nabc") for _ in range(40)]
        wait_until(lambda: client.server.config.app.state.requests.open.amount == 30)
        assert [from_elsewhere(client.port, png(8, 8)) for _ in range(5)] == [200] * 5
        for each in halves:
            each.close()


def test_large_bodies_are_bounded_together_and_whoever_holds_most_gives_way():
    with serving(limits=Limits(body=2**21, timeout=20.0, requests=64)) as client:  # a share is 65,536 bytes
        head = POST + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % 2**21
        held = [send(client.port, head + bytes(2**20)) for _ in range(2)]
        wait_until(lambda: len(client.server.server_state.tasks) == 1)  # the other one had to give way
        assert client.server.config.app.state.requests.open.amount == 33
        assert from_elsewhere(client.port, png(8, 8)) == 200
        for each in held:
            each.close()
        wait_until(lambda: client.server.config.app.state.requests.open.amount == 0)
