"""A server as those who run it meet it: keys with roles, ids of requests, settings by environment, signals."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from support.serving import Client, GatedEngine, in_background, pictures, serving, start, tensor, wait_until

from neotta.deploy.serve.auth import Keys
from neotta.deploy.serve.settings import Limits, RequestError
from neotta.errors import OptionError

KEYS = {role: f"the key of those who {role}".replace(" ", "-") for role in ("read", "write", "admin")}
BODY = {"inputs": [tensor(pictures(1))], "parameters": {"stream": "gate"}}
INFER = "/v2/models/small/infer"


def lines(**keys):
    return "# name role key\n" + "".join(f"{role}-er {role} {key}\n" for role, key in keys.items())


def test_what_each_role_may_do(tmp_path):
    path = tmp_path / "keys"
    path.write_text(lines(**KEYS))
    with serving(key_file=path) as client:
        by = {role: Client(client.port, key) for role, key in KEYS.items()}
        by["write"].post(INFER, BODY)
        asked = {
            "classify": lambda each: each.post(INFER, BODY)[0],
            "metadata": lambda each: each.get("/v2/models/small")[0],
            "metrics": lambda each: each.get("/metrics")[0],
            "streams": lambda each: each.get("/streams/gate")[0],
            "state": lambda each: each.get("/states/gate")[0],
            "freeze": lambda each: each.post("/streams/gate", {"action": "unfreeze"})[0],
        }
        found = {role: {name for name, ask in asked.items() if ask(each) == 200} for role, each in by.items()}
        assert found == {
            "read": {"metadata", "metrics", "streams", "state"},
            "write": {"metadata", "classify"},
            "admin": set(asked),
        }
        assert by["read"].post(INFER, BODY)[0] == 403
        assert by["write"].ask("DELETE", "/streams/gate")[0] == 403
        assert Client(client.port, "the-key-of-nobody").get("/metrics")[0] == 401


@pytest.mark.parametrize(
    "text", ["", "a b\nc d\n", "a read short\n", "a reader 0123456789abcdef\nb write 0123456789abcdef\n"]
)
def test_files_that_hold_no_keys_are_rejected(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(OptionError):
        Keys(file=tmp_path / "keys")


def test_a_file_that_became_wrong_leaves_the_keys_as_they_were(tmp_path):
    path = tmp_path / "keys"
    path.write_text(lines(**KEYS))
    keys = Keys(file=path)
    path.write_text("nonsense")
    keys.reread()
    assert keys.check(KEYS["read"], "read") == "read-er"
    path.write_text("ops admin 0123456789abcdef0123\n")
    keys.reread()
    assert keys.check("0123456789abcdef0123", "write") == "ops"
    with pytest.raises(RequestError):
        keys.check(KEYS["read"], "read")


# ---- ids of requests


def test_an_id_that_comes_in_is_kept_and_others_get_one():
    with serving() as client:
        asked = {"X-Request-Id": "abc/1-2"}
        assert client.ask("GET", "/v2", headers=asked)[1]["X-Request-Id"] == "abc/1-2"
        ids = {
            client.ask("GET", "/v2", headers={"X-Request-Id": odd})[1]["X-Request-Id"] for odd in ("", "a b", "x" * 200)
        }
        assert len(ids) == 3
        assert all(len(each) == 32 for each in ids)
        assert client.ask("GET", "/nothing", headers=asked)[1]["X-Request-Id"] == "abc/1-2"


def test_each_request_has_a_line_in_the_log_and_probes_have_none(caplog):
    with caplog.at_level("INFO", "neotta.serve"), serving() as client:
        client.ask("POST", "/classify?stream=gate", b"no image", {"X-Request-Id": "mine"})
        client.get("/v2/health/live")
        wait_until(lambda: [each for each in caplog.records if each.message == "request"])
    (line,) = [each.values for each in caplog.records if each.message == "request"]
    assert {"request": "mine", "method": "POST", "path": "/classify", "status": 400}.items() <= line.items()
    assert line["client"].endswith("@127.0.0.1")


@pytest.mark.parametrize(
    ("proxies", "client"), [("", "127.0.0.1"), ("127.0.0.1", "192.0.2.7"), ("192.0.2.1", "127.0.0.1")]
)
def test_clients_behind_a_proxy_are_told_apart_if_it_is_believed(proxies, client, caplog):
    with caplog.at_level("INFO", "neotta.serve"), serving(proxies=proxies) as server:
        server.get("/v2", **{"X-Forwarded-For": "192.0.2.7"})
        wait_until(lambda: [each for each in caplog.records if each.message == "request"])
    (line,) = [each.values for each in caplog.records if each.message == "request"]
    assert line["client"] == f"@{client}"


# ---- readiness


def test_a_server_whose_model_is_stuck_is_not_ready():
    engine = GatedEngine()
    with serving(engine, limits=Limits(timeout=0.3)) as client:
        assert client.get("/v2/health/ready")[0] == 200
        engine.gate.clear()
        end = in_background(1, lambda _: client.post(INFER, BODY)[0])
        wait_until(lambda: client.get("/v2/health/ready")[0] == 503)
        assert client.get("/v2/health/live")[0] == 200
        engine.gate.set()
        assert end() == [504]
        wait_until(lambda: client.get("/v2/health/ready")[0] == 200)
        wait_until(lambda: client.service.batcher.busy_since is None)


def test_a_server_that_was_told_to_end_is_not_ready():
    with serving() as client:
        client.service.ending = True
        assert client.get("/v2/health/ready")[0] == 503
        assert client.get("/v2/health/live")[0] == 200


# ---- a process


def test_a_process_rereads_its_keys_and_ends_in_time(small_model, tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text(lines(**KEYS))
    monkeypatch.setenv("NEOTTA_SERVE_KEY_FILE", str(path))
    monkeypatch.setenv("NEOTTA_SERVE_GRACE", "5")
    monkeypatch.setenv("NEOTTA_SERVE_LIMITS_ROWS", "7")
    process, client = start(small_model, tmp_path, "--durable", "batch")
    writer = Client(client.port, KEYS["write"])
    assert writer.post(INFER, BODY)[0] == 200
    assert (
        writer.post(INFER, {**BODY, "inputs": [tensor(pictures(8))]})[0] == 413
    )  # by the environment, not by the file
    path.write_text(lines(**{**KEYS, "write": "another-key-of-those"}))
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: writer.post(INFER, BODY)[0] == 401)
    writer = Client(client.port, "another-key-of-those")
    answered = []

    def flood(_):
        while True:
            try:
                answered.append(writer.post(INFER, BODY)[0])
            except OSError:
                return

    end = in_background(4, flood)
    wait_until(lambda: len(answered) > 20)
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert process.wait(60) in (0, -signal.SIGTERM)
    assert time.monotonic() - started < 30
    end()
    assert set(answered) <= {200, 503}
    said = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines() if line.startswith("{")]
    assert {"keys were read", "request", "stopped"} <= {each["event"] for each in said}
    (database,) = tmp_path.glob("*/streams.sqlite")
    with sqlite3.connect(database) as connection:
        ((count,),) = connection.execute("SELECT count FROM streams")
    connection.close()
    assert count >= 1 + answered.count(200)


def test_a_process_whose_model_hangs_ends_in_time_all_the_same(tmp_path):
    code = """
import threading, sys, time
from support.serving import *
from neotta.deploy.serve.settings import Settings
class Hangs(TorchEngine):
    def _forward(self, images):
        if hanging: time.sleep(600)
        return super()._forward(images)
hanging = False
engine = Hangs(network())
service = Service(engine, Settings(name="small", grace=2.0))
socket = listening("127.0.0.1", 0)
hanging = True
print(socket.getsockname()[1], flush=True)
make_server(service, "127.0.0.1", 0).run(sockets=[socket])
"""
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=there)
    client = Client(int(process.stdout.readline()))

    def ask(_):
        try:
            return client.post(INFER, BODY)[0]
        except OSError:
            return None

    wait_until(lambda: _live(client))
    end = in_background(1, ask)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    process.stdout.close()
    assert end() in ([None], [503], [500])


def _live(client):
    try:
        return client.get("/v2/health/live")[0] == 200
    except OSError:
        return False
