"""The examples of docs/your-server.md, run as a reader does, on loopback."""

from __future__ import annotations

import base64
import io
import json
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.loopback import fetch, free_port, running
from support.redis_server import redis_server  # noqa: F401

import neotta
from neotta.data.handwritten import digits
from neotta.deploy import SharedStreams, SQLiteStore

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def picture(index):
    file = io.BytesIO()
    Image.fromarray(digits().read(index)).save(file, "png")
    return file.getvalue()


@pytest.mark.slow
def test_fastapi_knows_the_cameras_of_all_its_threads(tmp_path):
    pytest.importorskip("fastapi", reason="needs the package fastapi")
    port, state = free_port(), tmp_path / "cameras.safetensors"
    address = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_server:app", "--port", str(port)]
    ways = [(way, f"{way} {number}") for way in ("async", "pool", "thread") for number in range(3)]

    def send(one):
        way, camera = one
        place = f"{address}/{way}/{camera}".replace(" ", "%20")
        headers = {"Content-Type": "application/octet-stream"}
        sent = [json.loads(fetch(place, picture(number), **headers)) for number in range(4)]
        return [answer["label"] for answer in sent]

    for turn in (1, 2):  # the second process goes on where the first stopped
        with running(words, f"{address}/docs", cwd=tmp_path), ThreadPoolExecutor(9) as clients:
            answers = list(clients.map(send, ways))
            assert json.loads(fetch(f"{address}/health/pool%201"))["samples"] == 4 * turn
        assert all(answer == answers[0] for answer in answers)
    model = neotta.adapt(neotta.load_model("digits").model, streams=True)
    neotta.load(model, state)
    assert neotta.head(model).streams.counts() == {camera: 8 for _, camera in ways}


@pytest.mark.slow
def test_litserve_workers_share_their_cameras(tmp_path):
    pytest.importorskip("litserve", reason="needs the package litserve")
    port = free_port()
    words = [sys.executable, EXAMPLES / "litserve_server.py", "--port", str(port), "--workers", "2"]

    def send(camera):
        for number in range(4):
            body = {"camera": camera, "image": base64.b64encode(picture(number)).decode()}
            content_type = {"Content-Type": "application/json"}
            answer = json.loads(fetch(f"http://127.0.0.1:{port}/predict", json.dumps(body).encode(), **content_type))
            assert 0 < answer["probability"] <= 1

    with running(words, f"http://127.0.0.1:{port}/health", cwd=tmp_path), ThreadPoolExecutor(6) as clients:
        list(clients.map(send, ["gate", "dock", "gate", "yard", "dock", "roof"]))
    model = neotta.adapt(neotta.load_model("digits").model, streams=True)
    cameras = ["gate", "dock", "yard", "roof"]
    shared = SharedStreams(model, SQLiteStore(tmp_path / "cameras.sqlite"))
    shared(torch.zeros(4, 3, 32, 32), cameras, adapt=False)
    assert neotta.head(model).streams.counts() == dict(zip(cameras, [8, 8, 4, 4], strict=True))


def test_a_pipeline_adapts_to_each_folder(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="needs the package transformers")
    from support.deploy_models import hf_vit
    from transformers import ViTImageProcessor

    hf_vit().save_pretrained(tmp_path / "model")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "model")
    for folder in ("gate", "dock"):
        (tmp_path / folder).mkdir()
        for number in range(3):
            (tmp_path / folder / f"{number}.png").write_bytes(picture(number))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "hf_pipeline.py"))["main"]("model", ["gate", "dock"])
    assert "3 samples" in capsys.readouterr().out
    model = neotta.adapt(hf_vit(), streams=True)
    neotta.load(model, "folders.safetensors")
    assert neotta.head(model).streams.counts() == {"gate": 3, "dock": 3}


def test_a_video_is_watched_and_goes_on_the_next_day(tmp_path, monkeypatch, capsys):
    av = pytest.importorskip("av", reason="needs the package av")
    with av.open(str(tmp_path / "video.mp4"), "w") as video:
        stream = video.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        for number in range(20):
            video.mux(stream.encode(av.VideoFrame.from_ndarray(digits().read(number // 10), format="rgb24")))
        video.mux(stream.encode())
    words = ["video.py", "video.mp4", "--every", "2", "--state", "day.safetensors"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "video.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("0.0 s: ")
    model = neotta.load_model("digits").model
    neotta.load(model, "day.safetensors")
    assert neotta.head(model).count == 20


@pytest.mark.slow
def test_ray_serve_loses_nothing_that_was_answered_when_a_replica_is_killed(tmp_path, redis_server):  # noqa: F811
    pytest.importorskip("ray.serve", reason="needs ray[serve]", exc_type=ImportError)
    words = [sys.executable, "-W", "ignore", ROOT / "benchmarks" / "replicas.py", "--kill", "--replicas", "2"]
    words += ["--seconds", "4", "--cameras", "6", "--store", redis_server.url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[0])
    assert result["answered"] > 0
    assert result["answered_but_lost"] == 0
    assert result["stored"] <= result["answered"] + result["failed"]
