"""The passes over a Ray dataset, in a process of their own: Ray starts many and changes how Python logs and warns."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from torch import nn

import neotta
from neotta.errors import OptionError

PASSES = """
import json
import numpy as np
import ray, torch
from torch import nn
import neotta
from neotta.deploy import ray as on_ray

SAMPLES, SHAPE = 3000, (3, 48, 48)  # 83 MB, more than the 80 MB that Ray may hold

def make(batch):
    images = [np.random.default_rng(int(i)).normal(3, 1, SHAPE).astype(np.float32) for i in batch["id"]]
    return {"id": batch["id"], "image": np.stack(images)}

ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80_000_000, logging_level="error")
ray.data.DataContext.get_current().enable_progress_bars = False
torch.manual_seed(0)
body = nn.Sequential(nn.AvgPool2d(16), nn.Flatten())
plain = lambda: nn.Sequential(body, nn.Linear(27, 4))
model, alone = plain(), plain()
alone.load_state_dict(model.state_dict())
example = torch.zeros(2, *SHAPE)
for each in (model, alone):
    neotta.adapt(each, "neo", example=example, shrinkage="james-stein")
dataset = ray.data.range(SAMPLES).map_batches(make, batch_size=250)
on_ray.adapt(dataset, model, batch_size=64, workers=2)
rows = on_ray.predict(dataset, model).take_all()

# in one pass: batches in an order of their own, so they are told by their ids
continual, twin = plain(), plain()
twin.load_state_dict(continual.state_dict())
for each in (continual, twin):
    neotta.adapt(each, "neo-continual", example=example)
few = ray.data.range(96).map_batches(make, batch_size=96)
one_pass = on_ray.predict(few, continual, adapt=True, batch_size=96).take_all()
with torch.inference_mode():
    together = twin(torch.from_numpy(make({"id": [row["id"] for row in one_pass]})["image"]))

with torch.inference_mode():
    for start in range(0, SAMPLES, 500):
        alone(torch.from_numpy(make({"id": np.arange(start, start + 500)})["image"]))
    neotta.head(alone).freeze()
    few = sorted(rows, key=lambda row: row["id"])[::100]
    expected = alone(torch.from_numpy(make({"id": [row["id"] for row in few]})["image"]))
one, other = neotta.head(model).centroid.state(), neotta.head(alone).centroid.state()
print(json.dumps({
    "columns": sorted(rows[0]),
    "rows": len({row["id"] for row in rows}),
    "count": int(one["count"]),
    "mean": float((one["mean"] - other["mean"]).abs().max()),
    "scatter": float((one["scatter"] / other["scatter"] - 1).abs()),
    "one pass": float((torch.tensor(np.stack([row["logits"] for row in one_pass])) - together).abs().max()),
    "untouched": neotta.head(continual).count,
    "logits": float((torch.tensor(np.stack([row["logits"] for row in few])) - expected).abs().max()),
}))
ray.shutdown()
"""


@pytest.mark.slow
def test_two_passes_over_a_dataset_give_what_one_machine_would():
    pytest.importorskip("ray.data", reason="needs ray[data]", exc_type=ImportError)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PASSES], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["columns"], found["rows"], found["count"]) == (["id", "logits"], 3000, 3000)
    assert found["mean"] < 1e-6
    assert found["scatter"] < 1e-6
    assert found["logits"] < 1e-5
    assert found["one pass"] < 1e-5
    assert found["untouched"] == 0


def test_what_cannot_be_merged_is_refused():
    from neotta.deploy import ray as on_ray

    with pytest.raises(OptionError, match="order of its batches"):
        on_ray.adapt(None, neotta.adapt(nn.Sequential(nn.Linear(3, 2)), "neo-continual"))
    for act in (on_ray.adapt, on_ray.predict):
        with pytest.raises(OptionError, match="many streams"):
            act(None, neotta.adapt(nn.Sequential(nn.Linear(3, 2)), "neo", streams=True))
