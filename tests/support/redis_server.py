"""A Redis server of a test's own, on a socket in a short path."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


class RedisServer:
    """Keeps everything in memory: after a restart it is empty."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="redis"))
        self.url = f"unix://{self.folder / 's'}"
        self.start()

    def start(self):
        redis = pytest.importorskip("redis", reason="needs the package redis")
        words = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(self.folder / "s"),
            "--save",
            "",
            "--dir",
            self.folder,
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            for _ in range(200):
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.02)
        raise AssertionError("redis-server does not start")

    def stop(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.stop()
        shutil.rmtree(self.folder)


@pytest.fixture
def redis_server():
    if shutil.which("redis-server") is None:
        pytest.skip("needs a Redis server (Debian: apt-get install redis-server)")
    server = RedisServer()
    yield server
    server.close()
