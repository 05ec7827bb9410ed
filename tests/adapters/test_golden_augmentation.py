"""Replays the recorded operations of the augmentation."""

from __future__ import annotations

import pytest
import torch
from golden_replay.replay import golden
from support.augmentation import affine, augment, blur

from neotta.adapters import augment as ops

TRACES = [trace for trace in golden().index["traces"] if trace["method"] == "augmentation"]
RUNS = [pytest.param(trace, kind, id=f"{trace['id']}-{kind}") for trace in TRACES for kind in trace["dtypes"]]


@pytest.mark.parametrize(("trace", "kind"), RUNS)
def test_augmentation(trace, kind):
    recorded = golden().tensors(trace["id"], kind)
    images = recorded.pop("input")
    given = trace["hyperparameters"]
    translate = tuple(given["translate"])
    whole = ops.Parameters(**{**given, "translate": translate}, flip=True)
    pad = images.shape[3] // 2
    made = {
        "brightness": ops.brightness(images.clone(), given["brightness"]),
        "contrast": ops.contrast(images.clone(), given["contrast"]),
        "saturation": ops.saturation(images.clone(), given["saturation"]),
        "hue": ops.hue(images.clone(), given["hue"]),
        "gamma": ops.gamma(images.clone(), given["gamma"]),
        "flip": images.flip(3),
        "pad_affine_crop": affine(images, given["angle"], translate, given["scale"], pad=(pad, pad)),
        "blur": blur(images, given["sigma"]),
        "full_pipeline_no_noise": augment(images, whole),
    }
    assert set(made) == set(recorded), "every recorded tensor is compared"
    for name, wanted in recorded.items():
        torch.testing.assert_close(
            made[name], wanted, atol=trace["tolerance"][kind], rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
