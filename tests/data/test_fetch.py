"""Downloads against a real server on this machine that misbehaves in every way real ones do."""

import contextlib
import hashlib
import json
import socket
import sys
import threading
import time

import pytest
from support.loopback import serving

from neotta.data.downloads.fetch import TRIES, fetch, verify_file
from neotta.errors import DataError

BODY = bytes(range(256)) * 4000  # about a megabyte
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving({"/data.tar": BODY}) as running:
        yield running


def get(server, target, **options):
    fetch(server.url("/data.tar"), target, pause=0.001, **options)


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(server, tmp_path):
    steps = []
    get(server, tmp_path / "data.tar", checksum=MD5, progress=lambda *step: steps.append(step))
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["data.tar"]
    assert ("downloading", len(BODY), len(BODY)) in steps
    assert steps[-1] == ("checking", len(BODY), len(BODY))
    assert server.seen[0]["User-Agent"].startswith("neotta/")


def test_dropped_connections_are_taken_up_where_they_broke(server, tmp_path):
    server.cuts = [100_000, 1, 300_000]
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert [seen.get("Range") for seen in server.seen] == [
        None,
        "bytes=100000-",
        "bytes=100001-",
        "bytes=400001-",
    ]
    assert {seen.get("If-Range") for seen in server.seen[1:]} == {'"v1"'}


def test_a_server_without_ranges_begins_again(server, tmp_path):
    server.ranges = False
    server.cuts = [100_000, 200_000]
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert len(server.seen) == 3


def test_an_interrupted_download_goes_on_in_another_run(server, tmp_path):
    server.cuts = [100_000] + [0] * TRIES
    with pytest.raises(DataError, match=r"100,000 bytes are kept, start again to go on"):
        get(server, tmp_path / "data.tar")
    assert not (tmp_path / "data.tar").exists()
    server.cuts.clear()
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert server.seen[-1]["Range"] == "bytes=100000-"


def test_a_file_that_changed_meanwhile_is_begun_again(server, tmp_path):
    server.cuts = [100_000] + [0] * TRIES
    with pytest.raises(DataError):
        get(server, tmp_path / "data.tar")
    server.cuts.clear()
    server.etag, server.files["/data.tar"] = '"v2"', BODY[::-1]
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY[::-1]


def test_without_validator_or_checksum_nothing_is_pieced_together(server, tmp_path):
    server.etag = None
    server.cuts = [100_000]
    get(server, tmp_path / "data.tar")
    assert [seen.get("Range") for seen in server.seen] == [None, None]
    server.cuts = [100_000]
    get(server, tmp_path / "again.tar", checksum=MD5)  # here the checksum will prove it
    assert server.seen[-1]["Range"] == "bytes=100000-"
    assert (tmp_path / "again.tar").read_bytes() == BODY


def test_a_part_longer_than_the_file_is_begun_again(server, tmp_path):
    (tmp_path / "data.tar.part").write_bytes(b"x" * (len(BODY) + 5))
    note = {"url": server.url("/data.tar"), "validator": '"v1"', "total": None}
    (tmp_path / "data.tar.part.json").write_text(json.dumps(note))
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY


def test_a_whole_part_is_not_fetched_again(server, tmp_path):
    (tmp_path / "data.tar.part").write_bytes(BODY)
    note = {"url": server.url("/data.tar"), "validator": '"v1"', "total": len(BODY)}
    (tmp_path / "data.tar.part.json").write_text(json.dumps(note))
    get(server, tmp_path / "data.tar", checksum=MD5)
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert server.seen == []


@pytest.mark.parametrize("note", [None, "not json", "[]", '{"url": 1}'])
def test_a_part_of_unknown_origin_is_not_used(server, tmp_path, note):
    (tmp_path / "data.tar.part").write_bytes(b"of something else")
    if note is not None:
        (tmp_path / "data.tar.part.json").write_text(note)
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY


def test_wrong_bytes_are_refused_and_set_aside(server, tmp_path):
    server.files["/data.tar"] = BODY[:-1] + b"?"
    with pytest.raises(DataError, match=r"wrong md5 checksum: expected \w{32}, got \w{32}.*data\.tar\.bad"):
        get(server, tmp_path / "data.tar", checksum=MD5)
    assert [path.name for path in tmp_path.iterdir()] == ["data.tar.bad"]
    server.files["/data.tar"] = BODY
    get(server, tmp_path / "data.tar", checksum=MD5)
    assert (tmp_path / "data.tar").read_bytes() == BODY


def test_passing_troubles_of_the_server_are_waited_out(server, tmp_path):
    server.statuses = [503, 429, 200]
    get(server, tmp_path / "data.tar")
    assert (tmp_path / "data.tar").read_bytes() == BODY


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_final(server, tmp_path, status):
    server.statuses = [status] * 3
    with pytest.raises(DataError, match=f"the server answered {status}"):
        get(server, tmp_path / "data.tar")
    assert len(server.seen) == 1


def test_a_server_that_never_sends_a_byte_is_given_up(server, tmp_path):
    server.cuts = [0] * 20
    with pytest.raises(DataError, match=f"broke off {TRIES} times"):
        get(server, tmp_path / "data.tar")
    assert len(server.seen) == TRIES


def test_silence_counts_as_a_broken_connection(server, tmp_path):
    server.hang = 1
    get(server, tmp_path / "data.tar", timeout=1.0)
    assert (tmp_path / "data.tar").read_bytes() == BODY
    assert len(server.seen) == 2


def test_a_server_that_drips_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sys.modules[fetch.__module__], "SPEED_WINDOW", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                for _ in range(1000):
                    connection.sendall(b"x")
                    time.sleep(0.02)

        server = threading.Thread(target=drip)
        server.start()
        try:
            with pytest.raises(DataError, match="too slow"):
                fetch(f"http://127.0.0.1:{listening.getsockname()[1]}/data.tar", tmp_path / "data.tar")
        finally:
            server.join()
    assert not (tmp_path / "data.tar").exists()


def test_a_server_that_sends_a_byte_and_hangs_up_is_given_up(server, tmp_path):
    server.cuts = [1] * 100
    with pytest.raises(DataError, match=f"broke off {TRIES} times"):
        get(server, tmp_path / "data.tar")
    assert len(server.seen) == TRIES


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTT"], ids=["headers", "status"])
def test_a_server_whose_headers_drip_is_given_up(tmp_path, monkeypatch, start):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sys.modules[fetch.__module__], "TRIES", 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            for _ in range(2):
                connection, _ = listening.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(start)
                    for _ in range(200):
                        time.sleep(0.05)
                        connection.sendall(b"x")

        server = threading.Thread(target=drip)
        server.start()
        began = time.monotonic()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/data.tar"
        try:
            with pytest.raises(DataError, match=r"no answer within 0\.3 seconds"):
                fetch(url, tmp_path / "data.tar", pause=0.001, timeout=0.3)
            assert time.monotonic() - began < 8, "each connection drips for 10 seconds"
        finally:
            server.join()


def test_a_web_page_is_not_taken_for_the_file(server, tmp_path):
    server.content_type = "text/html; charset=utf-8"
    with pytest.raises(DataError, match="is a web page, not a file"):
        get(server, tmp_path / "data.tar")
    assert not (tmp_path / "data.tar").exists()


def test_a_length_that_is_not_announced_needs_the_checksum(server, tmp_path):
    server.announce = False
    get(server, tmp_path / "data.tar", checksum=MD5)
    assert (tmp_path / "data.tar").read_bytes() == BODY
    server.cuts = [5]
    with pytest.raises(DataError, match="wrong md5 checksum"):
        get(server, tmp_path / "short.tar", checksum=MD5)


def test_room_is_asked_for_before_bytes_are_written(server, tmp_path):
    asked = []

    def refuse(missing, whole):
        asked.append((missing, whole))
        raise DataError("no room")

    with pytest.raises(DataError, match="no room"):
        get(server, tmp_path / "data.tar", room=refuse)
    assert asked == [(len(BODY), len(BODY))]
    assert list(tmp_path.iterdir()) == []
    server.cuts = [100_000]
    get(server, tmp_path / "data.tar", room=lambda *need: asked.append(need))
    assert asked[-1] == (len(BODY) - 100_000, len(BODY))


def test_nothing_but_http_is_opened(server, tmp_path):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(DataError, match="unknown url type"):
        fetch((tmp_path / "secret").as_uri(), tmp_path / "x", pause=0.001)


def test_no_server_at_all(tmp_path):
    with pytest.raises(DataError, match="refused"):
        fetch("http://127.0.0.1:9/data.tar", tmp_path / "x", pause=0.001)


def test_checksums_of_both_kinds(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(BODY)
    verify_file(path, MD5.upper().replace("MD5", "md5"))
    verify_file(path, "sha256:" + hashlib.sha256(BODY).hexdigest())
    with pytest.raises(DataError, match="wrong sha256 checksum"):
        verify_file(path, "sha256:" + "0" * 64)
