"""Connections that stall, grow or pile up are closed, and others go on."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from support.serving import serving, wait_until

from neotta.deploy.serve.settings import Limits

HEAD = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"


def answer(port: int, content: bytes, trickle: bytes = b"", seconds: float = 30.0) -> bytes:
    """What the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(content)
        client.settimeout(0.05)
        found, until = b"", time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                part = client.recv(65536)
                if not part:
                    return found
                found += part
            except TimeoutError:
                pass
            except ConnectionError:
                return found
            try:
                client.sendall(trickle)
            except ConnectionError:
                return found
    raise AssertionError(f"the connection is still open after {seconds} seconds")


STALLED = {
    "nothing": (b"", b"", b""),
    "half a line": (b"GET /v2 HT", b"", b"408"),
    "half a header": (b"GET /v2 HTTP/1.1\r\nHost: localh", b"", b"408"),
    "endless headers": (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n", b"X-More: 1\r\n", b"408"),
    "endless empty lines": (b"\r\n", b"\r\n", b""),
    "half a body": (HEAD + b"Content-Length: 1000\r\n\r\nabc", b"", b"408"),
    "a slow body": (HEAD + b"Content-Length: 1000\r\n\r\nabc", b"a", b"408"),
    "a slow body that nobody reads": (
        HEAD.replace(b"classify", b"nothing") + b"Content-Length: 100000\r\n\r\nabc",
        b"a",
        b"404",
    ),
    "a huge head": (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000, b"", b"431"),
    "garbage": (b"\x00\xff garbage\r\n\r\n", b"", b"400"),
    "a damaged chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"", b"400"),
    "a negative length": (HEAD + b"Content-Length: -5\r\n\r\n", b"", b"400"),
}


def test_what_stalls_or_is_not_http_is_refused_in_time(monkeypatch):
    monkeypatch.setattr("neotta.deploy.serve.connection.GRACE", 0.2)
    with serving(limits=Limits(timeout=1.0)) as client, ThreadPoolExecutor(len(STALLED)) as threads:
        coming = {
            name: threads.submit(answer, client.port, content, trickle)
            for name, (content, trickle, _) in STALLED.items()
        }
        found = {name: each.result() for name, each in coming.items()}
        assert client.ask("GET", "/v2")[0] == 200
    parts = {name: content.partition(b"\r\n\r\n") for name, content in found.items()}
    statuses = {name: b"".join(head.partition(b"\r\n")[0].split(b" ")[1:2]) for name, (head, _, _) in parts.items()}
    assert statuses == {name: status for name, (_, _, status) in STALLED.items()}
    assert all(list(json.loads(body)) == ["error"] for _, _, body in parts.values() if body)


def test_a_client_that_does_not_read_is_dropped():
    with serving(limits=Limits(timeout=0.3)) as client, socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", client.port))
        lazy.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
        wait_until(lambda: client.server.server_state.connections)
        wait_until(lambda: not client.server.server_state.connections)
        assert client.ask("GET", "/v2")[0] == 200


def test_connections_beyond_the_limit_are_told_to_come_back():
    with serving(limits=Limits(connections=2)) as client:
        held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(2)]
        wait_until(lambda: len(client.server.server_state.connections) == 2)
        status, headers, body = client.ask("GET", "/v2")
        assert (status, body) == (503, {"error": "2 connections are open already: try again later"})
        assert headers["retry-after"] == "1"
        for each in held:
            each.close()
        wait_until(lambda: not client.server.server_state.connections)
        assert client.ask("GET", "/v2")[0] == 200
