"""Actions on cameras, metrics, the log and the check before a start."""

from __future__ import annotations

import io
import json
import logging
import time
from importlib.resources import files

import pytest
import torch
from support.serving import Client, pictures, serving, small_engine
from support.small_model import network

import neotta
from neotta.deploy.serve.logs import JsonLines, log
from neotta.deploy.serve.settings import Settings
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
    for wrong in ({"name": "a/b"}, {"durable": -1.0}):
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
