"""Requests that stall, grow or pile up are rejected, and others go on."""

from __future__ import annotations

import socket

import pytest
from support.serving import serving, wait_until

from neotta.deploy.serve.settings import Limits

POST = b"POST /classify HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def client():
    with serving(limits=Limits(timeout=1.0, connections=2)) as client:
        yield client


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (POST + b"Content-Length: 1000\r\n\r\nabc", b"408"),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 64 * 1024, b"400"),
        (b"\x00\xff garbage\r\n\r\n", b"400"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"400"),
        (POST + b"Content-Length: -5\r\n\r\n", b"400"),
    ],
    ids=["half a body", "a huge head", "garbage", "a damaged chunk", "a negative length"],
)
def test_a_bad_request_is_rejected_and_its_connection_closed(client, content, status):
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as stranger:
        stranger.sendall(content)
        answer = b""
        while part := stranger.recv(65536):
            answer += part
    assert answer.split(b" ")[1] == status
    assert client.ask("GET", "/v2")[0] == 200


def test_connections_beyond_the_limit_are_told_to_come_back(client):
    wait_until(lambda: not client.server.server_state.connections)
    held = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(2)]
    wait_until(lambda: len(client.server.server_state.connections) == 2)
    assert client.ask("GET", "/v2")[0] == 503
    for each in held:
        each.close()
    wait_until(lambda: not client.server.server_state.connections)
    assert client.ask("GET", "/v2")[0] == 200
