"""Streams over HTTP: their health, what can be done with them, and their metrics."""

from __future__ import annotations

import http.client
import json
import logging
import re
import sqlite3
import time
from urllib.parse import quote

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from support.serving import pictures, serving, small_engine, wait_until
from support.small_model import network
from torch import nn

import neotta
from neotta.cli.serve import JsonLines
from neotta.data.corruptions import corrupt
from neotta.data.handwritten import digits
from neotta.deploy.serve.engine import TorchEngine
from neotta.deploy.serve.settings import Limits
from neotta.models.load import LoadedModel, load_model
from neotta.monitoring.health import health_of
from neotta.neo.codec import StateFile

KEY = "a key of sixteen characters"


@pytest.fixture(scope="module")
def client():
    with serving(key=KEY) as client:
        yield client


def at(stream):
    return f"/streams/{quote(stream, safe='')}"


def act(client, stream, action, **more):
    return client.post(at(stream), {"action": action, **more})


def refreshed(client):
    """The streams by id, with their health as it is now."""
    time.sleep(1.1)
    return {about["id"]: about for about in client.get("/streams")[1]["streams"]}


def images_by_stream(client):
    samples = metrics(client)["neotta_stream_images"]
    return {sample.labels["stream"]: sample.value for sample in samples if sample.name.endswith("_total")}


def metrics(client):
    text = client.get("/metrics")[1].decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


# ---- actions


def test_actions(client):
    name = "a/b ü"
    client.infer(pictures(8), stream=name)
    before = time.time()
    status, answer = act(client, name, "freeze")
    assert (status, answer["status"]) == (200, "frozen")
    assert act(client, name, "unfreeze")[1]["status"] == "starting"
    assert act(client, name, "reset")[1]["health"] is None
    client.infer(pictures(4), stream=name)
    assert act(client, name, "rollback", to=before - 10)[0] == 404
    assert act(client, name, "rollback", to=time.time())[1]["restored"] >= before
    found = client.get(at(name))[1]
    assert (found["health"]["samples"], found["images"]) == (8, 12)
    assert len(found["snapshots"]) == 2  # of before the reset, and before going back
    assert act(client, name, "rollback")[1]["health"]["samples"] == 4  # what the last rollback replaced
    assert client.ask("DELETE", at(name))[2] == {"id": name, "forgotten": True}
    assert client.get(at(name))[0] == 404
    client.infer(pictures(1), stream=name)  # it comes back as a new one
    found = client.get(at(name))[1]
    assert (found["images"], found["snapshots"], found["history"]) == (1, [], [])


def test_the_snapshot_of_a_time_is_restored(client):
    name, times = "back", []
    for count in (1, 2, 3):
        client.infer(pictures(count, seed=count), stream=name)
        times.append(client.service.history.snapshots(name))
        act(client, name, "reset")
        time.sleep(0.01)
    first, second, third = client.get(at(name))[1]["snapshots"]
    for to, samples in ((first, 1), (second + 0.001, 2), (third, 3), (first + 0.001, 1)):
        assert act(client, name, "rollback", to=to)[1]["health"]["samples"] == samples


@pytest.mark.parametrize(
    ("stream", "body", "headers", "status"),
    [
        ("nobody", {"action": "freeze"}, {}, 404),
        ("known", {}, {}, 400),
        ("known", [], {}, 400),
        ("known", {"action": "explode"}, {}, 400),
        ("known", b"{", {"Content-Type": "application/json"}, 400),
        ("known", b'{"action": "freeze"}', {"Content-Type": "text/plain"}, 415),
        ("known", b" " * 70_000, {"Content-Type": "application/json"}, 413),
        ("known", {"action": "rollback", "to": "yesterday"}, {}, 400),
        ("known", {"action": "rollback", "to": -1e300}, {}, 404),
        ("known", {"action": "freeze"}, {"Authorization": "Bearer x"}, 401),
        ("known", {"action": "freeze"}, {"Origin": "https://evil.example"}, 403),
    ],
)
def test_bad_actions_are_rejected(client, stream, body, headers, status):
    client.infer(pictures(1), stream="known")
    found, answer = client.post(at(stream), body, **headers)
    assert (found, list(answer)) == (status, ["error"])
    assert client.get(at("known"))[1]["status"] == "starting"


def test_a_state_is_exported_as_neotta_saves_it(client, tmp_path):
    images = torch.from_numpy(pictures(8, seed=3, shift=1.0))
    client.infer(images.numpy(), stream="exported")
    status, content = client.get("/states/exported")
    assert status == 200
    (tmp_path / "stream.safetensors").write_bytes(content)
    model = network().model.eval()
    neotta.load(model, tmp_path / "stream.safetensors")
    neotta.head(model).freeze()
    with torch.inference_mode():
        expected = model(images).numpy()
    found = client.infer(images.numpy(), stream="exported", adapt=False)["logits"]
    assert abs(found - expected).max() < 1e-5


def test_a_state_to_start_from(tmp_path):
    model = neotta.adapt(network().model.eval(), "neo-stream")
    with torch.inference_mode():
        model(torch.from_numpy(pictures(16, seed=1, shift=1.0)))
    neotta.save(model, tmp_path / "fog.safetensors")
    engine = small_engine()
    engine.begin_with(StateFile.load(tmp_path / "fog.safetensors"), "fog")
    with serving(engine) as client:
        client.infer(pictures(4, seed=2), stream="new")
        assert client.service.engine.counts() == {"new": 20}


def test_live_events(client):
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=10)
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    client.infer(pictures(1), stream="live")
    for line in answer:
        if line.startswith(b"data") and (message := json.loads(line[6:])):
            assert message["server"]["model"] == "small"
            if "live" in [about["id"] for about in message["streams"]]:
                break
    answer.close()
    connection.close()


def test_the_last_picture_is_kept_only_if_asked_for(client):
    client.infer(pictures(1), stream="seen")
    assert client.get("/pictures/seen")[0] == 404
    with serving(pictures=True) as other:
        other.infer(pictures(1), stream="seen")
        status, content = other.get("/pictures/seen")
        assert (status, content[:3]) == (200, b"\xff\xd8\xff")
        assert other.get("/streams")[1]["streams"][0]["picture"] is True


# ---- health


@pytest.fixture(scope="module")
def frames():
    """Frames of the digits, preprocessed: clean, and in fog, (300, 3, 32, 32) each."""
    dataset = digits("test")
    images = [dataset.read(index) for index in range(0, 600, 2)]
    fog = [corrupt(image, "fog", 5, seed=index) for index, image in enumerate(images)]
    return [((np.stack(each).transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5).astype(np.float32) for each in (images, fog)]


def test_every_stream_shows_its_health(frames):
    clean, fog = (np.random.default_rng(0).permutation(each) for each in frames)
    with serving(TorchEngine(load_model("digits")), name="digits", limits=Limits(json_bytes=2**24)) as client:
        for part in range(0, 240, 20):
            for stream, images in {
                "calm": clean[part : part + 20],
                "stuck": clean[:1].repeat(20, 0),
                "frost": clean[part : part + 20] if part < 80 else fog[part : part + 20],
            }.items():
                client.infer(images, name="digits", outputs=["class"], stream=stream)
        found = refreshed(client)
        stuck, frost, calm = found["stuck"], found["frost"], found["calm"]
        assert {"alike", "repeats"} & set(stuck["health"]["signs"])
        assert stuck["trouble"] == 2
        assert stuck["status"] != "adapting"
        assert any("frames" in remark for remark in stuck["health"]["remarks"])
        assert "changed" in frost["health"]["signs"]
        assert frost["trouble"] == 2
        assert calm["trouble"] < 2
        assert [about["id"] for about in client.get("/streams")[1]["streams"]][-1] == "calm"  # trouble comes first
        (table,) = client.service.engine.streams.values()
        own = health_of(table.rule, table.state("frost"))
        assert own.shift == frost["health"]["shift"]
        assert list(own.remarks) == frost["health"]["remarks"][: len(own.remarks)]  # its last answers may add one
        for each in (stuck, frost):  # one picture, and a collapse to one class, say nothing of accuracy
            assert {each["accuracy"][name] for name in ("value", "low", "high")} == {None}
            assert "one class" in each["accuracy"]["reason"]
        assert "changed" not in stuck["health"]["signs"]
        assert 0 <= calm["accuracy"]["low"] < calm["accuracy"]["value"] < calm["accuracy"]["high"] <= 1
        shown = metrics(client)
        signs = {(sample.labels["stream"], sample.labels["sign"]) for sample in shown["neotta_stream_sign"]}
        assert ("frost", "changed") in signs
        assert ("calm", "changed") not in signs
        counted = {sample.labels["sign"]: sample.value for sample in shown["neotta_streams_with_sign"]}
        assert counted["changed"] == sum(sign == "changed" for _, sign in signs)
        for name in ("accuracy", "accuracy_low", "accuracy_high"):
            assert {sample.labels["stream"] for sample in shown[f"neotta_stream_{name}"]} == {"calm"}
        for name in ("shift", "samples", "seen_seconds"):
            assert {sample.labels["stream"] for sample in shown[f"neotta_stream_{name}"]} == {"calm", "stuck", "frost"}
        detail = client.get("/streams/frost")[1]
        assert len(detail["offset"]) == 10
        assert abs(detail["offset"][0]["offset"]) >= abs(detail["offset"][-1]["offset"])


@pytest.mark.parametrize("rule", ["neo-stream", "neo"])
def test_one_answer_for_most_images_is_always_a_check(rule):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)).eval()
    with torch.no_grad():
        model[1].weight.mul_(2)
        model[1].bias.copy_(5.0 * (torch.arange(10) == 8))
    loaded = LoadedModel(model, load_model("digits").preprocess)
    with serving(TorchEngine(loaded, rule), name="small") as client:
        for seed in range(4):
            client.infer(pictures(16, seed), stream="camera")
        camera = refreshed(client)["camera"]
        assert (camera["trouble"], camera["accuracy"]["value"]) == (2, None)
        assert "one class" in camera["accuracy"]["reason"]
        assert "one-answer" in camera["health"]["signs"]


def test_no_accuracy_is_estimated_where_the_rule_takes_most_samples_for_one_class(frames):
    with serving(TorchEngine(load_model("mnist")), name="mnist", limits=Limits(json_bytes=2**24)) as client:
        for part in range(0, 300, 20):
            client.infer(frames[0][part : part + 20], name="mnist", outputs=["class"], stream="gate")
        camera = refreshed(client)["gate"]
        assert not client.service.streams["gate"].recent.one_answer  # its answers are mixed, its state is not
        assert ("one-answer" in camera["health"]["signs"], camera["accuracy"]["value"]) == (True, None)
        assert "one class" in camera["accuracy"]["reason"]


def test_points_are_written_and_come_back(tmp_path):
    with serving(folder=tmp_path, history=0.2) as client:
        client.infer(pictures(32), stream="gate")
        wait_until(lambda: client.get("/streams/gate")[1]["history"])
        (point,) = client.get("/streams/gate")[1]["history"]
        assert (point["samples"], point["accuracy"]["by"]) == (32, "")  # noise is answered by few classes
        assert point["status"] in ("idle", "adapting")
        assert len(client.get("/streams/gate")[1]["snapshots"]) == 1  # the first is due at once
    with serving(folder=tmp_path) as client:
        assert client.get("/streams")[1]["streams"][0]["id"] == "gate"
        assert len(client.get("/streams/gate")[1]["history"]) == 1


# ---- metrics


def test_after_a_restart_health_is_known_before_the_next_image(tmp_path):
    with serving(folder=tmp_path) as client:
        client.infer(pictures(8), stream="gate")
    with serving(folder=tmp_path) as client:
        wait_until(lambda: client.service.streams["gate"].health is not None)
        (summary,) = client.get("/streams")[1]["streams"]
        assert (summary["health"]["samples"], summary["images"], summary["accuracy"]["value"]) == (8, 0, None)


def test_metrics_name_so_many_streams_and_none_that_never_learn():
    with serving(metric_streams=2) as client:
        for index in range(5):
            client.infer(pictures(1), stream=f"invented {index}", adapt=False)
        assert client.get("/streams")[1]["streams"] == []
        for stream in ("one", "two", "three"):
            client.infer(pictures(2), stream=stream)
        wait_until(lambda: images_by_stream(client) == {"one": 2, "two": 2})  # made once a second
        client.post("/streams/one", {"action": "reset"})
        client.ask("DELETE", "/streams/two")
        client.infer(pictures(1), stream="three")
        wait_until(lambda: images_by_stream(client) == {"one": 2, "three": 3})
        shown = metrics(client)
        assert shown["neotta_images"][0].value == 12
        assert {sample.labels["status"]: sample.value for sample in shown["neotta_streams"]}["starting"] == 2


# ---- logs


def test_logs_are_lines_of_json():
    record = logging.makeLogRecord({"msg": "a\nb", "levelname": "INFO", "values": {"stream": "a\nb"}})
    line = JsonLines().format(record)
    assert "\n" not in line
    assert {"event": "a\nb", "stream": "a\nb", "level": "info"}.items() <= json.loads(line).items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", json.loads(line)["time"])


# ---- damaged states


def damage(folder, stream):
    """Flip one bit of the state of a stream on disk."""
    (path,) = folder.glob("*/streams.sqlite")
    database = sqlite3.connect(path)
    ((content,),) = database.execute("SELECT state FROM streams WHERE id = ?", (json.dumps(stream),))
    flipped = bytes([content[0] ^ 1]) + content[1:]
    database.execute("UPDATE streams SET state = ? WHERE id = ?", (flipped, json.dumps(stream)))
    database.commit()
    database.close()


def test_a_stream_with_a_damaged_state_is_quarantined_and_a_reset_heals_it(tmp_path):
    with serving(folder=tmp_path) as client:
        for stream in ("good", "bad", "fine"):
            client.infer(pictures(4), stream=stream)
    damage(tmp_path, "bad")
    with serving(folder=tmp_path) as client:
        status, answer = client.get("/streams/bad")
        assert (status, answer["status"], answer["trouble"], answer["health"]) == (200, "quarantined", 3, None)
        assert "reset heals it" in answer["error"]
        body = {"inputs": [{"name": "images", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.0] * 3072}]}
        batches = client.service.batcher.batches
        status, answer = client.post("/v2/models/small/infer", {**body, "parameters": {"stream": "bad"}})
        assert (status, "quarantined" in answer["error"]) == (409, True)
        assert client.service.batcher.batches == batches  # it spoils no batch of others
        assert client.get("/states/bad")[0] == 404
        assert {s.labels["status"]: s.value for s in metrics(client)["neotta_streams"]}["quarantined"] == 1
        client.infer(pictures(1), stream="good")
        assert act(client, "bad", "reset")[1]["error"] is None
        client.infer(pictures(2), stream="bad")
        assert client.service.engine.counts() == {"good": 5, "bad": 2, "fine": 4}


def test_a_rollback_heals_a_quarantined_stream(tmp_path):
    with serving(folder=tmp_path) as client:
        client.infer(pictures(4), stream="bad")
        client.service.snapshot("bad")
    damage(tmp_path, "bad")
    with serving(folder=tmp_path) as client:
        status, answer = client.get("/states/bad")
        assert (status, "quarantined" in answer["error"]) == (404, True)
        assert client.get("/streams/bad")[1]["status"] == "quarantined"
        assert act(client, "bad", "rollback")[1]["error"] is None
        client.infer(pictures(2), stream="bad")
        assert client.service.engine.counts() == {"bad": 6}
