"""Actions on cameras, metrics, webhooks, the log and the check before a start."""

from __future__ import annotations

import hmac
import http.server
import io
import json
import logging
import threading
import time
from importlib.resources import files

import pytest
import torch
from support.serving import Client, pictures, serving, small_engine, wait_until
from support.small_model import network

import neotta
from neotta.deploy.serve import openapi
from neotta.deploy.serve.logs import JsonLines, log
from neotta.deploy.serve.settings import Settings
from neotta.deploy.serve.webhook import SIGNATURE, Webhook, signature
from neotta.errors import OptionError

KEY, LOOK = "a key of sixteen characters", "another key, to look only"


@pytest.fixture(scope="module")
def client():
    with serving(key=KEY, read_key=LOOK, metric_cameras=1) as client:
        yield client


def act(client, action, camera, **more):
    return client.post(f"/api/camera/{action}", {"id": camera, **more})


def test_actions(client):
    client.infer(pictures(8), stream="a/b ü")
    before = time.time()
    status, answer = act(client, "freeze", "a/b ü")
    assert (status, answer["frozen"], answer["status"]) == (200, True, "frozen")
    assert act(client, "unfreeze", "a/b ü")[1]["frozen"] is False
    assert act(client, "rename", "a/b ü", name=" Yard ")[1]["name"] == "Yard"
    assert act(client, "reset", "a/b ü")[0] == 200
    assert client.get("/api/camera?id=a%2Fb%20%C3%BC")[1]["samples"] == 0
    client.infer(pictures(4), stream="a/b ü")
    assert act(client, "rollback", "a/b ü", to=before - 10)[0] == 404
    assert act(client, "rollback", "a/b ü", to=time.time())[1]["restored"] >= before
    found = client.get("/api/camera?id=a%2Fb%20%C3%BC")[1]
    assert (found["samples"], found["seen"], found["name"]) == (8, 12, "Yard")
    assert len(found["snapshots"]) == 2  # of before the reset, and before going back
    assert act(client, "forget", "a/b ü")[0] == 200
    assert client.get("/api/camera?id=a%2Fb%20%C3%BC")[0] == 404


def test_a_state_is_exported_as_neotta_saves_it(client, tmp_path):
    images = torch.from_numpy(pictures(8, seed=3, shift=1.0))
    client.infer(images.numpy(), stream="exported")
    status, content = client.get("/api/camera/state?id=exported")
    assert status == 200
    (tmp_path / "camera.safetensors").write_bytes(content)
    model = network().model.eval()
    neotta.load(model, tmp_path / "camera.safetensors")
    neotta.head(model).freeze()
    with torch.inference_mode():
        expected = model(images).numpy()
    found = client.infer(images.numpy(), stream="exported", adapt=False)["logits"]
    assert abs(found - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("freeze", {"id": "nobody"}, {}, 404),
        ("freeze", {}, {}, 404),
        ("freeze", [], {}, 400),
        ("freeze", b"{", {"Content-Type": "application/json"}, 400),
        ("freeze", b'{"id": "known"}', {"Content-Type": "text/plain"}, 415),
        ("rename", {"id": "known", "name": ""}, {}, 400),
        ("rename", {"id": "known", "name": "a\nb"}, {}, 400),
        ("rollback", {"id": "known", "to": "yesterday"}, {}, 400),
        ("rollback", {"id": "known"}, {}, 400),
        ("freeze", {"id": "known"}, {"Authorization": f"Bearer {LOOK}"}, 403),
        ("freeze", {"id": "known"}, {"Authorization": "Bearer x"}, 401),
        ("freeze", {"id": "known"}, {"Origin": "https://evil.example"}, 403),
    ],
)
def test_bad_actions_are_refused(client, path, body, headers, status):
    client.infer(pictures(1), stream="known")
    found, answer = client.post(f"/api/camera/{path}", body, **headers)
    assert (found, list(answer)) == (status, ["error"])
    assert client.get("/api/camera?id=known")[1]["frozen"] is False


def test_looking_is_possible_with_the_second_key(client):
    looking = Client(client.port, LOOK)
    client.infer(pictures(1), stream="seen")
    assert "seen" in [camera["id"] for camera in looking.get("/api/cameras")[1]["cameras"]]
    assert looking.get("/metrics")[0] == 200
    assert looking.get("/api/camera/image?id=seen")[0] == 404  # images are not kept


def test_metrics_are_bounded(client):
    from prometheus_client.parser import text_string_to_metric_families

    for camera in ("one", "two", "three"):
        client.infer(pictures(2), stream=camera)
    text = client.get("/metrics")[1].decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert len({sample.labels["camera"] for sample in families["neotta_camera_seen"]}) == 2
    assert "other" in {sample.labels["camera"] for sample in families["neotta_camera_seen"]}
    assert families["neotta_rows"][0].value >= 6
    assert {sample.labels["status"] for sample in families["neotta_requests"]} >= {"200"}
    board = json.loads(files("neotta.deploy.serve").joinpath("grafana.json").read_text())
    asked = json.dumps(board)
    assert board["panels"]
    for panel in board["panels"]:
        for target in panel["targets"]:
            assert any(name in target["expr"] for name in families), target["expr"]
    assert "neotta_camera_disagreement" in asked


def test_the_routes_are_all_described(client):
    described = set(openapi.description(client.service)["paths"])
    served = {route.path for route in client.server.config.app.routes}
    concrete = {path.replace("{model}", "small") for path in served if "{name}" not in path and "version" not in path}
    assert concrete - {"/", "/docs", "/openapi.json"} == described


def test_live_events(client):
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {LOOK}"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert json.loads(answer.readline()[6:])["server"]["model"] == "small"
    client.infer(pictures(1), stream="live")
    while (
        "live" not in [camera["id"] for camera in json.loads(line[6:])["cameras"]]
        if (line := answer.readline()).startswith(b"data")
        else True
    ):
        pass
    answer.close()
    connection.close()


# ---- webhooks


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.headers, body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def receiver():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.seen, server.statuses = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_alarms_are_signed_and_tried_again(receiver):
    receiver.statuses = [500, 429]
    webhook = Webhook(f"http://127.0.0.1:{receiver.server_port}/alarm", "secret", pause=0.01)
    webhook({"camera": "gate", "kind": "change"})
    wait_until(lambda: webhook.sent == 1)
    assert len(receiver.seen) == 3
    headers, body = receiver.seen[-1]
    stamp, _, digest = headers[SIGNATURE].removeprefix("t=").partition(",sha256=")
    assert hmac.compare_digest(digest, signature("secret", stamp, body))
    assert json.loads(body) == {"camera": "gate", "kind": "change"}
    webhook.close()


def test_a_webhook_that_is_away_is_never_in_the_way(receiver):
    receiver.statuses = [400]
    webhook = Webhook(f"http://127.0.0.1:{receiver.server_port}/", pause=0.01)
    webhook({"camera": "refused"})
    wait_until(lambda: webhook.lost == 1)
    webhook.close()
    away = Webhook("http://127.0.0.1:9/", tries=2, pause=0.01)
    started = time.monotonic()
    for index in range(2000):
        away({"camera": str(index)})
    assert time.monotonic() - started < 5
    wait_until(lambda: away.lost > 900)
    away.close(0.1)
    for wrong in ("ftp://x", "file:///etc/passwd", "x", "http://"):
        with pytest.raises(OptionError, match="webhook"):
            Webhook(wrong)


def test_alarms_of_a_camera_reach_the_webhook(receiver):
    with serving(webhook=f"http://127.0.0.1:{receiver.server_port}/", webhook_key="k") as client:
        client.infer(pictures(1), stream="gate")
        view = client.service.watch._view("gate")
        client.service.watch._alarm("gate", view, "change", "it has changed")
        wait_until(lambda: receiver.seen)
    assert json.loads(receiver.seen[0][1])["reason"] == "it has changed"


# ---- logs, and the command


def test_logs_are_lines_of_json():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("neotta.serve")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel("INFO")
    try:
        log("action", camera="a\nb", action="frozen")
        log("request", path="/")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    (line,) = stream.getvalue().splitlines()
    assert {"event": "action", "camera": "a\nb", "level": "info"}.items() <= json.loads(line).items()


def test_settings_are_checked():
    for wrong in ({"name": "a/b"}, {"durable": -1.0}, {"rollback": "maybe"}):
        with pytest.raises(OptionError):
            Settings(**wrong)


def test_a_state_to_start_from(tmp_path):
    model = neotta.adapt(network().model.eval(), "neo-stream")
    with torch.inference_mode():
        model(torch.from_numpy(pictures(16, seed=1, shift=1.0)))
    neotta.save(model, tmp_path / "fog.safetensors")
    engine = small_engine()
    from neotta.neo.statefile import read_state

    engine.begin_with(*read_state(tmp_path / "fog.safetensors"), "fog")
    with serving(engine) as client:
        client.infer(pictures(4, seed=2), stream="new")
        assert client.service.engine.counts() == {"new": 20}
