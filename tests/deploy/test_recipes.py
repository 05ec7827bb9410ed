"""The recipes of the guides for tools that no test can start cheaply, or at all."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import text_format

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
ours, theirs = (Moments.of(state.ever) for state in (ours, theirs))
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


def test_triton_reads_the_configuration():
    (text,) = re.findall(r'config.pbtxt"\).write_text\("""(.*?)"""', (DOCS / "logits.md").read_text(), re.S)
    files = importlib.metadata.files("tritonclient") or []
    (schema,) = (file.locate() for file in files if str(file).endswith("grpc/model_config_pb2.py"))
    spec = importlib.util.spec_from_file_location("model_config_pb2", schema)  # the package itself needs grpc
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = text_format.Parse(text, module.ModelConfig())
    assert [(port.name, list(port.dims)) for port in config.input] == [("images", [3, 32, 32])]
