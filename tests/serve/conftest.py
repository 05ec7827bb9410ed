from __future__ import annotations

import shutil

import pytest
from support.redis_server import Redis


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (Debian: apt-get install redis-server)")
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()
