"""Servers in processes of their own, on loopback, for as long as a test runs."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fetch(address, body=None, **headers):
    """The answer to a request, as bytes."""
    with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=30) as answer:
        return answer.read()


def _answers(address):
    place = urllib.parse.urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection(place.hostname, place.port, timeout=5)) as connection:
        try:
            connection.request("GET", place.path)
            return connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False


@contextlib.contextmanager
def running(words, ready, seconds=120, **options):
    """A process and all that it starts, once the address `ready` answers."""
    process = subprocess.Popen(words, start_new_session=True, **options)
    try:
        end = time.monotonic() + seconds
        while True:
            if _answers(ready):
                break
            assert process.poll() is None, f"{words[:3]} ended with {process.returncode}"
            assert time.monotonic() < end, f"{words[:3]} does not answer"
            time.sleep(0.1)
        yield process
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
