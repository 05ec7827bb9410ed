"""What a server answers, byte by byte."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import damaged, fuzz, only_own_errors

from neotta.data.downloads.fetch import fetch

BODY = bytes(range(256)) * 4
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 1024\r\nETag: "1"\r\nContent-Type: application/x-tar\r\n\r\n' + BODY
PART = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 10-1023/1024\r\nContent-Length: 1014\r\n\r\n" + BODY[10:]
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + BODY + b"\r\n0\r\n\r\n"
MOVED = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
REPLIES = [WHOLE, PART, CHUNKS, MOVED, b"HTTP/1.1 416 No\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.0 503 Busy\r\n\r\n"]


@contextlib.contextmanager
def answering(replies):
    """A server that sends these bytes, whatever it is asked, and then nothing any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            waiting = list(replies)
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.settimeout(1)
                        with contextlib.suppress(OSError):
                            client.recv(4096)
                            client.sendall(waiting.pop(0) if waiting else b"")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/x.tar"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(importlib.import_module("neotta.data.downloads.fetch"), "TRIES", 2)


@given(data=st.data())
@fuzz(30)
def test_replies(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fetched")
    replies = [data.draw(st.sampled_from(REPLIES).flatmap(lambda whole: st.just(whole) | damaged(whole))) for _ in "12"]
    with answering(replies) as url, only_own_errors():
        fetch(url, folder / "x.tar", pause=0, timeout=0.3)
        assert (folder / "x.tar").exists()
