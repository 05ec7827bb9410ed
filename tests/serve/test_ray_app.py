"""Ray Serve: cameras routed by id, and replicas that die; in a process of its own, since Ray starts many."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from neotta.deploy.serve.ray_app import camera_of, owner, serve_app
from neotta.errors import OptionError

APP = """
import json, os, sys, time, urllib.request
import numpy as np, ray
from ray import serve
import neotta
from neotta.deploy import serve_app

model, url = sys.argv[1:]
os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "120"  # starting takes long on a busy machine
ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80_000_000, logging_level="error")
serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])}, logging_config={"log_level": "ERROR"})
from neotta.deploy.serve.settings import Settings
chosen = Settings(name="small", durable=0.0)
app = serve_app(model, store=url, replicas=2, settings=chosen, actor_options={"num_cpus": 0.5})
serve.run(app, name="cameras")
base = f"http://127.0.0.1:{os.environ['PORT']}"

def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())

def infer(camera, count):
    images = np.random.default_rng(count).normal(size=(count, 3, 32, 32))
    body = {"inputs": [{"name": "images", "datatype": "FP32", "shape": list(images.shape),
            "data": images.reshape(-1).tolist()}], "parameters": {"stream": camera}}
    return ask("/v2/models/small/infer", body)

cameras = [f"camera {index}" for index in range(8)]
for camera in cameras:
    infer(camera, 3)
before = {c: ask("/api/camera?id=" + c.replace(" ", "%20"))["samples"] for c in cameras}
shown = ask("/api/cameras")

from neotta.deploy.serve.ray_app import owner
victim = owner(cameras[0], 2)
actors = [a for a in ray.util.list_named_actors(all_namespaces=True) if f"replica-{victim}" in a["name"]]
ray.kill(ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"]), no_restart=False)
until, after = time.time() + 90, None
while after is None and time.time() < until:
    try:
        infer(cameras[0], 2)
        after = ask("/api/camera?id=camera%200")["samples"]
    except OSError:
        time.sleep(0.5)
print(json.dumps({"before": before, "after": after, "ids": [c["id"] for c in shown["cameras"]],
                  "rows": shown["server"]["rows"], "ready": ask("/v2/health/ready")}))
serve.shutdown()
ray.shutdown()
"""


@pytest.mark.slow
def test_cameras_have_one_owner_each_and_survive_its_death(small_model, redis, monkeypatch):
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PORT", str(free.getsockname()[1]))
    words = [sys.executable, "-c", APP, small_model, redis.url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))  # Ray writes, too
    assert set(found["before"].values()) == {3}
    assert found["ids"] == sorted(found["before"])
    assert found["rows"] == 24
    assert found["after"] >= 5  # what it had learnt, and what came after the death
    assert found["ready"] == {"ready": True}


def test_owners_are_fair_and_few_move():
    cameras = [f"camera {index}" for index in range(1000)]
    four, five = ([owner(camera, count) for camera in cameras] for count in (4, 5))
    assert min(four.count(index) for index in range(4)) > 180
    moved = sum(one != other for one, other in zip(four, five, strict=True))
    assert moved == five.count(4)


def test_the_camera_of_a_request():
    body = json.dumps({"inputs": [], "id": "request 1", "parameters": {"stream": "gate"}}).encode()
    assert camera_of("stream=a%20b", {}, body) == "a b"
    assert camera_of("", {}, body) == "gate"
    assert camera_of("", {"inference-header-content-length": str(len(body))}, body + b"\0\1") == "gate"
    assert camera_of("", {}, b'{"id": "gate"}') == "gate"
    for broken in (b"", b"{", b"[]", b'{"inputs": [], "id": "x"}', b"\xff"):
        assert camera_of("", {}, broken) == "default"


def test_bad_options_are_refused():
    pytest.importorskip("ray.serve", reason="needs ray[serve]")
    with pytest.raises(OptionError, match="replicas"):
        serve_app("digits", replicas=0)
    with pytest.raises(OptionError, match="redis://"):
        serve_app("digits", store="folder")
