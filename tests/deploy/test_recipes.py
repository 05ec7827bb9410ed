"""The recipes of the guides for tools that no test can start cheaply, or at all."""

from __future__ import annotations

import functools
import http.server
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from neotta.data import corrupt, digits
from neotta.deploy import OnnxClassifier

DOCS = Path(__file__).parents[2] / "docs"

BEFORE = """
from collections import OrderedDict
import numpy as np, ray, torch
from neotta.neo.stream import Moments
from torch import nn

def make(batch):
    images = [np.random.default_rng(int(i)).normal(3, 1, (3, 16, 16)).astype(np.float32) for i in batch["id"]]
    return {"image": np.stack(images)}

def network():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 12, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(12, 4))).eval()

ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
model = network()
ray.data.read_parquet = lambda place: ray.data.range(500).map_batches(make)
"""
AFTER = """
alone = neotta.adapt(network(), prior=False)
with torch.inference_mode():
    alone(torch.from_numpy(make({"id": range(500)})["image"]))
assert neotta.head(model).count == len(answers.take_all()) == 500
ours, theirs = (neotta.head(each).streams.rule.state(neotta.head(each).streams.state()) for each in (model, alone))
ours, theirs = (Moments.of(state.scales[:, 0]) for state in (ours, theirs))
torch.testing.assert_close(ours.sum1 / ours.weight, theirs.sum1 / theirs.weight, rtol=0, atol=0.1)
ray.shutdown()
"""


@pytest.mark.slow
def test_ray_workers_learn_together_about_what_one_would():
    pytest.importorskip("ray.data", reason="needs ray[data]", exc_type=ImportError)
    (recipe,) = re.findall(r"```py\n(import neotta, ray.*?)```", (DOCS / "fleet.md").read_text(), re.S)
    words = [sys.executable, "-W", "ignore", "-c", BEFORE + recipe + AFTER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]


# ---- docs/recipes.md

PAGE = (DOCS / "recipes.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.S)
PY = re.findall(r"```py\n(.*?)```", PAGE, re.S)


@pytest.fixture
def adaptive(tmp_path, monkeypatch):
    """The folder with the files that the Python blocks of the page write."""
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(PYTHON), "recipes.md", "exec"), {})
    return tmp_path


def digits_in_frost(count):
    data = digits()
    rows = np.random.default_rng(0).permutation(len(data))[:count]
    return [corrupt(data.read(int(row)), "frost", 5, "cifar", image_id=str(row)) for row in rows]


def test_triton_reads_the_configuration():
    (text,) = re.findall(r"```text\n# \S+config.pbtxt\n(.*?)```", PAGE, re.S)
    files = importlib.metadata.files("tritonclient") or []
    (schema,) = (file.locate() for file in files if str(file).endswith("grpc/model_config_pb2.py"))
    spec = importlib.util.spec_from_file_location("model_config_pb2", schema)  # the package itself needs grpc
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = text_format.Parse(text, module.ModelConfig())
    assert [(port.name, list(port.dims)) for port in config.input] == [("images", [3, 32, 32]), ("camera", [1])]


class TritonTensor:
    """Stands in for Triton's: the only Triton on PyPI (nvidia-pytriton) needs an older NumPy."""

    def __init__(self, name, values):
        self.name, self.values = name, values

    def as_numpy(self):
        return self.values


def test_triton_requests_of_several_cameras_are_answered_each_with_its_own(adaptive, monkeypatch):
    utilities = SimpleNamespace(
        Tensor=TritonTensor,
        InferenceResponse=lambda tensors: tensors,
        get_input_tensor_by_name=lambda request, name: next(each for each in request if each.name == name),
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utilities)
    (adaptive / "digits" / "1").mkdir(parents=True)
    (adaptive / "adaptive.onnx").rename(adaptive / "digits" / "1" / "adaptive.onnx")
    names = {}
    exec(compile(PY[0], "model.py", "exec"), names)
    model = names["TritonPythonModel"]()
    model.initialize({"model_repository": str(adaptive / "digits"), "model_version": "1"})
    alone = OnnxClassifier(adaptive / "digits" / "1" / "adaptive.onnx")
    pixels = np.random.default_rng(0).normal(size=(6, 3, 32, 32)).astype(np.float32)
    for _ in range(2):
        requests = [
            [TritonTensor("images", pixels[rows]), TritonTensor("camera", np.array([[name]] * rows.stop, object)[rows])]
            for rows, name in ((slice(0, 2), b"gate"), (slice(2, 6), b"yard"))
        ]
        answers = [response[0].as_numpy() for response in model.execute(requests)]
        for answer, rows, camera in zip(answers, (slice(0, 2), slice(2, 6)), ("gate", "yard"), strict=True):
            np.testing.assert_allclose(answer, alone.predict(pixels[rows], stream=camera), atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")
def test_the_page_adapts_in_a_browser_as_python_does(adaptive, browser):
    install = ["npm", "install", "--no-audit", "--no-fund", "onnxruntime-web@1.30.0"]
    done = subprocess.run(install, cwd=adaptive, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot reach its registry: {done.stderr[-200:]}")
    (adaptive / "index.html").write_text(re.search(r"```html\n(.*?)```", PAGE, re.S)[1])
    classifier, pictures = OnnxClassifier("adaptive.onnx"), digits_in_frost(24)
    expected = [classifier.predict([picture])[0] for picture in pictures]
    plain = classifier.plain(pictures)
    assert (np.argmax(expected, axis=1) != plain.argmax(axis=1)).any(), "adapting shows"
    handler = functools.partial(QuietHandler, directory=str(adaptive))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        page.wait_for_function("document.querySelector('input').onchange !== null")
        for picture, logits in zip(pictures, expected, strict=True):
            body = io.BytesIO()
            Image.fromarray(picture).save(body, "PNG")
            page.evaluate("document.querySelector('p').textContent = ''")
            page.set_input_files("input", {"name": "digit.png", "mimeType": "image/png", "buffer": body.getvalue()})
            page.wait_for_function("document.querySelector('p').textContent !== ''")
            assert page.inner_text("p") == str(logits.argmax())
        page.close()
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


LOOK = """
client = mlflow.MlflowClient()
runs = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
assert {(run.data.params["method"], run.data.params["domain"]) for run in runs} == {
    ("none", "fog/5"), ("neo-stream", "fog/5")
}, runs
assert all(0 < run.data.metrics["top1"] <= 100 for run in runs), runs
"""


@pytest.mark.slow
def test_mlflow_and_wandb_record_every_run(tmp_path):
    for package in ("mlflow", "wandb"):
        pytest.importorskip(package, reason=f"needs {package}")
    again = re.search(r"neotta.evaluate\(.*\)\n", PY[1])[0]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": (tmp_path / "runs").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    program = f"{PY[1]}{LOOK}\nimport wandb\n{PY[2]}\n{again}"
    words = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 2
