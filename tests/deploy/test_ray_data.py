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
# the default rule: four classes, moved by a shift
SHIFT = np.array([2.0, 0.0, 0.0, -1.0])

def classified(batch):
    rows = [6 * np.eye(4)[i % 4] + SHIFT + np.random.default_rng(int(i)).normal(0, 1, 4) for i in batch["id"]]
    return {"id": batch["id"], "image": np.stack(rows).astype(np.float32)}

def linear(**options):
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    nn.init.eye_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    return neotta.adapt(model, example=torch.zeros(2, 4), **options)

def run(model, rows):
    with torch.inference_mode():
        return model(torch.from_numpy(classified({"id": [row["id"] for row in rows]})["image"]))

def apart(rows, wanted):
    return float((torch.tensor(np.stack([row["logits"] for row in rows])) - wanted).abs().max())

def moments(model):
    return {name: values[0] if values.ndim else values for name, values in neotta.head(model).memory.state().items()}

labelled = ray.data.range(96).map_batches(classified, batch_size=96)
begun, itself = linear(), linear()
in_order = on_ray.predict(labelled, begun, adapt=True, batch_size=96).take_all()
online = apart(in_order, run(itself, in_order))
streamed, alone_streamed = linear(prior=False), linear(prior=False)
on_ray.adapt(labelled, streamed, batch_size=96)
run(alone_streamed, in_order)
ours, theirs = moments(streamed), moments(alone_streamed)
answers = on_ray.predict(labelled, streamed).take_all()
with neotta.paused(streamed):
    stored = apart(answers, run(streamed, answers))
stream = {
    "count": int(ours["count"]),
    "moments": max(float((ours[n] - theirs[n]).abs().max()) for n in ("weight", "mean", "second", "third")),
    "shift": float((neotta.head(streamed).centre() - torch.tensor(SHIFT - SHIFT.mean())).abs().max()),
    "answers": stored,
    "online": online,
    "untouched": neotta.head(begun).count,
}

one, other = neotta.head(model).centroid.state(), neotta.head(alone).centroid.state()
print(json.dumps({
    "columns": sorted(rows[0]),
    "rows": len({row["id"] for row in rows}),
    "count": int(one["count"]),
    "mean": float((one["mean"] - other["mean"]).abs().max()),
    "scatter": float((one["scatter"] / other["scatter"] - 1).abs()),
    "stream": stream,
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
    stream = found["stream"]
    assert (stream["count"], stream["untouched"]) == (96, 0)
    assert stream["moments"] < 1e-6
    assert stream["shift"] < 0.8  # of 1.75: found, and shrunk by its noise
    assert stream["answers"] < 1e-5
    assert stream["online"] < 1e-5  # one pass, one worker: what the model itself would have answered


def test_what_cannot_be_merged_is_refused():
    from neotta.deploy import ray as on_ray

    with pytest.raises(OptionError, match="order of its batches"):
        on_ray.adapt(None, neotta.adapt(nn.Sequential(nn.Linear(3, 2)), "neo-continual"))
    for act in (on_ray.adapt, on_ray.predict):
        with pytest.raises(OptionError, match="many streams"):
            act(None, neotta.adapt(nn.Sequential(nn.Linear(3, 2)), "neo", streams=True))
