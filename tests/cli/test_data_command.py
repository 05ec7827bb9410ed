"""`neotta data info` on data that lies on a server."""

from __future__ import annotations

import pytest
from support.tar_shards import BOTH, STREAM, serving_a_stream


@pytest.fixture
def server(monkeypatch, tmp_path):
    with serving_a_stream(monkeypatch, tmp_path) as running:
        yield running


def test_a_stream_is_fetched_and_described(server, command):
    done = command("data", "info", f"ccc={server.url(BOTH)}", width=200)
    assert done.returncode == 0, done.stderr
    assert f"ccc at {server.url(BOTH)}" in done.stdout
    assert "3 images in 1 domain," in done.stdout
    assert STREAM in done.stdout
    done = command("data", "info", server.url(f"/CCC/{STREAM}"), width=200)
    assert "of this stream only its first file" in done.stdout
    assert len(server.seen) == 2, "both are in the cache"


def test_a_server_that_does_not_have_it(server, command):
    server.files.clear()
    done = command("data", "info", f"ccc={server.url(BOTH)}")
    assert done.returncode == 2
    assert "404 Client Error" in done.stderr
