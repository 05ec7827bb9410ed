"""What was learnt outlasts the server, also one that is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time

import numpy as np
import pytest
from support.serving import pictures, serving, small_engine, start, tensor, wait_until
from support.small_model import network

from neotta.deploy.serve.engine import TorchEngine
from neotta.errors import StateFileError, StorageError

INFER = "/v2/models/small/infer"


def on_disk(folder):
    """Samples of each camera, as another process reads them after the server was killed now."""
    (path,) = folder.glob("*/streams.sqlite")
    with tempfile.TemporaryDirectory() as copy:
        for file in path.parent.glob("streams.sqlite*"):
            shutil.copy(file, copy)
        with contextlib.closing(sqlite3.connect(f"{copy}/{path.name}")) as database:
            return {json.loads(camera): count for camera, count in database.execute("SELECT id, count FROM streams")}


def test_a_server_continues_where_the_last_one_ended(tmp_path):
    images = pictures(24, seed=7, shift=0.5)
    with serving() as client:
        expected = [client.infer(part, stream="gate")["logits"] for part in np.split(images, 3)]
    found = []
    for part in np.split(images, 3):
        with serving(folder=tmp_path) as client:
            found.append(client.infer(part, stream="gate")["logits"])
    assert (np.array(found) == np.array(expected)).all()


def test_an_answer_is_on_disk_before_it_is_sent(tmp_path):
    with serving(folder=tmp_path, durable=0.0) as client:
        for count in (1, 2, 3):
            client.infer(pictures(1, seed=count), stream="gate")
            assert on_disk(tmp_path) == {"gate": count}


def test_or_after_some_seconds(tmp_path):
    with serving(folder=tmp_path, durable=0.4) as client:
        client.infer(pictures(1), stream="gate")
        assert on_disk(tmp_path) == {}
        wait_until(lambda: on_disk(tmp_path) == {"gate": 1}, 10)


def test_what_cannot_be_written_is_refused_and_not_learnt(tmp_path, monkeypatch):
    engine = small_engine(folder=tmp_path)
    store = next(iter(engine.streams.values())).spill
    write, broken = store.write, True

    def failing(*args, **kwargs):
        if broken:
            raise StorageError("the disk is full")
        return write(*args, **kwargs)

    monkeypatch.setattr(store, "write", failing)
    with serving(engine, folder=tmp_path) as client:
        monkeypatch.setattr(client.service.history, "check_room", lambda: failing() if broken else None)
        status, answer = client.post(INFER, {"inputs": [tensor(pictures(2))]})
        assert (status, "cannot be stored" in answer["error"]) == (503, True)
        assert "disk" not in answer["error"]
        assert client.get("/v2/health/ready")[0] == 503
        assert client.service.engine.counts() == {}
        assert client.service.streams == {}
        broken = False
        client.infer(pictures(1), stream="other")
        assert on_disk(tmp_path) == {"other": 1}


def test_a_server_that_cannot_write_is_not_ready_until_it_can(tmp_path, monkeypatch):
    with serving(folder=tmp_path) as client:
        client.infer(pictures(1), stream="gate")
        history, full = client.service.history, True

        def check_room():
            if full:
                raise StorageError("the disk is full")
            return room()

        room = history.check_room
        monkeypatch.setattr(history, "check_room", check_room)
        client.service.writable = False
        time.sleep(1.2)
        assert client.get("/v2/health/ready")[0] == 503
        assert client.get("/v2/health/live")[0] == 200
        full = False
        wait_until(lambda: client.get("/v2/health/ready")[0] == 200)
        assert history.snapshots("") == []


def test_a_second_server_is_kept_out_whatever_is_removed_but_the_database(tmp_path):
    with serving(folder=tmp_path) as client:
        client.infer(pictures(1), stream="gate")
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.suffix != ".sqlite" and "-wal" not in path.name:
                path.unlink()  # as `rm lock` once did
        with pytest.raises(StateFileError, match="in use"):
            TorchEngine(network(), folder=tmp_path)
        client.infer(pictures(1), stream="gate")
    assert on_disk(tmp_path) == {"gate": 2}


def test_a_rollback_is_on_disk_when_it_is_answered(tmp_path):
    with serving(folder=tmp_path, durable=3600.0) as client:
        client.infer(pictures(8), stream="gate")
        client.post("/streams/gate", {"action": "reset"})  # takes a snapshot of the eight
        client.infer(pictures(2), stream="gate")
        assert client.post("/streams/gate", {"action": "rollback"})[1]["health"]["samples"] == 8
        assert on_disk(tmp_path) == {"gate": 8}
        client.post("/streams/gate", {"action": "reset"})
        assert on_disk(tmp_path) == {}


@pytest.mark.slow
def test_kill_9_under_load_loses_nothing_that_was_acknowledged_and_counts_nothing_twice(small_model, tmp_path):
    cameras = [f"camera {index}" for index in range(8)]
    acknowledged = dict.fromkeys(cameras, 0)
    unsure = dict.fromkeys(cameras, 0)  # sent, and never answered
    for _ in range(2):
        process, client = start(small_model, tmp_path, "--durable", "batch", rows=4)
        stop = threading.Event()

        def send(camera, client=client, stop=stop):
            body = json.dumps({"inputs": [tensor(pictures(1))], "parameters": {"stream": camera}})
            while not stop.is_set():
                try:
                    status, _ = client.post(INFER, body)
                    acknowledged[camera] += status == 200
                except (OSError, ValueError, http.client.HTTPException):
                    unsure[camera] += 1
                    return

        threads = [threading.Thread(target=send, args=(camera,)) for camera in cameras]
        for thread in threads:
            thread.start()
        before = sum(acknowledged.values())
        wait_until(lambda before=before: sum(acknowledged.values()) > before + 40, 60)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(20)
        stop.set()
        for thread in threads:
            thread.join(30)
        counts = on_disk(tmp_path)
        for camera in cameras:
            assert acknowledged[camera] <= counts.get(camera, 0) <= acknowledged[camera] + unsure[camera]
    process, client = start(small_model, tmp_path)
    assert client.infer(pictures(1), stream="camera 0")["class"].shape == (1,)
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert process.wait(30) in (0, -signal.SIGTERM)
    assert time.monotonic() - started < 20
    assert on_disk(tmp_path)["camera 0"] == counts["camera 0"] + 1
